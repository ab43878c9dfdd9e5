package kubernetes

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// TestEpochIsAtLeastTheTime checks that one new holder makes up for a Lease whose epoch went back,
// and that a number that no holder has written does not count.
func TestEpochIsAtLeastTheTime(t *testing.T) {
	t.Parallel()
	for _, before := range []int64{-1, 0, 7, maxEpoch / 2, math.MaxInt64 - 1, math.MaxInt64} {
		t.Run(fmt.Sprint(before), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &leaseServer{}
				s.set(func(l *coordinationv1.Lease) {
					l.Annotations = map[string]string{annotationEpoch: strconv.FormatInt(before, 10)}
				})
				want := time.Now().Unix()
				if before == maxEpoch/2 {
					want = before + 1
				}
				if got, _ := newTestCandidate(t, s, "").acquire(t, none); got != want {
					t.Errorf("epoch = %d, want %d", got, want)
				}
			})
		})
	}
}

// TestLateAnswerDoesNotProlongTheLease lets the server renew the Lease and answer late, and then
// not at all. The holder must report the loss before another process could be active.
func TestLateAnswerDoesNotProlongTheLease(t *testing.T) {
	t.Parallel()
	for _, lease := range []time.Duration{0, time.Minute} {
		for _, late := range []time.Duration{requestTime - time.Millisecond, 5 * time.Second} {
			t.Run(fmt.Sprint(lease, late), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := &leaseServer{}
					c := newTestCandidate(t, s, "")
					want := leaseTime
					if lease > 0 {
						c.opts.LeaseTime, want = lease, lease
					}
					c.acquire(t, none)
					time.Sleep(time.Minute)
					s.mu.Lock()
					s.late = late
					s.mu.Unlock()
					<-c.lost
					s.mu.Lock()
					defer s.mu.Unlock()
					if took := time.Since(s.updated); took >= want || took < renewTime(want) {
						t.Errorf("lost %v after the last renewal, want %v to %v", took, renewTime(want), want)
					}
				})
			})
		}
	}
}

// TestHolderCreatesDeletedLeaseAgain deletes the Lease of a holder. The holder keeps its epoch.
func TestHolderCreatesDeletedLeaseAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &leaseServer{}
		c := newTestCandidate(t, s, "")
		want, _ := c.acquire(t, none)
		time.Sleep(time.Minute)
		s.mu.Lock()
		s.lease = nil
		s.mu.Unlock()
		time.Sleep(time.Minute)
		if len(c.lost) > 0 {
			t.Fatalf("lost = %v, want the Lease created again", <-c.lost)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.lease == nil || holderOf(s.lease) != c.lock.identity || epochOf(s.lease) != want {
			t.Errorf("Lease = %+v, want holder %s and epoch %d", s.lease, c.lock.identity, want)
		}
	})
}

// TestPausedHolderRenewsUnlessReplaced does not renew for longer than a Lease lasts, as a paused
// process does.
func TestPausedHolderRenewsUnlessReplaced(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced %v", replaced), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &leaseServer{}
				c := newTestCandidate(t, s, "")
				if _, err := c.lock.acquire(t.Context()); err != nil {
					t.Fatalf("acquire: %v", err)
				}
				time.Sleep(time.Hour)
				if replaced {
					s.set(func(l *coordinationv1.Lease) { other := "other"; l.Spec.HolderIdentity = &other })
				}
				err := c.lock.keep(t.Context())
				if got := errors.Is(err, errSuperseded); got != replaced || (err != nil) != replaced {
					t.Errorf("keep after an hour = %v, want superseded %v", err, replaced)
				}
			})
		})
	}
}

// TestHungRenewalIsALoss lets a renewal hang whatever its context, as a program that gets
// credentials may.
func TestHungRenewalIsALoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &leaseServer{}
		c := newTestCandidate(t, s, "")
		c.acquire(t, none)
		time.Sleep(time.Minute)
		hung := make(chan struct{})
		s.mu.Lock()
		s.hung = hung
		s.mu.Unlock()
		err := <-c.lost
		s.mu.Lock()
		took := time.Since(s.updated)
		s.mu.Unlock()
		if took >= leaseTime || took < renewTime(leaseTime) {
			t.Errorf("lost %v after %v, want %v to %v", err, took, renewTime(leaseTime), leaseTime)
		}
		close(hung)
	})
}

// TestNewHolderThatCannotRenewEndsInTime stops the server right after its late answer to the
// request that made a process the holder.
func TestNewHolderThatCannotRenewEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &leaseServer{late: requestTime - time.Millisecond}
		s.set(func(*coordinationv1.Lease) {}) // to be acquired by an update
		c := newTestCandidate(t, s, "")
		c.acquire(t, none)
		err := <-c.lost
		s.mu.Lock()
		defer s.mu.Unlock()
		if took := time.Since(s.updated); took >= leaseTime {
			t.Errorf("lost %v after %v, want less than %v", err, took, leaseTime)
		}
	})
}
