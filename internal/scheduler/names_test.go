package scheduler

import (
	"testing"

	"github.com/containerd/errdefs"
)

// TestNameIsFreeAgain checks that a name is free after a failed lease and after the sandbox's end,
// and that it is kept over a restart.
func TestNameIsFreeAgain(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	named := func(r *Request) { r.Lease.Name = "x" }
	full := func(r *Request) { named(r); r.Quotas.Memory = 1 }
	if _, err := s.tryAcquire(t.Context(), full); !errdefs.IsResourceExhausted(err) {
		t.Fatalf("Acquire over the quota = %v, want ResourceExhausted", err)
	}
	l, err := s.tryAcquire(t.Context(), named)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Named(l.Caller, "x"); got != l.ID {
		t.Errorf("Named(x) = %q, want %q", got, l.ID)
	}
	if got := s.Named("another", "x"); got != "" {
		t.Errorf("Named(x) of another caller = %q, want none", got)
	}
	if _, err := s.tryAcquire(t.Context(), named); !errdefs.IsAlreadyExists(err) {
		t.Errorf("second Acquire of the name = %v, want AlreadyExists", err)
	}
	s.stop()
	s = w.start(t)
	if got := s.Named(l.Caller, "x"); got != l.ID {
		t.Errorf("Named(x) after a restart = %q, want %q", got, l.ID)
	}
	if err := s.End(t.Context(), s.Live(l.ID), Removed, true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.tryAcquire(t.Context(), named); err != nil {
		t.Errorf("Acquire of a name whose sandbox is gone = %v, want success", err)
	}
}
