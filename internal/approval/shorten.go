package approval

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// What approvers see of an input is bounded: ten thousand questions are kept in
// memory.
const (
	maxInput  = 16 << 10
	maxString = 2 << 10
)

// shorten cuts an input that is too large to be kept: its long strings first,
// and if that does not do, all of it. What was cut says so.
func shorten(input json.RawMessage) json.RawMessage {
	if len(input) <= maxInput {
		return input
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(input, &fields) == nil {
		for name, v := range fields {
			var s string
			if json.Unmarshal(v, &s) == nil && len(s) > maxString {
				fields[name] = encode(cut(s, maxString))
			}
		}
		if b := encode(fields); len(b) <= maxInput {
			return b
		}
	}
	return encode(map[string]string{"cut": cut(string(input), maxString)})
}

func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(v) != nil { // maps of strings and valid JSON only
		return nil
	}
	return bytes.TrimSpace(b.Bytes())
}

// cut keeps both ends: what matters of a command may stand last.
func cut(s string, n int) string {
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

// bounded keeps the beginning.
func bounded(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}
