package hostfile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	synced := func(path string, content []byte, mode os.FileMode) error {
		return ReplaceSynced(path, content, mode, func() {
			if _, err := os.Stat(path + newSuffix); err != nil {
				t.Errorf("Stat of the new content before the rename = %v, want it to exist", err)
			}
		})
	}
	for i, replace := range []func(string, []byte, os.FileMode) error{Replace, synced, Replace} {
		content, mode := string(rune('a'+i)), os.FileMode(0o700-i)
		if err := replace(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err = errors.Join(err, statErr); err != nil || string(got) != content || info.Mode() != mode {
			t.Errorf("file = %q, %v; want %q", got, err, content)
		}
		if _, err := os.Lstat(path + newSuffix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Lstat of the temporary file = %v, want ErrNotExist", err)
		}
	}
}

func TestReplaceKeepsOldFileOnError(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "file"+newSuffix)
	if err := errors.Join(os.WriteFile(target, []byte("old"), 0o600), os.Symlink(target, link)); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "file"), []byte("new"), 0o600); err == nil {
		t.Error("Replace of a link succeeded, want an error")
	}
	if got, err := os.ReadFile(target); err != nil || string(got) != "old" {
		t.Errorf("the link's target = %q, %v; want old", got, err)
	}
	if err := Replace(dir, []byte("new"), 0o600); err == nil {
		t.Error("Replace of a directory succeeded, want an error")
	}
	if _, err := os.Lstat(dir + newSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Lstat of the temporary file after a failure = %v, want ErrNotExist", err)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	open := func() *os.File {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	a, b := open(), open()
	try := func(f *os.File, how int, want bool) {
		t.Helper()
		if got, err := TryLock(f, how); got != want || err != nil {
			t.Errorf("TryLock = %v, %v; want %v", got, err, want)
		}
	}
	try(a, unix.LOCK_SH, true)
	try(b, unix.LOCK_SH, true)
	try(a, unix.LOCK_EX, false)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	try(a, unix.LOCK_EX, true)
	c := open()
	try(c, unix.LOCK_SH, false)
	why := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := Lock(ctx, c); !errors.Is(err, why) {
		t.Errorf("Lock = %v, want the cause", err)
	}
	locked := make(chan error, 1)
	go func() { locked <- Lock(t.Context(), c) }()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Errorf("Lock after the release = %v, want no error", err)
	}
}
