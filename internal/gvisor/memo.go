package gvisor

import (
	"encoding/json"
	"errors"
	"os"
	"sync"

	"github.com/containerd/errdefs"
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
	next := m.File + ".new"
	return errors.Join(os.WriteFile(next, text, 0o600), os.Rename(next, m.File))
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
