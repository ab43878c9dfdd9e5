package scheduler

import (
	"errors"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

func TestWaitThatExpiresInTheStoreIsUnavailable(t *testing.T) {
	s := newWorld(t).start(t)
	held := s.acquire(t)
	eventually(t, "a warm sandbox", func() bool { return s.Pools()[0].Warm == 1 })

	// A transaction that does not end keeps the next one waiting.
	entered, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		_, err := s.store.Update(t.Context(), held.ID, func(*store.Sandbox) error {
			close(entered)
			<-release
			return nil
		})
		done <- err
	}()
	<-entered
	// The removal of the sandbox that was taken needs the store, so let it go on after the wait.
	const wait = 100 * time.Millisecond
	time.AfterFunc(10*wait, func() { close(release) })
	_, err := s.tryAcquire(t.Context(), func(r *Request) { r.Wait = wait })
	if !errdefs.IsUnavailable(err) || errdefs.IsDeadlineExceeded(err) {
		t.Errorf("Acquire = %v, want an error of class Unavailable only", err)
	}
	if e, ok := errors.AsType[*usererror.Error](err); !ok || e.RetryAfter <= 0 {
		t.Errorf("Acquire = %#v, want a *usererror.Error with RetryAfter", err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
