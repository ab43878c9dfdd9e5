package ptysocket

import (
	"io"
	"sync"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// keyQueue is a queue of bytes that a client typed and the terminal has not accepted yet, at most
// v1.TerminalWindow. It lets the connection's reader continue while a command reads nothing, so
// that control messages are still handled. All methods may be called concurrently.
type keyQueue struct {
	mu    sync.Mutex
	more  sync.Cond
	buf   []byte
	got   int64 // bytes from the client
	taken int64 // bytes accepted by the terminal
	ended bool
}

func newKeys() *keyQueue {
	k := &keyQueue{}
	k.more.L = &k.mu
	return k
}

// add appends typed bytes. It reports false if they exceed the window.
func (k *keyQueue) add(b []byte) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.got+int64(len(b))-k.taken > v1.TerminalWindow {
		return false
	}
	k.got += int64(len(b))
	k.buf = append(k.buf, b...)
	k.more.Signal()
	return true
}

// accepted records how many bytes the terminal has accepted in total.
func (k *keyQueue) accepted(total int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.taken = total
}

// acceptedTotal returns how many bytes the terminal has accepted.
func (k *keyQueue) acceptedTotal() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.taken
}

// end makes Read return io.EOF after the queued bytes.
func (k *keyQueue) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	k.more.Broadcast()
}

// Read implements io.Reader. It waits for typed bytes.
func (k *keyQueue) Read(p []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.buf) == 0 {
		if k.ended {
			return 0, io.EOF
		}
		k.more.Wait()
	}
	n := copy(p, k.buf)
	if k.buf = k.buf[n:]; len(k.buf) == 0 {
		k.buf = nil
	}
	return n, nil
}
