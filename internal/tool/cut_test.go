package tool

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// A Keeper keeps the head and the tail, whatever the sizes of the writes.
func TestKeeperKeepsHeadAndTail(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 50).Draw(t, "limit")
		parts := rapid.SliceOf(rapid.StringMatching(`[a-z]{0,40}`)).Draw(t, "parts")
		c := NewKeeper(Cut{Limit: int64(limit)})
		for _, p := range parts {
			if n, err := c.Write([]byte(p)); n != len(p) || err != nil {
				t.Fatalf("Write(%q) = %d, %v; want %d", p, n, err, len(p))
			}
		}
		all := strings.Join(parts, "")
		want := all
		if len(all) > limit {
			want = all[:(limit+1)/2] + all[len(all)-limit/2:]
		}
		if got, cut := c.Text(); got != want || cut != (len(all) > limit) || c.Total() != int64(len(all)) {
			t.Fatalf("kept %q of %q with limit %d, want %q", got, all, limit, want)
		}
	})
}

func TestKeeperTextIsValidUTF8(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := NewKeeper(Cut{Limit: int64(rapid.IntRange(1, 20).Draw(t, "limit"))})
		for _, p := range rapid.SliceOf(rapid.SliceOf(rapid.Byte())).Draw(t, "parts") {
			c.Write(p)
		}
		if got, _ := c.Text(); !utf8.ValidString(got) {
			t.Fatalf("Text = %q, want valid UTF-8", got)
		}
	})
}

func TestKeeperDropsPartialCharacters(t *testing.T) {
	c := NewKeeper(Cut{Limit: 8})
	c.Write([]byte(strings.Repeat("ä", 20) + "x"))
	if got, _ := c.Text(); strings.Contains(got, "\uFFFD") || !strings.HasPrefix(got, "ää") || !strings.HasSuffix(got,
		"äx") {
		t.Fatalf("Text = %q, want ää and äx at its ends and no U+FFFD", got)
	}
}
