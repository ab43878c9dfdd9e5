package safefile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func TestRemove(t *testing.T) {
	r, dir := world(t)
	must2(put(t, r, "d/e/f", "", WriteOptions{Parents: true}))
	must(t, os.Symlink("d", filepath.Join(dir, "l")))
	if err := r.Remove(t.Context(), "d", false); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Remove of a directory with entries = %v, want FailedPrecondition", err)
	}
	must(t, r.Remove(t.Context(), "l", true))
	if _, err := r.Stat("d/e/f"); err != nil {
		t.Errorf("Stat of the link's target after Remove = %v, want it kept", err)
	}
	must(t, r.Remove(t.Context(), "d", true))
	if err := r.Remove(t.Context(), "d", true); !errdefs.IsNotFound(err) {
		t.Errorf("second Remove: %v, want NotFound", err)
	}
	if names, _ := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("directory = %v, want empty", names)
	}
}

// The tree is deeper than the number of descriptors, and contains wide, unreadable and odd
// directories.
func TestRemoveHostileTree(t *testing.T) {
	r, dir := world(t)
	must(t, os.Mkdir(filepath.Join(dir, "t"), 0o755))
	at, err := unix.Open(filepath.Join(dir, "t"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(t, err)
	const depth = 5000
	for i := range depth {
		must(t, unix.Mkdirat(at, "d", 0o755))
		must(t, unix.Symlinkat("/", at, "root"))
		if i%100 == 0 {
			must(t, unix.Mkdirat(at, "d\xff\n", 0o755))
			must(t, unix.Mkfifoat(at, "fifo", 0))
		}
		next, err := unix.Openat(at, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		must(t, err)
		if i%7 == 0 {
			must(t, unix.Fchmod(next, 0o777))
			must(t, unix.Fchmod(at, 0))
		}
		_ = unix.Close(at)
		at = next
	}
	for i := range 3000 {
		n, err := unix.Openat(at, fmt.Sprint("f", i), unix.O_CREAT|unix.O_WRONLY, 0)
		must(t, err)
		_ = unix.Close(n)
	}
	_ = unix.Close(at)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Remove(ctx, "t", true); !errors.Is(err, context.Canceled) {
		t.Errorf("Remove with a cancelled context = %v, want context.Canceled", err)
	}
	must(t, r.Remove(t.Context(), "t", true))
	if names, _ := os.ReadDir(dir); len(names) != 0 {
		t.Errorf("directory = %v, want empty", names)
	}
}
