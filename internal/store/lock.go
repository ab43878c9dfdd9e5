package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// probeTime is far longer than a lock probe takes.
const probeTime = time.Second

// Lock is a process's exclusive lock on a state directory. The kernel releases it when the process
// ends.
type Lock struct{ file *os.File }

// LockDir creates dir (mode 0700) if needed and locks it. If another process holds the lock for
// longer than probeTime, it returns an error of class Unavailable that names the process. The wait
// covers probes, which hold the lock briefly.
func LockDir(dir string) (*Lock, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	if err := hostfile.Lock(ctx, f); err != nil {
		holder := make([]byte, 32)
		n, _ := f.ReadAt(holder, 0) // only for the message
		err = errors.Join(err, f.Close())
		if errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("state directory %s is held by process %s: %w",
				dir, strings.TrimSpace(string(holder[:n])), errdefs.ErrUnavailable)
		}
		return nil, fmt.Errorf("lock state directory %s: %w", dir, err)
	}
	l := &Lock{file: f}
	if err := f.Truncate(0); err != nil {
		return nil, errors.Join(err, l.Unlock())
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, errors.Join(err, l.Unlock())
	}
	return l, nil
}

// Unlock releases the lock.
func (l *Lock) Unlock() error { return l.file.Close() }
