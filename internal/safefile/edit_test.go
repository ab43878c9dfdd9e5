package safefile

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const editMax = 1 << 20

func edit(t *testing.T, r *Root, p, from, to string, all bool) (Edited, error) {
	t.Helper()
	return r.Edit(t.Context(), p, Edit{Old: from, New: to, All: all, MaxBytes: editMax})
}

func TestEditReplacesText(t *testing.T) {
	r, dir := world(t)
	long := strings.Repeat("line\n", 30_000)
	for name, c := range map[string]struct {
		text, old, new string
		all            bool
		want           string
		count, line    int
	}{
		"once":             {"a\nb\nc\n", "b", "B", false, "a\nB\nc\n", 1, 2},
		"all":              {"x y x y", "x", "zz", true, "zz y zz y", 2, 1},
		"at both ends":     {"xyx", "x", "", true, "y", 2, 1},
		"the whole":        {"x", "x", "", false, "", 1, 1},
		"overlapping":      {"aaaaa", "aa", "b", true, "bba", 2, 1},
		"many lines":       {"a\nb\nc\nd", "b\nc\n", "", false, "a\nd", 1, 2},
		"beyond a chunk":   {long + "needle" + long, "needle", "pin", false, long + "pin" + long, 1, 30_001},
		"across chunks":    {strings.Repeat("x", editChunk-3) + "needle", "needle", "pin", false, strings.Repeat("x", editChunk-3) + "pin", 1, 1},
		"longer than that": {"<" + long + ">", long, "y", false, "<y>", 1, 1},
		"runes":            {"añb", "ñ", "é", false, "aéb", 1, 1},
	} {
		must(t, os.WriteFile(filepath.Join(dir, "f"), []byte(c.text), 0o640))
		got, err := edit(t, r, "f", c.old, c.new, c.all)
		if err != nil || got.Count != c.count || got.Line != c.line || got.Info.Mode != 0o640 ||
			got.Info.Size != int64(len(c.want)) {
			t.Errorf("%s: Edit = %+v, %v; want count %d, line %d, mode 640, size %d", name, got, err, c.count, c.line,
				len(c.want))
		}
		if b, _ := os.ReadFile(filepath.Join(dir, "f")); string(b) != c.want {
			t.Errorf("%s: the file has %d bytes: %.60q, want %d bytes: %.60q", name, len(b), b, len(c.want), c.want)
		}
	}
}

func TestEditRefusedLeavesFile(t *testing.T) {
	r, dir := world(t)
	for name, c := range map[string]struct {
		text, old, new string
		all            bool
		is             func(error) bool
		says           string
	}{
		"absent":         {"abc", "x", "y", false, errdefs.IsNotFound, "old is not in"},
		"twice":          {"a x b x", "x", "y", false, errdefs.IsFailedPrecondition, "2 times"},
		"empty":          {"abc", "", "y", false, errdefs.IsInvalidArgument, "old is empty"},
		"the same":       {"abc", "a", "a", false, errdefs.IsInvalidArgument, "same"},
		"no text":        {"abc\x00", "a", "b", false, errdefs.IsFailedPrecondition, "NUL"},
		"no UTF-8":       {"abc\xff", "a", "b", false, errdefs.IsFailedPrecondition, "UTF-8"},
		"a cut rune":     {"abc\xc3", "a", "b", false, errdefs.IsFailedPrecondition, "UTF-8"},
		"NUL in old":     {"abc", "a\x00", "b", false, errdefs.IsInvalidArgument, "old"},
		"NUL in new":     {"abc", "a", "b\x00", false, errdefs.IsInvalidArgument, "new"},
		"no UTF-8 in it": {"abc", "a", "\xff", false, errdefs.IsInvalidArgument, "new"},
		"too large":      {strings.Repeat("x", editMax+1), "a", "b", false, errdefs.IsFailedPrecondition, "the maximum"},
		"grows too much": {strings.Repeat("x", 1000), "x", strings.Repeat("y", 2000), true, errdefs.IsFailedPrecondition, "the maximum"},
	} {
		must(t, os.WriteFile(filepath.Join(dir, "f"), []byte(c.text), 0o644))
		if _, err := edit(t, r, "f", c.old, c.new, c.all); !c.is(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: Edit: %v, want an error with %q", name, err, c.says)
		}
		if b, _ := os.ReadFile(filepath.Join(dir, "f")); string(b) != c.text {
			t.Errorf("%s: the file was changed to %.60q, want %.60q", name, b, c.text)
		}
	}
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	for p, want := range map[string]error{
		"fifo": errdefs.ErrFailedPrecondition, ".": errdefs.ErrFailedPrecondition,
		"nothing": errdefs.ErrNotFound, "../secret": errdefs.ErrPermissionDenied,
	} {
		if _, err := edit(t, r, p, "a", "b", false); !errors.Is(err, want) {
			t.Errorf("Edit(%s) = %v, want the class %v", p, err, want)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Edit(ctx, "f", Edit{Old: "x", New: "y", All: true, MaxBytes: editMax}); !errdefs.IsAborted(err) {
		t.Errorf("Edit with a cancelled context = %v, want Aborted", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".orchestrator-*")); len(left) > 0 {
		t.Errorf("temporary files = %v, want none", left)
	}
}

// changing changes the file at the second check of the context, which is after the rewrite began.
type changing struct {
	context.Context
	asked  int
	change func()
}

func (c *changing) Err() error {
	if c.asked++; c.asked == 3 {
		c.change()
	}
	return nil
}

func TestEditConcurrentChangeFails(t *testing.T) {
	r, dir := world(t)
	p := filepath.Join(dir, "f")
	for name, change := range map[string]func() error{
		"appended": func() error {
			f, err := os.OpenFile(p, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteString("more")
			return err
		},
		"truncated": func() error { return os.Truncate(p, 1) },
		"replaced": func() error {
			return os.Rename(filepath.Join(dir, "other"), p)
		},
		"removed": func() error { return os.Remove(p) },
	} {
		must(t, os.WriteFile(p, []byte("old text"), 0o644))
		must(t, os.WriteFile(filepath.Join(dir, "other"), []byte("old TEXT"), 0o644))
		ctx := &changing{Context: t.Context(), change: func() { must(t, change()) }}
		_, err := r.Edit(ctx, "f", Edit{Old: "old", New: "new", MaxBytes: editMax})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "during the edit") {
			t.Errorf("%s: Edit: %v, want FailedPrecondition", name, err)
		}
		if b, _ := os.ReadFile(p); bytes.HasPrefix(b, []byte("new")) {
			t.Errorf("%s: Edit replaced the changed file with %q, want it kept", name, b)
		}
	}
}

// FuzzEdit compares Edit with the standard library's replacement of the whole text.
func FuzzEdit(f *testing.F) {
	f.Add("a b a", "a", "c", 1)
	f.Add("añb", "ñ", "", 2)
	f.Add("\xff", "x", "y", 3)
	f.Fuzz(func(t *testing.T, text, from, to string, step int) {
		e := Edit{Old: from, New: to, All: true}
		if e.validate() != nil {
			return
		}
		slow := func() io.Reader {
			if step%2 == 0 {
				return iotest.OneByteReader(strings.NewReader(text))
			}
			return iotest.HalfReader(strings.NewReader(text))
		}
		found, err := e.findMatches(t.Context(), "f", slow())
		if good := utf8.ValidString(text) && !strings.Contains(text, "\x00"); good != (err == nil) {
			t.Fatalf("findMatches in %q = %v, want success %v", text, err, good)
		}
		if err != nil {
			return
		}
		if want := strings.Count(text, from); found.count != want {
			t.Fatalf("findMatches found %d, want %d", found.count, want)
		}
		if before, _, ok := strings.Cut(text, from); ok && found.line != strings.Count(before, "\n")+1 {
			t.Fatalf("first match in line %d, want %d", found.line, strings.Count(before, "\n")+1)
		}
		var out bytes.Buffer
		err = e.eachPiece(t.Context(), slow(), nil, func(piece []byte, match bool) error {
			if match {
				piece = []byte(to)
			}
			out.Write(piece)
			return nil
		})
		if want := strings.ReplaceAll(text, from, to); err != nil || out.String() != want {
			t.Fatalf("%q, %v; want %q", out.String(), err, want)
		}
	})
}
