package sandbox

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// stuck accepts nothing until it is closed, like a terminal whose connection is lost or whose
// command does not read.
type stuck struct{ closed chan struct{} }

func (s stuck) Write([]byte) (int, error) {
	<-s.closed
	return 0, io.ErrClosedPipe
}

// taker records what is typed.
type taker struct {
	mu  sync.Mutex
	got bytes.Buffer
}

func (t *taker) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if bytes.IndexByte(p, '!') >= 0 {
		return 0, errors.New("over")
	}
	return t.got.Write(p)
}

// detaches types keys one by one and waits until they detach.
func detaches(t *testing.T, to io.Writer, keys string) {
	t.Helper()
	in, keyboard := io.Pipe()
	defer in.Close()
	s := &terminalSession{app: &cli.App{Stdin: in}, screen: screen{in: os.Stdin, out: os.Stdout}, keys: []byte("\x10\x11")}
	detached := make(chan struct{})
	go s.copyInput(to, detached) // ends with its input
	go func() {
		for _, k := range []byte(keys + "\x10\x11") {
			if _, err := keyboard.Write([]byte{k}); err != nil {
				return
			}
		}
	}()
	select {
	case <-detached:
	case <-time.After(30 * time.Second):
		t.Fatal("the keys that detach had no effect, want a detach")
	}
}

func TestInputQueueDetachesWhileBlocked(t *testing.T) {
	t.Parallel()
	to := stuck{make(chan struct{})}
	defer close(to.closed)
	detaches(t, to, "\x03\x03 nothing is taken"+strings.Repeat(".", 2000))
}

func TestInputQueueDeliversBeforeDetach(t *testing.T) {
	t.Parallel()
	to := &taker{}
	const want = "one by one"
	detaches(t, to, want)
	if got := to.got.String(); got != want {
		t.Errorf("typed %q, want %q", got, want)
	}
}

func TestInputQueueEndsWithTerminal(t *testing.T) {
	t.Parallel()
	in := newInputQueue(&taker{})
	over := make(chan struct{})
	go func() { defer close(over); in.run() }()
	if err := in.add([]byte("a!")); err != nil {
		t.Error(err)
	}
	<-over
	in.drain(time.Hour)
	if in.add([]byte("b")) == nil {
		t.Error("add after the end = nil, want an error")
	}
}
