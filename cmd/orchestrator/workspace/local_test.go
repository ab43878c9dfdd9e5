package workspace

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// A sparse file of a workspace can be too long to read to its end.
func TestWorkspaceReadEndsWithContext(t *testing.T) {
	c := config.Default()
	c.StateDir = t.TempDir()
	m, err := volumes.Open(engine.DirsOf(c.StateDir).Workspaces, volumes.Options{})
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
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	err = standalone.WithWorkspaces(t.Context(), &cli.App{Stderr: io.Discard}, c, func(cl *client.Client) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		in, err := cl.Workspaces.Files("w").Read(ctx, "f", client.Range{})
		if err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, in, 1<<20); err != nil {
			t.Error(err)
		}
		cancel()
		// Data sent before the cancellation may still arrive.
		if n, err := io.CopyN(io.Discard, in, 1<<30); !errors.Is(err, context.Canceled) {
			t.Errorf("read %d bytes after the context ended, error %v, want %v", n, err, context.Canceled)
		}
		return in.Close()
	})
	if err != nil {
		t.Error(err)
	}
}
