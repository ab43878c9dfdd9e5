package debian

import (
	"os"
	"os/exec"
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
			t.Fatalf("finish blocks on the file %s, want it to return", from)
		}
		got, _ := os.ReadFile(filepath.Join(at, "etc", "motd"))
		if good != (err == nil) || good && string(got) != "hello" || strings.Contains(string(got), "secret") ||
			!good && !errdefs.IsInvalidArgument(err) {
			t.Errorf("finish with file %s: %q, %v; want success %v", from, got, err, good)
		}
	}
}

// TestBuildKeepsOtherMounts checks that a build has no copy of a mount that it does not use. A
// copy would keep the file system in use after its owner has unmounted it.
func TestBuildKeepsOtherMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting requires root")
	}
	foreign, disk := filepath.Join(t.TempDir(), "with space"), t.TempDir()
	for _, dir := range []string{foreign, disk} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, 0); err != nil {
				t.Error(err)
			}
		})
	}
	root := filepath.Join(disk, "root")
	cmd := exec.CommandContext(t.Context(), "sh", "-c", isolate, "isolate", root, "cat", "/proc/self/mountinfo")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("cat in isolation = %v, want no error: %s", err, out)
	}
	for dir, want := range map[string]bool{filepath.Dir(foreign): false, disk: true, "/proc": true} {
		if got := strings.Contains(string(out), " "+dir); got != want {
			t.Errorf("mount of %s in the build: got %t, want %t:\n%s", dir, got, want, out)
		}
	}
}
