package guestconn

import (
	"bytes"
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRedialerReplacesLostMux(t *testing.T) {
	t.Parallel()
	var dialled, replaced atomic.Int32
	var guest *bridged
	r := NewRedialer(RedialOptions{
		Dial: func(context.Context) (*Mux, error) {
			if dialled.Add(1) == 2 {
				return nil, errors.New("not yet")
			}
			guest = bridge(t, echo)
			return guest.mux, nil
		},
		Final:     func(error) bool { return false },
		Redialled: func() { replaced.Add(1) },
	})
	openTogether := func() {
		t.Helper()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				c, err := r.Open(soon(t))
				if err != nil {
					t.Errorf("Open = %v", err)
					return
				}
				_ = c.Close()
			})
		}
		wg.Wait()
	}
	openTogether()
	if n := dialled.Load(); n != 1 {
		t.Errorf("8 streams dialled %d times, want once", n)
	}
	guest.cancel(nil)
	<-guest.mux.Done()
	openTogether()
	if d, n := dialled.Load(), replaced.Load(); d != 3 || n != 1 {
		t.Errorf("after a loss: dialled %d times and reported %d, want 3 and 1", d, n)
	}
	if !r.Cut(t.Context()) || r.Cut(t.Context()) {
		t.Error("Cut must report a mux once")
	}
	openTogether()
	if n := replaced.Load(); n != 1 {
		t.Errorf("a cut was reported as a loss: %d, want 1", n)
	}
	r.Close()
	if _, err := r.Open(soon(t)); !errors.Is(err, ErrClosed) {
		t.Errorf("Open after Close = %v, want %v", err, ErrClosed)
	}
}

func TestRedialerStopsAtFinalFailureAndEndOfContext(t *testing.T) {
	t.Parallel()
	refused, cause := errors.New("refused"), errors.New("gave up")
	r := NewRedialer(RedialOptions{
		Dial:  func(context.Context) (*Mux, error) { return nil, refused },
		Final: func(err error) bool { return errors.Is(err, refused) },
	})
	if _, err := r.Open(soon(t)); !errors.Is(err, refused) {
		t.Errorf("Open with a final failure = %v, want %v", err, refused)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	r = NewRedialer(RedialOptions{
		Dial:  func(context.Context) (*Mux, error) { cancel(cause); return nil, refused },
		Final: func(error) bool { return false },
	})
	if _, err := r.Open(ctx); !errors.Is(err, cause) || !errors.Is(err, refused) {
		t.Errorf("Open with a context that ended = %v, want %v and %v", err, cause, refused)
	}
}

func TestRedialerPausesForAllCallersTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var dialled atomic.Int32
		r := NewRedialer(RedialOptions{
			Dial:  func(context.Context) (*Mux, error) { dialled.Add(1); return nil, errors.New("not now") },
			Final: func(error) bool { return false },
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, err := r.Open(ctx); err == nil {
					t.Error("Open succeeded, want the error of the dial")
				}
			})
		}
		wg.Wait()
		if got, most := dialled.Load(), int32(time.Minute/lastDial)+10; got > most {
			t.Errorf("8 callers dialled %d times in a minute, want at most %d", got, most)
		}
	})
}

func TestKeepPausesBetweenDials(t *testing.T) {
	for name, dial := range map[string]func() (*Mux, error){
		"failing": func() (*Mux, error) { return nil, errors.New("not now") },
		"lost at once": func() (*Mux, error) {
			host, guest := net.Pipe()
			_ = guest.Close()
			return newMux(host)
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer emptyTimerPool()
			synctest.Test(t, func(t *testing.T) {
				dialled := 0
				r := NewRedialer(RedialOptions{Dial: func(context.Context) (*Mux, error) { dialled++; return dial() }})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				r.Keep(ctx)
				if least, most := int(time.Minute/lastDial), int(time.Minute/lastDial)+10; dialled < least || dialled > most {
					t.Errorf("Keep dialled %d times in a minute, want %d to %d", dialled, least, most)
				}
			})
		})
	}
}

func TestStderrIsBoundedAndNamesTheReason(t *testing.T) {
	t.Parallel()
	var s Stderr
	cut := errors.New("cut")
	if err := s.Reason(cut); !errors.Is(err, cut) {
		t.Errorf("Reason without output = %v, want %v", err, cut)
	}
	if err := s.Reason(nil); err == nil {
		t.Error("Reason without output and error = nil, want an error")
	}
	for range 100 {
		if n, err := s.Write(bytes.Repeat([]byte("x"), 100)); n != 100 || err != nil {
			t.Fatalf("Write = %d, %v; want 100 and nil", n, err)
		}
	}
	if len(s.text) != maxStderr {
		t.Errorf("%d bytes kept, want %d", len(s.text), maxStderr)
	}
	if err := s.Reason(cut); !strings.Contains(err.Error(), strings.Repeat("x", maxStderr)) {
		t.Errorf("Reason = %v, want what was written", err)
	}
}
