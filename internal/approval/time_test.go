package approval

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// running runs f with a gate that uses the time of a synctest bubble.
func running(t *testing.T, o Options, f func(t *testing.T, w *world)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, err := store.Open(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		o.Store = s
		g, err := New(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- g.Run(ctx) }()
		f(t, &world{Gate: g, store: s})
		stop()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	})
}

func TestRequestExpires(t *testing.T) {
	running(t, Options{}, func(t *testing.T, w *world) {
		begin := time.Now()
		slow := w.want(t, call("slow", prompts(t)), OutcomeAsked)
		quick := w.want(t, call("quick", rules(t, Rule{Tool: "*", Action: Prompt, ExpiresMS: 1500})), OutcomeAsked)
		r, err := w.Wait(t.Context(), quick.Request.ID)
		if err != nil || r.State != Expired || time.Since(begin) != 1500*time.Millisecond {
			t.Fatal(r, err, time.Since(begin))
		}
		if _, err := w.Answer(t.Context(), r.ID, "bob", Answer{Action: AnswerApprove}); !errors.Is(err,
			errdefs.ErrConflict) {
			t.Fatal(err)
		}
		r, err = w.Wait(t.Context(), slow.Request.ID)
		if err != nil || r.State != Expired || time.Since(begin) != DefaultExpiry {
			t.Fatal(r, err, time.Since(begin))
		}
	})
}

func TestEscalationRestartsExpiry(t *testing.T) {
	running(t, Options{}, func(t *testing.T, w *world) {
		begin := time.Now()
		d := w.want(t, call("a", prompts(t)), OutcomeAsked)
		for _, to := range []string{"boss", "owner"} {
			time.Sleep(9 * time.Minute)
			if r := w.answer(t, d.Request.ID, "bob", Answer{Action: AnswerEscalate,
				To: to}); r.State != Pending || r.Escalated != to || !r.Expires.Equal(time.Now().Add(DefaultExpiry)) {
				t.Fatalf("escalated request = %+v, want pending with a new expiry", r)
			}
			w.answer(t, d.Request.ID, "bob", Answer{Action: AnswerEscalate, To: to})
		}
		r, err := w.Wait(t.Context(), d.Request.ID)
		if err != nil || r.State != Expired || r.Escalated != "owner" || time.Since(begin) != 28*time.Minute {
			t.Fatal(r, err, time.Since(begin))
		}
	})
}

func TestStopEndsWaits(t *testing.T) {
	running(t, Options{}, func(t *testing.T, w *world) {
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
		t.Cleanup(func() {
			for range 2 {
				if err := <-got; !errors.Is(err, errdefs.ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	})
}

func TestOldRequestsAreDeleted(t *testing.T) {
	running(t, Options{}, func(t *testing.T, w *world) {
		d := w.want(t, call("a", prompts(t)), OutcomeAsked)
		w.answer(t, d.Request.ID, "bob", Answer{Action: AnswerApprove})
		time.Sleep(DefaultKeep - time.Minute)
		if _, err := w.Get(t.Context(), d.Request.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(forgetEvery + time.Minute)
		synctest.Wait()
		if _, err := w.Get(t.Context(), d.Request.ID); !errors.Is(err, errdefs.ErrNotFound) {
			t.Fatal(err)
		}
	})
}
