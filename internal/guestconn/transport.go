package guestconn

import (
	"io"
	"sync"
)

// transport is what a yamux session reads and writes: the pipes, with frames that never make it
// wait inside of one, and a record of the first error.
type transport struct {
	rwc io.ReadWriteCloser
	in  frames // used only by the goroutine that reads

	mu    sync.Mutex
	first error
}

func newTransport(rwc io.ReadWriteCloser) *transport {
	return &transport{rwc: rwc, in: frames{r: rwc}}
}

func (t *transport) Read(b []byte) (int, error) {
	n, err := t.in.Read(b)
	return n, t.note(err)
}

func (t *transport) Write(b []byte) (int, error) {
	n, err := t.rwc.Write(b)
	return n, t.note(err)
}

func (t *transport) Close() error { return t.rwc.Close() }

// note keeps the first error: later ones only follow from it.
func (t *transport) note(err error) error {
	if err == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first == nil {
		t.first = err
	}
	return err
}

func (t *transport) cause() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first
}
