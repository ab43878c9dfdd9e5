package strictjson

import "bytes"

// Values returns how many values a JSON text has, or a few more: it counts all elements, members,
// lists and objects. For invalid JSON, the result is at most len(data). It allocates no memory.
func Values(data []byte) int {
	n := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case ',', '[', '{':
			n++
		case '"':
			end := stringEnd(data, i+1)
			if end < 0 {
				return n
			}
			i = end
		}
	}
	return n
}

// stringEnd returns the index of the quote that ends the JSON string with the text at i, or -1.
func stringEnd(data []byte, i int) int {
	for {
		quote := bytes.IndexByte(data[i:], '"')
		if quote < 0 {
			return -1
		}
		at, slashes := i+quote, 0
		for at-slashes > i && data[at-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return at
		}
		i = at + 1
	}
}
