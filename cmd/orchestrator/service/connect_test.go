package service

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// patience is how long something may take on a loaded machine.
const patience = 2 * time.Minute

// A command that runs right after a server was started must find it.
func TestAwaitStartWaitsForStartingServer(t *testing.T) {
	dir := t.TempDir()
	sock := filepath.Join(dir, "sock")
	a := &cli.App{Lookup: func(string) (string, bool) { return "", false }}
	c := config.Config{StateDir: filepath.Join(dir, "state"), Listen: "unix:" + sock}
	a.AwaitStart(t.Context(), c, patience) // no server holds the state directory: nothing to wait for
	lock, err := store.LockDir(c.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	waited := make(chan error, 1)
	go func() {
		a.AwaitStart(t.Context(), c, patience)
		conn, err := net.Dial("unix", sock)
		if err == nil {
			err = conn.Close()
		}
		waited <- err
	}()
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
}

// A second "orchestrator down" waits for the first.
func TestLockStateWaitsForHolder(t *testing.T) {
	dir := t.TempDir()
	held, err := store.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	a := &cli.App{Stderr: io.Discard}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockState(gone, a, dir); err == nil {
		t.Fatal("lockState succeeded while another one holds the lock, want an error")
	}
	got := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		lock, err := lockState(ctx, a, dir)
		if err == nil {
			err = lock.Unlock()
		}
		got <- err
	}()
	if err := held.Unlock(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}
