package approval

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// runGate returns a running gate that uses the time of t's synctest bubble. stop stops it; the end
// of the test does so too.
func runGate(t *testing.T, o Options) (w *world, stop func()) {
	t.Helper()
	s, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	o.Store = s
	g, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- g.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return &world{Gate: g, store: s}, stop
}

func TestRequestExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := runGate(t, Options{})
		begin := time.Now()
		slow := w.want(t, call("slow", prompts(t)), OutcomeAsked)
		quick := w.want(t, call("quick", rules(t, Rule{Tool: "*", Action: Prompt, ExpiresMS: 1500})), OutcomeAsked)
		r, err := w.Wait(t.Context(), quick.Request.ID)
		if err != nil || r.State != Expired || time.Since(begin) != 1500*time.Millisecond {
			t.Fatalf("Wait = %+v, %v after %v; want expired after 1.5s", r, err, time.Since(begin))
		}
		if _, err := w.Answer(t.Context(), r.ID, "bob", Answer{Action: AnswerApprove}); !errors.Is(err,
			errdefs.ErrConflict) {
			t.Fatalf("Answer to an expired request: %v, want Conflict", err)
		}
		r, err = w.Wait(t.Context(), slow.Request.ID)
		if err != nil || r.State != Expired || time.Since(begin) != DefaultExpiry {
			t.Fatalf("Wait = %+v, %v after %v; want expired after %v", r, err, time.Since(begin), DefaultExpiry)
		}
	})
}

func TestEscalationRestartsExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := runGate(t, Options{})
		begin := time.Now()
		d := w.want(t, call("a", prompts(t)), OutcomeAsked)
		for _, to := range []string{"boss", "owner"} {
			time.Sleep(9 * time.Minute)
			r := w.answer(t, d.Request.ID, Answer{Action: AnswerEscalate, To: to})
			if r.State != Pending || r.Escalated != to || !r.Expires.Equal(time.Now().Add(DefaultExpiry)) {
				t.Fatalf("escalated request = %+v, want pending with a new expiry", r)
			}
			w.answer(t, d.Request.ID, Answer{Action: AnswerEscalate, To: to})
		}
		r, err := w.Wait(t.Context(), d.Request.ID)
		if err != nil || r.State != Expired || r.Escalated != "owner" || time.Since(begin) != 28*time.Minute {
			t.Fatalf("Wait = %+v, %v after %v; want expired at owner after 28m", r, err, time.Since(begin))
		}
	})
}

func TestStopEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, stop := runGate(t, Options{})
		d := w.want(t, call("a", prompts(t)), OutcomeAsked)
		got := make(chan error, 2)
		go func() {
			_, err := w.Wait(context.WithoutCancel(t.Context()), d.Request.ID)
			got <- err
		}()
		go func() {
			got <- w.Subscribe(context.WithoutCancel(t.Context()), "", func(Event) error { return nil })
		}()
		synctest.Wait()
		stop()
		for range 2 {
			if err := <-got; !errors.Is(err, errdefs.ErrUnavailable) {
				t.Errorf("Wait or Subscribe = %v, want Unavailable", err)
			}
		}
	})
}

func TestOldRequestsAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := runGate(t, Options{})
		d := w.want(t, call("a", prompts(t)), OutcomeAsked)
		w.answer(t, d.Request.ID, Answer{Action: AnswerApprove})
		time.Sleep(DefaultKeep - time.Minute)
		if _, err := w.Get(t.Context(), d.Request.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(forgetEvery + time.Minute)
		synctest.Wait()
		if _, err := w.Get(t.Context(), d.Request.ID); !errors.Is(err, errdefs.ErrNotFound) {
			t.Fatalf("Get of a forgotten request: %v, want NotFound", err)
		}
	})
}

// TestWaitForUnknownPendingRowFails waits for a row that the gate does not hold, as after a failure
// to record it. That does not decide the request.
func TestWaitForUnknownPendingRowFails(t *testing.T) {
	w := newWorld(t, Options{})
	row := store.Approval{ID: "a", State: string(Pending), Caller: "ann", Key: "k", Hash: "hash-k", Questions: "{}",
		Created: noon, Expires: noon.Add(time.Minute)}
	if _, _, err := w.store.Approvals().InsertApproval(t.Context(), row); err != nil {
		t.Fatal(err)
	}
	d := w.want(t, call("k", prompts(t)), OutcomeAsked)
	if r, err := w.Wait(t.Context(), d.Request.ID); !errdefs.IsUnavailable(err) {
		t.Errorf("Wait = %+v, %v; want Unavailable", r, err)
	}
	w.clock = noon.Add(time.Hour)
	w.want(t, call("k", prompts(t)), OutcomeDenied)
}
