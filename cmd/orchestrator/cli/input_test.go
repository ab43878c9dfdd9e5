package cli

import (
	"encoding/json"
	"testing"
)

func TestJSONTextIsReadable(t *testing.T) {
	for in, want := range map[string]string{
		`{"command":"echo a \u0026\u0026 echo b \u003ec"}`: `{"command":"echo a && echo b >c"}`,
		`{"n":12345678901234567890,"x":1.50}`:              `{"n":12345678901234567890,"x":1.50}`,
		`{"command":"a\u202eb"}`:                           "{\"command\":\"a\u202eb\"}", // Escape shows it
		`not json`:                                         `not json`,
		``:                                                 ``,
	} {
		if got := JSONText(json.RawMessage(in)); got != want {
			t.Errorf("JSONText(%s) = %s, want %s", in, got, want)
		}
	}
}

func TestInputTextShowsEachField(t *testing.T) {
	for in, want := range map[string]string{
		`{"timeout":5,"command":"echo a \u0026\u0026 b\nrm x \\n\tc\u001b[2J\u202e"}`: "  command:\n" +
			"    echo a && b\n" +
			"    rm x \\n\tc\\x1b[2J\\u202e\n" +
			"  timeout:\n" +
			"    5\n",
		`{"env":{"A":"<b>"},"empty":""}`: "  empty:\n\n  env:\n    {\"A\":\"<b>\"}\n",
		`{"a\nb":"c"}`:                   "  a\\nb:\n    c\n",
		`["a","b"]`:                      "    [\"a\",\"b\"]\n",
		`null`:                           "    null\n",
	} {
		if got := InputText(json.RawMessage(in)); got != want {
			t.Errorf("InputText(%s) = %q, want %q", in, got, want)
		}
	}
}
