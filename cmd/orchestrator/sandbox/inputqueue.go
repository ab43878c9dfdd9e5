package sandbox

import (
	"io"
	"sync"
	"time"
)

const (
	// maxTypedAhead bounds the typed bytes that wait; then the terminal is not read.
	maxTypedAhead = 1 << 20
	// leaveTime bounds the delivery of typed input after detaching.
	leaveTime = time.Second
)

// inputQueue sends typed input without blocking its reader. Detach keys are noticed even while the
// connection is away or the command does not read.
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

// run sends input until that fails.
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

// add queues input. It waits while the queue is full. Its error says why nothing is sent any more.
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

// drain waits until all input is sent, at most for a time.
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
