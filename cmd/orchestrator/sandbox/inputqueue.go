package sandbox

import (
	"io"
	"sync"
	"time"
)

const (
	// maxTypedAhead is how much is typed ahead before no more is read of our terminal.
	maxTypedAhead = 1 << 20
	// leaveTime is how long what was typed may still take when somebody detaches.
	leaveTime = time.Second
)

// inputQueue types for somebody who need not wait for it: while nothing is taken,
// because there is no connection or the command does not read, the keys that
// detach are heard all the same.
type inputQueue struct {
	to io.Writer

	mu      sync.Mutex
	changed sync.Cond
	ahead   []byte
	writing bool
	err     error
}

func newInputQueue(to io.Writer) *inputQueue {
	t := &inputQueue{to: to}
	t.changed.L = &t.mu
	return t
}

// run types until that fails.
func (t *inputQueue) run() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.err == nil {
		for len(t.ahead) == 0 {
			t.changed.Wait()
		}
		keys := t.ahead
		t.ahead, t.writing = nil, true
		t.mu.Unlock()
		_, err := t.to.Write(keys)
		t.mu.Lock()
		t.writing, t.err = false, err
		t.changed.Broadcast()
	}
}

// add has keys typed. It waits while very much is ahead of them; an error is
// why nothing is typed any more.
func (t *inputQueue) add(keys []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.err == nil && len(t.ahead) >= maxTypedAhead {
		t.changed.Wait()
	}
	t.ahead = append(t.ahead, keys...)
	t.changed.Broadcast()
	return t.err
}

// drain waits until all is typed, for a time.
func (t *inputQueue) drain(within time.Duration) {
	late := false
	timer := time.AfterFunc(within, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		late = true
		t.changed.Broadcast()
	})
	defer timer.Stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.err == nil && !late && (t.writing || len(t.ahead) > 0) {
		t.changed.Wait()
	}
}
