package httpguard

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// waits returns how long n calls of Wait take one after the other.
func waits(p *RefusalPacer, principal caller.Principal, n int) time.Duration {
	began := time.Now()
	for range n {
		p.Wait(principal, 1)
	}
	return time.Since(began)
}

func TestRefusalPacerDelaysOnlyCallerOverRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRefusalPacer()
		mallory, bob := caller.Principal{Caller: "mallory"}, caller.Principal{Caller: "bob"}
		if got := waits(p, mallory, refusalBurst); got != 0 {
			t.Errorf("%d refusals took %v, want no delay", refusalBurst, got)
		}
		if got, want := waits(p, mallory, 2*refusalRate), 2*time.Second; got.Round(time.Millisecond) != want {
			t.Errorf("%d refusals over the burst took %v, want %v", 2*refusalRate, got, want)
		}
		if got := waits(p, bob, refusalBurst); got != 0 {
			t.Errorf("refusals of another caller took %v, want no delay", got)
		}
		operator := caller.Principal{Caller: "mallory", Operator: true}
		if got := waits(p, operator, 10*refusalBurst); got != 0 {
			t.Errorf("refusals of an operator took %v, want no delay", got)
		}
	})
}

func TestRefusalPacerBoundsDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRefusalPacer()
		longest := make(chan time.Duration)
		const clients = 20 * refusalBurst
		for range clients {
			go func() { longest <- waits(p, caller.Principal{}, 1) }()
		}
		var got time.Duration
		for range clients {
			got = max(got, <-longest)
		}
		if got != maxRefusalDelay {
			t.Errorf("the longest delay was %v, want %v", got, maxRefusalDelay)
		}
		began := time.Now()
		p.Wait(caller.Principal{}, 100*refusalBurst)
		if got := time.Since(began); got > maxRefusalDelay {
			t.Errorf("many refusals at once were delayed %v, want at most %v", got, maxRefusalDelay)
		}
	})
}

func TestRefusalPacerChargesEveryRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRefusalPacer()
		mallory := caller.Principal{Caller: "mallory"}
		const n = 10 * refusalBurst
		p.Wait(mallory, n)
		p.Wait(mallory, 1)
		if got, want := waits(p, mallory, 1), maxRefusalDelay; got != want {
			t.Errorf("after %d refusals at once, the third answer waits %v, want %v", n, got, want)
		}
	})
}

func TestAnonymousWaitersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRefusalPacer()
		const most, clients = 3, refusalBurst + 10
		waited := make(chan bool)
		for range clients {
			go func() { waited <- p.WaitAmong(caller.Principal{}, 1, most) }()
		}
		got := 0
		for range clients {
			if <-waited {
				got++
			}
		}
		if want := refusalBurst + most; got != want {
			t.Errorf("%d of %d requests without a caller were answered, want %d", got, clients, want)
		}
		if !p.WaitAmong(caller.Principal{}, 1, most) {
			t.Error("WaitAmong = false after the others left, want true")
		}
	})
}

func TestRefusalPacerForgetsCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewRefusalPacer()
		for i := range 3 * maxPacedCallers {
			p.Wait(caller.Principal{Caller: fmt.Sprint("caller", i)}, 1)
			time.Sleep(time.Second / refusalRate) // the caller's refusals are forgiven
		}
		if got := len(p.callers); got > maxPacedCallers {
			t.Errorf("%d callers are remembered, want at most %d", got, maxPacedCallers)
		}
	})
}

// Reservations that are canceled leave no debt, also when many are made at once.
func TestConcurrentRefusalsLeaveBoundedDebt(t *testing.T) {
	p := NewRefusalPacer()
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 2000 {
				p.reserve("hog", 5)
			}
		})
	}
	all.Wait()
	most := float64(p.Rate)*maxRefusalDelay.Seconds() + 1
	if debt := -p.limiter("hog").Tokens(); debt > most {
		t.Errorf("a debt of %.0f refusals is left, want at most %.0f", debt, most)
	}
}
