//go:build kubernetes

package kubernetes

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// fenced returns a driver with an epoch, and the reports that it was superseded.
func fenced(t *testing.T, o Options, epoch int64) (*Driver, chan error) {
	t.Helper()
	reports := make(chan error, 16)
	o.Epoch = epoch
	o.Superseded = func(err error) {
		select {
		case reports <- err:
		default:
		}
	}
	return opened(t, o), reports
}

// TestOlderDriverIsFencedFromAdoptedPod lets two drivers hold one pod, as a paused process and its
// successor do. From the adoption on, the older one can neither use nor delete the pod.
func TestOlderDriverIsFencedFromAdoptedPod(t *testing.T) {
	o := options(t, newNamespace(t, "baseline"))
	older, reports := fenced(t, o, 1)
	newer, _ := fenced(t, o, 2)
	spec := specOf(t)
	stale, err := older.Create(bounded(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	before := guest.New(stale)
	running := runForever(t, before)
	s, err := newer.Adopt(bounded(t), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Destroy(ctx); err != nil {
			t.Error(err)
		}
	})
	after := guest.New(s)
	if _, err := after.Ping(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-running; err == nil {
		t.Error("a command of the older driver succeeded after the adoption, want an error")
	}
	wantGuestRefusesOlder(t, before)
	if err := stale.Destroy(bounded(t)); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Destroy by the older driver = %v, want FailedPrecondition", err)
	}
	if err := older.Remove(bounded(t), spec.ID); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Remove by the older driver = %v, want FailedPrecondition", err)
	}
	if _, err := older.Adopt(bounded(t), spec.ID); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Adopt by the older driver, which holds it = %v, want AlreadyExists", err)
	}
	if len(reports) == 0 {
		t.Error("the older driver sent 0 reports that it was superseded, want at least one")
	}
	if err := stale.Release(); err != nil {
		t.Error(err)
	}
	if _, err := older.Adopt(bounded(t), spec.ID); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Adopt by the older driver = %v, want FailedPrecondition", err)
	}
	if err := after.Claim(bounded(t), wire.Claim{Lease: "new"}); err != nil {
		t.Errorf("Claim by the newer driver: %v, want no error", err)
	}
	p, err := newer.api.get(bounded(t), podName(spec.ID))
	if err != nil || epochOf(p) != 2 || p.Status.Phase != corev1.PodRunning {
		t.Errorf("pod = epoch %d, phase %s, %v; want 2, running", epochOf(p), p.Status.Phase, err)
	}
}

// runForever starts a command and returns a channel for the error with which it ends.
func runForever(t *testing.T, c *guest.Client) <-chan error {
	t.Helper()
	running := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		_, err := c.Exec(bounded(t), wire.Command{Argv: []string{"sleep", "300"}},
			guest.IO{Started: func(wire.Started) { close(begun) }})
		running <- err
	}()
	<-begun
	return running
}

// wantGuestRefusesOlder checks that a guest refuses requests of a driver that was superseded.
func wantGuestRefusesOlder(t *testing.T, older *guest.Client) {
	t.Helper()
	for what, do := range map[string]func() error{
		"claim": func() error { return older.Claim(bounded(t), wire.Claim{Lease: "old"}) },
		"end":   func() error { return older.End(bounded(t)) },
		"ping":  func() error { _, err := older.Ping(bounded(t)); return err },
	} {
		if err := do(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "newer host") {
			t.Errorf("%s by the older driver = %v, want FailedPrecondition", what, err)
		}
	}
}

// TestClaimNeedsNoRequestToTheServer measures claims, which the guest fences.
func TestClaimNeedsNoRequestToTheServer(t *testing.T) {
	o := options(t, newNamespace(t, "baseline"))
	d, _ := fenced(t, o, 1)
	c := guest.New(start(t, d, specOf(t)))
	var took []time.Duration
	for range 200 {
		began := time.Now()
		if err := c.Claim(bounded(t), wire.Claim{Lease: "one"}); err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	p50, p99 := took[len(took)/2], took[len(took)*99/100]
	t.Logf("claim: p50 %v, p99 %v", p50, p99)
	if p50 > 30*time.Millisecond {
		t.Errorf("p50 of a claim = %v, want at most 30 ms", p50)
	}
}
