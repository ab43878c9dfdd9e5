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

func TestPackWithFIFO(t *testing.T) {
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
			t.Errorf("Pack with a FIFO: %v, want InvalidArgument", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("Pack blocks on a FIFO, want it to return")
	}
}
