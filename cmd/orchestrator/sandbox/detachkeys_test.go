package sandbox

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestDetachKeysAreRead(t *testing.T) {
	for text, want := range map[string]string{
		"ctrl-p,ctrl-q": "\x10\x11", "ctrl-]": "\x1d", "Ctrl-@": "\x00", "a,B,~": "aB~", "none": "", "ctrl-_": "\x1f", "ctrl-\\": "\x1c",
	} {
		got, err := parseDetachKeys(&cobra.Command{}, text)
		if err != nil || string(got) != want {
			t.Errorf("parseDetachKeys(%q) = %q, %v; want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "ctrl-", "ctrl-1", "ab", "ctrl-p,", "é", " ", "ctrl-pq"} {
		if got, err := parseDetachKeys(&cobra.Command{}, text); err == nil ||
			!strings.Contains(err.Error(), "--detach-keys") {
			t.Errorf("parseDetachKeys(%q) = %q, %v; want an error about --detach-keys", text, got, err)
		}
	}
}

func TestDetachKeysAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		keys, out string
		in        []string
		leave     bool
	}{
		"none":               {"", "a\x10\x11", []string{"a\x10\x11"}, false},
		"at once":            {"pq", "ab", []string{"abpq"}, true},
		"in two":             {"pq", "ab", []string{"abp", "q"}, true},
		"held and let go":    {"pq", "px", []string{"p", "x"}, false},
		"twice the first":    {"pq", "pp", []string{"p", "p", "pq"}, true},
		"begins in itself":   {"ppq", "p", []string{"p", "pp", "q"}, true},
		"nearly, and again":  {"aab", "aacaa", []string{"aacaa", "aab"}, true},
		"what follows stays": {"pq", "", []string{"pqrest"}, true},
		"a single key":       {"x", "abc", []string{"abc", "x"}, true},
	} {
		scan := detachScanner{keys: []byte(c.keys)}
		var out strings.Builder
		left := false
		for _, in := range c.in {
			got, leave := scan.feed([]byte(in))
			out.Write(got)
			left = left || leave
		}
		if out.String() != c.out || left != c.leave {
			t.Errorf("%s: feed = %q, leave %v; want %q, %v", name, out.String(), left, c.out, c.leave)
		}
	}
}
