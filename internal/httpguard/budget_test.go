package httpguard

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

func TestPaceDeadline(t *testing.T) {
	p := Pace{Stall: time.Hour, Grace: 10 * time.Second, Most: time.Minute, Rate: 1000}
	began := time.Now()
	for got, want := range map[int]time.Duration{0: 10 * time.Second, 5000: 15 * time.Second, 1 << 30: time.Minute} {
		if at := p.deadline(began, got).Sub(began); at != want {
			t.Errorf("deadline after %d bytes = %s, want %s", got, at, want)
		}
	}
	p.Stall = time.Second
	if at := p.deadline(began.Add(-5*time.Second), 0); time.Until(at) > time.Second {
		t.Errorf("deadline of a body that stalls is in %s", time.Until(at))
	}
}

func TestBudgetReservesShares(t *testing.T) {
	b := NewBodyBudget(1<<20, 512<<10)
	op := caller.Principal{Caller: "ops", Operator: true}
	ann, ben, eve := caller.Principal{Caller: "ann"}, caller.Principal{Caller: "ben"}, caller.Principal{Caller: "eve"}
	for _, c := range []struct {
		who  caller.Principal
		n    int64
		says string
	}{
		{ann, 512<<10 + 1, "requests.caller_bodies"},
		{ann, 512 << 10, ""},
		{ann, 1, "requests.caller_bodies"},
		{ben, 128<<10 + 1, "requests.bodies"},
		{ben, 128 << 10, ""}, // 5/8 of the total: the share of callers' large bodies is full
		{eve, smallHeld + 1, "requests.bodies"},
		{eve, smallHeld, ""}, // small bodies still fit
		{ben, smallHeld, ""},
		{eve, 1, "requests.bodies"}, // 3/4 of the total: the rest is for operators
		{op, 128<<10 + 1, "requests.bodies"},
		{op, 128 << 10, ""},
		{op, smallHeld, ""},
	} {
		err := b.Charge(c.who, 0, c.n)
		if (err == nil) != (c.says == "") ||
			err != nil && (!strings.Contains(err.Error(), c.says) || !errdefs.IsResourceExhausted(err)) {
			t.Errorf("take %d for %s = %v, want %q", c.n, c.who.Caller, err, c.says)
		}
	}
	b.Release(ann, 512<<10)
	if err := b.Charge(eve, smallHeld, smallHeld); err != nil {
		t.Errorf("what was given back: %v", err)
	}
}
