package gvisor

import (
	"encoding/json"
	"errors"
	"os"
	"sync"

	"github.com/containerd/errdefs"
)

// Memo is a file that remembers the result of a probe.
type Memo struct{ File string }

type remembered struct {
	Key   string          `json:"key"`
	Found json.RawMessage `json:"found"`
}

// Load reads what was saved under key into v, and reports whether there is such a result. A file that cannot be read or
// decoded holds none.
func (m Memo) Load(key string, v any) bool {
	text, err := os.ReadFile(m.File)
	if err != nil {
		return false
	}
	var had remembered
	return json.Unmarshal(text, &had) == nil && had.Key == key && json.Unmarshal(had.Found, v) == nil
}

// Save replaces the remembered result. A reader sees the old or the new one.
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

// Once keeps the result of a probe that answered. A probe that failed because the engine was unavailable is repeated at
// the next call. Calls wait for one another. The zero value is ready.
type Once[T any] struct {
	mu    sync.Mutex
	done  bool
	found T
	err   error
}

// Do returns the result of find, or of an earlier call of it.
func (o *Once[T]) Do(find func() (T, error)) (T, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.done {
		o.found, o.err = find()
		o.done = !errdefs.IsUnavailable(o.err)
	}
	return o.found, o.err
}
