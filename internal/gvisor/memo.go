package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// Memo is a file that stores the result of a probe.
type Memo struct{ File string }

type remembered struct {
	Key   string          `json:"key"`
	Found json.RawMessage `json:"found"`
}

// Load decodes the result that was saved under key into v, and reports whether there was one. A
// file that cannot be read or decoded counts as missing.
func (m Memo) Load(key string, v any) bool {
	text, err := os.ReadFile(m.File)
	if err != nil {
		return false
	}
	var had remembered
	return json.Unmarshal(text, &had) == nil && had.Key == key && json.Unmarshal(had.Found, v) == nil
}

// Save atomically replaces the stored result.
func (m Memo) Save(key string, v any) error {
	found, err := json.Marshal(v)
	if err != nil {
		return err
	}
	text, err := json.Marshal(remembered{Key: key, Found: found})
	if err != nil {
		return err
	}
	return hostfile.Replace(m.File, text, 0o600)
}

// Once stores the result of a probe. A probe that failed because the engine was unavailable is
// repeated at the next call. Calls run one at a time. The zero value is ready to use.
type Once[T any] struct {
	mu    sync.Mutex
	done  bool
	found T
	err   error
}

// Do returns the result of find, or of an earlier call.
func (o *Once[T]) Do(find func() (T, error)) (T, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.done {
		o.found, o.err = find()
		o.done = !errdefs.IsUnavailable(o.err)
	}
	return o.found, o.err
}

// LockTrials opens and locks the file that serialises trials of several processes. The lock is held
// until the file is closed. If another process holds it, LockTrials waits until ctx ends, or
// returns nil without wait.
func LockTrials(ctx context.Context, path string, wait bool) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock trials of class gvisor: %w", err)
	}
	locked := wait
	if wait {
		err = hostfile.Lock(ctx, f)
	} else {
		locked, err = hostfile.TryLock(f, unix.LOCK_EX)
	}
	if err != nil || !locked {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
