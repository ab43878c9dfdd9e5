package api

import (
	"io"
	"sync"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// keys is a queue of bytes that a client typed and the terminal has not accepted yet, at most
// v1.TerminalWindow. It lets the connection's reader continue while a command reads nothing, so
// that control messages are still handled. All methods may be called concurrently.
type keys struct {
	mu    sync.Mutex
	more  sync.Cond
	buf   []byte
	got   int64 // bytes from the client
	taken int64 // bytes accepted by the terminal
	ended bool
}

func newKeys() *keys {
	k := &keys{}
	k.more.L = &k.mu
	return k
}

// add appends typed bytes. It reports false if they exceed the window.
func (k *keys) add(b []byte) bool {
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

// took records how many bytes the terminal has accepted in total.
func (k *keys) took(total int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.taken = total
}

// total returns how many bytes the terminal has accepted.
func (k *keys) total() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.taken
}

// end makes Read return io.EOF after the queued bytes.
func (k *keys) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	k.more.Broadcast()
}

// Read implements io.Reader. It waits for typed bytes.
func (k *keys) Read(p []byte) (int, error) {
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
