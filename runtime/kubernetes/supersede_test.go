package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	coordinationv1 "k8s.io/api/coordination/v1"
)

// TestRefusalEndsTheProcessOnlyIfTheLeaseConfirmsIt checks that the word of one guest does not end
// the service for all.
func TestRefusalEndsTheProcessOnlyIfTheLeaseConfirmsIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*leaseServer)
		want   string // in the reason of the loss; "" for none
	}{
		"confirmed holder": {func(*leaseServer) {}, ""},
		"another holder": {func(s *leaseServer) {
			s.set(func(l *coordinationv1.Lease) { other := "other"; l.Spec.HolderIdentity = &other })
		}, `process "other" holds it`},
		"another epoch": {func(s *leaseServer) {
			s.set(func(l *coordinationv1.Lease) { l.Annotations[annotationEpoch] = "5" })
		}, "its epoch is 5"},
		"no answer": {func(s *leaseServer) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.down = true
		}, ""}, // the renewals decide
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &leaseServer{}
				candidate := newTestCandidate(t, s, "")
				candidate.acquire(t, none)
				c.change(s)
				began := time.Now()
				candidate.Superseded(fmt.Errorf("refused by a pod: %w", errdefs.ErrFailedPrecondition))
				if took := time.Since(began); took > requestTime {
					t.Errorf("Superseded took %v, want at most %v", took, requestTime)
				}
				var got error
				select {
				case got = <-candidate.lost:
				default:
				}
				if name == "no answer" {
					time.Sleep(leaseTime)
					if len(candidate.lost) == 0 {
						t.Errorf("no loss within %v without an answer, want one by the renewals", leaseTime)
					}
				}
				switch {
				case c.want == "" && got != nil, c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want)):
					t.Errorf("lost = %v, want %q", got, c.want)
				case got != nil && (!errdefs.IsUnavailable(got) || errdefs.IsFailedPrecondition(got)):
					t.Errorf("lost = %v, want class Unavailable only", got)
				}
			})
		})
	}
}

func TestRefusalsReadTheLeaseOncePerSecond(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]bool{"confirmed": false, "unreadable": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &leaseServer{}
				c := newTestCandidate(t, s, "")
				c.acquire(t, none)
				s.mu.Lock()
				before := s.gets
				s.down = down
				s.mu.Unlock()
				reads := func(refusals int) int {
					for range refusals {
						c.Superseded(errdefs.ErrFailedPrecondition)
					}
					s.mu.Lock()
					defer s.mu.Unlock()
					return s.gets - before
				}
				first := reads(1) // the library tries again if the server does not answer
				if n := reads(99); first == 0 || n != first {
					t.Errorf("100 refusals sent %d requests, and the first one %d; want those of the first one only", n, first)
				}
			})
		})
	}
}
