package workspace

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// A file of a workspace can be longer than anybody waits for.
func TestReadingAWorkspaceEndsWithItsCommand(t *testing.T) {
	m, err := volumes.Open(filepath.Join(t.TempDir(), "w"), volumes.Options{})
	if err == nil {
		_, err = m.Create(t.Context(), "w", volumes.CreateOptions{})
	}
	if errors.Is(err, os.ErrPermission) {
		t.Skip("not root")
	}
	if err != nil {
		t.Fatal(err)
	}
	h, err := m.Acquire(t.Context(), "w", "l", volumes.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(h.Binding().Source, "f"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(1<<40), f.Close()); err != nil {
		t.Fatal(err)
	}
	h.Release()
	ctx, cancel := context.WithCancel(t.Context())
	in, err := (&localWorkspaces{manager: m}).read(ctx, "w", "f")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, in, 1<<20); err != nil {
		t.Error(err)
	}
	cancel()
	if _, err := io.CopyN(io.Discard, in, 1<<20); !errors.Is(err, context.Canceled) {
		t.Errorf("read on after its end: %v", err)
	}
	if err := errors.Join(in.Close(), m.Close()); err != nil {
		t.Error(err)
	}
}
