package build

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func TestAContextCannotHoldUp(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM a"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, ".dockerignore"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- Pack(t.Context(), dir, "Dockerfile", io.Discard) }()
	select {
	case err := <-done:
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), ".dockerignore") {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("a FIFO holds up a build")
	}
}
