package approval

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"pgregory.net/rapid"
)

// model is the expected state of a request.
type model struct {
	ask     Ask
	id      string
	state   State
	by      string
	used    bool
	expires time.Time
}

// TestGateMatchesModel performs random actions of callers, approvers and the clock, across
// restarts.
func TestGateMatchesModel(t *testing.T) {
	// All runs share one store, with new callers in each.
	w := newWorld(t, Options{MaxPending: 6, MaxPendingPerCaller: 4})
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		callers := []string{fmt.Sprint("ann", runs), fmt.Sprint("bea", runs)}
		var all []*model
		defer func() {
			for _, m := range all {
				if err := w.Abandon(context.Background(), m.id); err != nil {
					t.Error(err)
				}
			}
		}()
		granted := map[string]bool{}
		pending := func(caller string) (n int) {
			for _, m := range all {
				if m.state == Pending && (caller == "" || m.ask.Caller == caller) {
					n++
				}
			}
			return n
		}
		pick := func(rt *rapid.T) *model {
			if len(all) == 0 {
				rt.Skip("nothing was asked")
			}
			return rapid.SampledFrom(all).Draw(rt, "request")
		}
		expire := func() {
			for _, m := range all {
				if m.state == Pending && !m.expires.After(w.clock) {
					m.state = Expired
				}
			}
		}
		session := func(a Ask) string { return a.Caller + "/" + a.Session }
		check := func(rt *rapid.T, m *model, r Request) {
			if r.State != m.state || r.By != m.by || r.Used != m.used ||
				r.State == Pending && !r.Expires.Equal(m.expires) {
				rt.Fatalf("%+v, want %+v", r, m)
			}
		}
		r := prompts(t)
		rt.Repeat(map[string]func(*rapid.T){
			"decide": func(rt *rapid.T) {
				a := call(rapid.SampledFrom([]string{"", "k1", "k2", "k3"}).Draw(rt, "key"), r)
				a.Caller = rapid.SampledFrom(callers).Draw(rt, "caller")
				a.Session = rapid.SampledFrom([]string{"", "s1"}).Draw(rt, "session")
				i := slices.IndexFunc(all,
					func(m *model) bool { return a.Key != "" && m.ask.Key == a.Key && m.ask.Caller == a.Caller })
				d, err := w.Decide(rt.Context(), a)
				switch {
				case i >= 0 && all[i].used:
					if !errors.Is(err, errdefs.ErrFailedPrecondition) {
						rt.Fatalf("%+v %v, but it was used", d, err)
					}
				case i >= 0:
					want := map[State]Outcome{Pending: OutcomeAsked, Approved: OutcomeApproved}[all[i].state]
					if want == "" {
						want = OutcomeDenied
					}
					if err != nil || d.Outcome != want || d.Request.ID != all[i].id {
						rt.Fatalf("%+v %v, want %s for %+v", d, err, want, all[i])
					}
				case a.Session != "" && granted[session(a)]:
					if err != nil || d.Outcome != OutcomeApproved || d.Granted == "" {
						rt.Fatalf("%+v %v, but the session was granted", d, err)
					}
				case pending("") >= 6 || pending(a.Caller) >= 4:
					if !errors.Is(err, errdefs.ErrResourceExhausted) {
						rt.Fatalf("%+v %v, but too many wait", d, err)
					}
				default:
					if err != nil || d.Outcome != OutcomeAsked {
						rt.Fatalf("Decide = %+v, %v; want asked", d, err)
					}
					all = append(all,
						&model{ask: a, id: d.Request.ID, state: Pending, expires: w.clock.Add(DefaultExpiry)})
				}
			},
			"answer": func(rt *rapid.T) {
				m := pick(rt)
				a := Answer{Action: rapid.SampledFrom([]string{AnswerApprove, AnswerDeny}).Draw(rt, "action")}
				if a.Action == AnswerApprove && rapid.Bool().Draw(rt, "for the session") {
					a.Scope = ScopeSession
				}
				by := rapid.SampledFrom([]string{"bob", "eve"}).Draw(rt, "by")
				before, err := w.Get(rt.Context(), m.id)
				if err != nil {
					rt.Fatal(err)
				}
				_, err = w.Answer(rt.Context(), m.id, by, a)
				switch {
				case m.state != Pending:
					same := m.by == by && m.state == a.state() && before.Scope == a.scope()
					if same != (err == nil) || !same && !errors.Is(err, errdefs.ErrConflict) {
						rt.Fatalf("%v for %+v by %s of %+v", err, a, by, before)
					}
				case a.Scope == ScopeSession && m.ask.Session == "":
					if !errors.Is(err, errdefs.ErrInvalidArgument) {
						rt.Fatal(err)
					}
				default:
					if err != nil {
						rt.Fatal(err)
					}
					m.state, m.by = a.state(), by
					if a.Scope == ScopeSession {
						granted[session(m.ask)] = true
					}
				}
			},
			"escalate": func(rt *rapid.T) {
				m := pick(rt)
				to := rapid.StringMatching("[a-z]{8}").Draw(rt, "to")
				_, err := w.Answer(rt.Context(), m.id, "bob", Answer{Action: AnswerEscalate, To: to})
				if (err == nil) != (m.state == Pending) {
					rt.Fatalf("%v for %+v", err, m)
				}
				if m.state == Pending {
					m.expires = w.clock.Add(DefaultExpiry)
				}
			},
			"use": func(rt *rapid.T) {
				m := pick(rt)
				err := w.Use(rt.Context(), m.id)
				if ok := m.state == Approved && !m.used; ok != (err == nil) {
					rt.Fatalf("%v for %+v", err, m)
				} else if ok {
					m.used = true
				}
			},
			"abandon": func(rt *rapid.T) {
				m := pick(rt)
				if err := w.Abandon(rt.Context(), m.id); err != nil {
					rt.Fatal(err)
				}
				if m.state == Pending {
					m.state = Cancelled
				}
			},
			"time passes": func(rt *rapid.T) {
				w.clock = w.clock.Add(time.Duration(rapid.IntRange(1, 400).Draw(rt, "seconds")) * time.Second)
				if err := w.expire(rt.Context()); err != nil {
					rt.Fatal(err)
				}
				expire()
			},
			"restart": func(rt *rapid.T) { // of the gate; other tests cover the store
				g, err := New(rt.Context(), w.gateOptions())
				if err != nil {
					rt.Fatal(err)
				}
				w.Gate = g
			},
			"": func(rt *rapid.T) {
				w.mu.Lock()
				defer w.mu.Unlock()
				if len(w.pending) != pending("") || len(w.queue) != len(w.pending) ||
					w.callers[callers[0]] != pending(callers[0]) {
					rt.Fatalf("in memory: %d pending, %d in the queue, %v", len(w.pending), len(w.queue), w.callers)
				}
			},
		})
		var list []Request
		for _, caller := range callers {
			l, err := w.List(rt.Context(), Filter{Caller: caller})
			if err != nil {
				rt.Fatal(err)
			}
			list = append(list, l...)
		}
		if len(list) != len(all) {
			rt.Fatalf("%d requests, want %d", len(list), len(all))
		}
		for _, m := range all {
			check(rt, m, list[slices.IndexFunc(list, func(r Request) bool { return r.ID == m.id })])
		}
	})
}
