package guestbin

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestWritePutsItOnceAndRepairs(t *testing.T) {
	dir := t.TempDir()
	path, hash, err := write(dir, []byte("guest"))
	if err != nil || path != filepath.Join(dir, hash, "guest") {
		t.Fatalf("got %q, %v", path, err)
	}
	check := func() {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil || string(b) != "guest" {
			t.Fatalf("holds %q, %v", b, err)
		}
		st, err := os.Stat(path)
		if err != nil || st.Mode() != 0o555 {
			t.Fatalf("mode is %v, %v", st.Mode(), err)
		}
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil || len(entries) != 1 {
			t.Fatalf("left behind: %v, %v", entries, err)
		}
	}
	check()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if again, _, err := write(dir, []byte("guest")); err != nil || again != path {
			t.Fatalf("got %q, %v", again, err)
		}
		check()
	}
}

func TestBytesSaysWhenThereIsNoGuest(t *testing.T) {
	b, err := Bytes()
	if err == nil && len(b) > 0 {
		return // built
	}
	if !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
}
