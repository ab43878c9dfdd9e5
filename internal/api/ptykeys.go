package api

import (
	"io"
	"sync"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// keys are what a client typed and the terminal has not got yet, at most
// v1.TerminalWindow bytes: whoever reads from the connection never waits for a
// command that reads nothing, so that what is said besides is heard.
type keys struct {
	mu    sync.Mutex
	more  sync.Cond
	buf   []byte
	got   int64 // from the client
	taken int64 // by the terminal
	ended bool
}

func newKeys() *keys {
	k := &keys{}
	k.more.L = &k.mu
	return k
}

// add appends what was typed; false: it is more than may be on its way.
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

// took notes how much the terminal has got.
func (k *keys) took(total int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.taken = total
}

// total is how much the terminal has got.
func (k *keys) total() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.taken
}

// end makes Read end after what is there.
func (k *keys) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ended = true
	k.more.Broadcast()
}

// Read waits for what is typed next.
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
