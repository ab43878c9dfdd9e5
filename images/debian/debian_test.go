package debian

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// A list can name files in its directory, and no other files of the host.
func TestFilesStayInListDirectory(t *testing.T) {
	base, outside := t.TempDir(), filepath.Join(t.TempDir(), "secret")
	for name, content := range map[string]string{outside: "secret", filepath.Join(base, "motd"): "hello"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(base, "link")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(base, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	up, err := filepath.Rel(base, outside)
	if err != nil {
		t.Fatal(err)
	}
	for from, good := range map[string]bool{"motd": true, "./motd": true, outside: false, up: false, "link": false,
		"fifo": false, ".": false, "nope": false} {
		at := t.TempDir()
		for _, name := range []string{"passwd", "group"} {
			if err := os.MkdirAll(filepath.Join(at, "etc"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(at, "etc", name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		go func() { done <- List{Files: map[string]string{"/etc/motd": from}}.finish(at, base) }()
		select {
		case err = <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("file %s blocks finish", from)
		}
		got, _ := os.ReadFile(filepath.Join(at, "etc", "motd"))
		if good != (err == nil) || good && string(got) != "hello" || strings.Contains(string(got), "secret") ||
			!good && !errdefs.IsInvalidArgument(err) {
			t.Errorf("finish with file %s: %q, %v; want success %v", from, got, err, good)
		}
	}
}
