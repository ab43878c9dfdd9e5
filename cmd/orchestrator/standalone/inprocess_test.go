//go:build linux

package standalone

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

func TestPatientConnIgnoresFutureDeadlines(t *testing.T) {
	past := time.Unix(1, 0)
	for in, want := range map[time.Time]time.Time{past: past, {}: {}, time.Now().Add(time.Hour): {}} {
		if got := pastOnly(in); !got.Equal(want) {
			t.Errorf("pastOnly(%v) = %v, want %v", in, got, want)
		}
	}
	ours, theirs := net.Pipe()
	defer ours.Close()
	c := patientConn{theirs}
	defer c.Close()
	if err := errors.Join(c.SetDeadline(past), c.SetReadDeadline(past), c.SetWriteDeadline(past)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read after its deadline = %v, want %v", err, os.ErrDeadlineExceeded)
	}
}

func TestPipeListenerRefusesAfterClose(t *testing.T) {
	l := &pipeListener{accept: make(chan net.Conn), closed: make(chan struct{})}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept = %v, want %v", err, net.ErrClosed)
	}
	if _, err := l.dial(t.Context(), "", ""); !errors.Is(err, net.ErrClosed) {
		t.Errorf("dial = %v, want %v", err, net.ErrClosed)
	}
}

func TestWithImagesLeavesNothing(t *testing.T) {
	c := config.Default()
	c.StateDir = t.TempDir()
	a := &cli.App{Stderr: io.Discard, Lookup: func(string) (string, bool) { return "", false }}
	for _, need := range []ImageNeeds{{}, {Registry: true}, {Removal: true, Templates: true}} {
		err := WithImages(t.Context(), a, c, need, func(cl *client.Client) error {
			list, err := cl.Images.List(t.Context())
			if err != nil || len(list) != 0 {
				t.Errorf("%+v: Images = %v, %v, want none", need, list, err)
			}
			return cl.Images.Remove(t.Context(), "nope")
		})
		if !errdefs.IsNotFound(err) {
			t.Errorf("%+v: RemoveImage = %v, want NotFound", need, err)
		}
		if left, err := os.ReadDir(filepath.Join(c.StateDir, RunsDir)); err != nil || len(left) != 0 {
			t.Errorf("%+v: runs = %v, %v; want none", need, left, err)
		}
	}
}

func TestWithImagesFailsWhileServerRuns(t *testing.T) {
	c := config.Default()
	c.StateDir = t.TempDir()
	lock, err := store.LockDir(c.StateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	held, err := LockFile(filepath.Join(c.StateDir, ImagesLock), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	err = WithImages(t.Context(), &cli.App{Stderr: io.Discard}, c, ImageNeeds{}, func(*client.Client) error {
		t.Error("WithImages called its function while a server holds the images, want a refusal")
		return nil
	})
	if _, served := errors.AsType[*HeldByServerError](err); !served {
		t.Errorf("WithImages = %v, want a HeldByServerError", err)
	}
}
