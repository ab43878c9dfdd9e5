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
		t.Errorf("deadline of a stalled body is in %s, want at most 1s", time.Until(at))
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
		t.Errorf("Charge of released bytes: %v", err)
	}
}

// One answer of a caller may be larger than the caller's bound. Operators' small answers have none.
func TestAnswerBudgetAdmitsOneLargeAnswer(t *testing.T) {
	b := NewAnswerBudget()
	op := caller.Principal{Caller: "ops", Operator: true}
	ann, ben := caller.Principal{Caller: "ann"}, caller.Principal{Caller: "ben"}
	for _, c := range []struct {
		who  caller.Principal
		n    int64
		says string
	}{
		{ann, maxCallerAnswers + 1, ""},
		{ann, 1, "your requests"},
		{ben, maxAnswers, "all requests"},
		{ben, maxCallerAnswers, ""},
		{op, maxCallerAnswers + 1, ""},
		{op, smallHeld + 1, "your requests"},
		{op, smallHeld, ""},
	} {
		if err := b.Charge(c.who, 0, c.n); (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("Charge(%s, %d) = %v, want %q", c.who.Caller, c.n, err, c.says)
		}
	}
}

func TestAccountReturnsWhatItCharged(t *testing.T) {
	b := NewAnswerBudget()
	a := &Account{b: b, p: caller.Principal{Caller: "ann"}}
	if err := a.Charge(10); err != nil {
		t.Fatal(err)
	}
	if err := a.Charge(5); err != nil {
		t.Fatal(err)
	}
	a.Release(10)
	if held, _, _ := b.Held(); held != 5 {
		t.Errorf("%d bytes are held, want 5", held)
	}
	a.Close()
	a.Close()
	if held, _, callers := b.Held(); held != 0 || callers != 0 {
		t.Errorf("%d bytes of %d callers are held after Close, want none", held, callers)
	}
	var none *Account
	if none.Charge(1<<60) != nil {
		t.Error("Charge without a budget failed, want no error")
	}
	none.Release(1)
	none.Close()
}
