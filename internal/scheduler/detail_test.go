package scheduler

import (
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

func TestLostLeaseKeepsTheDriversReason(t *testing.T) {
	t.Parallel()
	const why = "its node evicted the pod"
	w := newWorld(t)
	s := w.start(t)
	l, other := s.acquire(t), s.acquire(t)
	w.host.KillFor(l.ID, why)
	if got := l.LostDetail(); got != why {
		t.Errorf("LostDetail of a dead sandbox = %q, want %q", got, why)
	}
	if err := s.End(t.Context(), other, Removed, true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the lease ended", func() bool { return s.row(t, l.ID).State == store.Gone })
	if row := s.row(t, l.ID); row.Reason != Lost || row.Lease.Detail != why {
		t.Errorf("row = %q with detail %q, want %q with %q", row.Reason, row.Lease.Detail, Lost, why)
	}
	if row := s.row(t, other.ID); row.Lease.Detail != "" {
		t.Errorf("detail of a removed sandbox = %q, want none", row.Lease.Detail)
	}
	if _, err := s.Lease(t.Context(), "me", l.ID); err == nil || !strings.HasSuffix(err.Error(), "is gone: lost: "+why) {
		t.Errorf("Lease of the lost one = %v, want the reason", err)
	}
	if got := l.Cause(); got == nil || !strings.HasSuffix(got.Error(), ": "+why) {
		t.Errorf("Cause = %v, want the reason", got)
	}
}
