package approval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// Limits of the input that approvers see: up to ten thousand requests are held in memory.
const (
	maxInput  = 16 << 10
	maxString = 2 << 10
)

// shorten reduces an input that is too large to store. It elides long strings first and, if that is
// not enough, the whole input. Elided text is marked.
func shorten(input json.RawMessage) json.RawMessage {
	if len(input) <= maxInput {
		return input
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(input, &fields) == nil {
		for name, v := range fields {
			var s string
			if json.Unmarshal(v, &s) == nil && len(s) > maxString {
				fields[name] = encode(elide(s, maxString))
			}
		}
		if b := encode(fields); len(b) <= maxInput {
			return b
		}
	}
	return encode(map[string]string{"cut": elide(string(input), maxString)})
}

func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil { // maps of strings and valid JSON always encode
		return nil
	}
	return bytes.TrimSpace(b.Bytes())
}

// elide keeps the start and the end of s: the end of a command may matter.
func elide(s string, n int) string {
	if len(s) <= n {
		return s
	}
	head, tail := n/2, len(s)-n/2
	for head > 0 && !utf8.RuneStart(s[head]) {
		head--
	}
	for tail < len(s) && !utf8.RuneStart(s[tail]) {
		tail++
	}
	return fmt.Sprintf("%s … [%d of %d bytes are not shown] … %s", s[:head], tail-head, len(s), s[tail:])
}
