package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// JSONText returns JSON on one line as a person reads it. encoding/json writes &, < and > as
// \u0026, \u003c and \u003e, which nobody who decides about a command should have to decode. It
// returns text that is not JSON unchanged. The result still needs Escape.
func JSONText(raw json.RawMessage) string {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber() // numbers keep their digits
	var v any
	if d.Decode(&v) != nil {
		return string(raw)
	}
	return marshalPlain(v)
}

func marshalPlain(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// InputText describes the input of a tool call: each field's name, and its value below it,
// indented. A string keeps its lines, so a line break differs from the two characters \n. Other
// control characters, and those that reorder or hide text, are escaped. Input that is not a JSON
// object is one indented text.
func InputText(raw json.RawMessage) string {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var fields map[string]any
	if d.Decode(&fields) != nil || fields == nil {
		return indent(JSONText(raw))
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value, isText := fields[name].(string)
		if !isText {
			value = marshalPlain(fields[name])
		}
		fmt.Fprintf(&b, "  %s:\n%s", Escape(name), indent(value))
	}
	return b.String()
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(EscapeText(strings.TrimSuffix(text, "\n"))) {
		b.WriteString("    " + line)
	}
	if text == "" {
		return "\n"
	}
	return b.String()
}
