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

// requestModel is the expected state of a request.
type requestModel struct {
	ask     Ask
	id      string
	state   State
	by      string
	used    bool
	expires time.Time
}

// gateModel performs random actions on a gate and checks the result of each against the expected
// state of the requests.
type gateModel struct {
	*world
	rules   *Rules
	names   []string // of the callers
	all     []*requestModel
	granted map[string]bool // sessions, see session
}

// session returns the key in granted of the session of a.
func session(a Ask) string { return a.Caller + "/" + a.Session }

// count returns the number of pending requests of the caller, or of all callers if it is empty.
func (m *gateModel) count(caller string) (n int) {
	for _, q := range m.all {
		if q.state == Pending && (caller == "" || q.ask.Caller == caller) {
			n++
		}
	}
	return n
}

func (m *gateModel) pick(rt *rapid.T) *requestModel {
	if len(m.all) == 0 {
		rt.Skip("nothing was asked")
	}
	return rapid.SampledFrom(m.all).Draw(rt, "request")
}

func (m *gateModel) doDecide(rt *rapid.T) {
	a := call(rapid.SampledFrom([]string{"", "k1", "k2", "k3"}).Draw(rt, "key"), m.rules)
	a.Caller = rapid.SampledFrom(m.names).Draw(rt, "caller")
	a.Session = rapid.SampledFrom([]string{"", "s1"}).Draw(rt, "session")
	i := slices.IndexFunc(m.all,
		func(q *requestModel) bool { return a.Key != "" && q.ask.Key == a.Key && q.ask.Caller == a.Caller })
	d, err := m.Decide(rt.Context(), a)
	switch {
	case i >= 0 && m.all[i].used:
		if !errors.Is(err, errdefs.ErrFailedPrecondition) {
			rt.Fatalf("Decide on a used request = %+v, %v; want FailedPrecondition", d, err)
		}
	case i >= 0:
		want := map[State]Outcome{Pending: OutcomeAsked, Approved: OutcomeApproved}[m.all[i].state]
		if want == "" {
			want = OutcomeDenied
		}
		if err != nil || d.Outcome != want || d.Request.ID != m.all[i].id {
			rt.Fatalf("Decide = %+v, %v; want %s for %+v", d, err, want, m.all[i])
		}
	case a.Session != "" && m.granted[session(a)]:
		if err != nil || d.Outcome != OutcomeApproved || d.Granted == "" {
			rt.Fatalf("Decide in a granted session = %+v, %v; want approved by the grant", d, err)
		}
	case m.count("") >= 6 || m.count(a.Caller) >= 4:
		if !errors.Is(err, errdefs.ErrResourceExhausted) {
			rt.Fatalf("Decide with %d requests pending = %+v, %v; want ResourceExhausted", m.count(""), d, err)
		}
	default:
		if err != nil || d.Outcome != OutcomeAsked {
			rt.Fatalf("Decide = %+v, %v; want asked", d, err)
		}
		m.all = append(m.all,
			&requestModel{ask: a, id: d.Request.ID, state: Pending, expires: m.clock.Add(DefaultExpiry)})
	}
}

func (m *gateModel) doAnswer(rt *rapid.T) {
	q := m.pick(rt)
	a := Answer{Action: rapid.SampledFrom([]string{AnswerApprove, AnswerDeny}).Draw(rt, "action")}
	if a.Action == AnswerApprove && rapid.Bool().Draw(rt, "for the session") {
		a.Scope = ScopeSession
	}
	by := rapid.SampledFrom([]string{"bob", "eve"}).Draw(rt, "by")
	before, err := m.Get(rt.Context(), q.id)
	if err != nil {
		rt.Fatal(err)
	}
	_, err = m.Answer(rt.Context(), q.id, by, a)
	switch {
	case q.state != Pending:
		same := q.by == by && q.state == a.state() && before.Scope == a.scope()
		if same != (err == nil) || !same && !errors.Is(err, errdefs.ErrConflict) {
			rt.Fatalf("Answer(%+v) by %s to %+v: %v, want success %t or else Conflict", a, by, before, err, same)
		}
	case a.Scope == ScopeSession && q.ask.Session == "":
		if !errors.Is(err, errdefs.ErrInvalidArgument) {
			rt.Fatalf("Answer for a session to a request without one: %v, want InvalidArgument", err)
		}
	default:
		if err != nil {
			rt.Fatal(err)
		}
		q.state, q.by = a.state(), by
		if a.Scope == ScopeSession {
			m.granted[session(q.ask)] = true
		}
	}
}

func (m *gateModel) doEscalate(rt *rapid.T) {
	q := m.pick(rt)
	to := rapid.StringMatching("[a-z]{8}").Draw(rt, "to")
	_, err := m.Answer(rt.Context(), q.id, "bob", Answer{Action: AnswerEscalate, To: to})
	if (err == nil) != (q.state == Pending) {
		rt.Fatalf("escalating %+v: %v, want success only if it is pending", q, err)
	}
	if q.state == Pending {
		q.expires = m.clock.Add(DefaultExpiry)
	}
}

func (m *gateModel) doUse(rt *rapid.T) {
	q := m.pick(rt)
	err := m.Use(rt.Context(), q.id)
	if ok := q.state == Approved && !q.used; ok != (err == nil) {
		rt.Fatalf("Use of %+v: %v, want success %t", q, err, ok)
	} else if ok {
		q.used = true
	}
}

func (m *gateModel) doAbandon(rt *rapid.T) {
	q := m.pick(rt)
	if err := m.Abandon(rt.Context(), q.id); err != nil {
		rt.Fatal(err)
	}
	if q.state == Pending {
		q.state = Cancelled
	}
}

func (m *gateModel) passTime(rt *rapid.T) {
	m.clock = m.clock.Add(time.Duration(rapid.IntRange(1, 400).Draw(rt, "seconds")) * time.Second)
	if err := m.expire(rt.Context()); err != nil {
		rt.Fatal(err)
	}
	for _, q := range m.all {
		if q.state == Pending && !q.expires.After(m.clock) {
			q.state = Expired
		}
	}
}

// restartGate restarts the gate only; other tests cover the store.
func (m *gateModel) restartGate(rt *rapid.T) {
	g, err := New(rt.Context(), m.gateOptions())
	if err != nil {
		rt.Fatal(err)
	}
	m.Gate = g
}

// checkMemory fails if the gate keeps other requests in memory than the pending ones.
func (m *gateModel) checkMemory(rt *rapid.T) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pending) != m.count("") || len(m.queue) != len(m.pending) ||
		m.callers[m.names[0]] != m.count(m.names[0]) {
		rt.Fatalf("in memory: %d pending, %d in the queue, callers %v; want %d, of them %d of %s",
			len(m.pending), len(m.queue), m.callers, m.count(""), m.count(m.names[0]), m.names[0])
	}
}

// checkStored fails if the stored requests of the callers differ from the model.
func (m *gateModel) checkStored(rt *rapid.T) {
	var list []Request
	for _, caller := range m.names {
		l, err := m.List(rt.Context(), Filter{Caller: caller})
		if err != nil {
			rt.Fatal(err)
		}
		list = append(list, l...)
	}
	if len(list) != len(m.all) {
		rt.Fatalf("%d requests, want %d", len(list), len(m.all))
	}
	for _, q := range m.all {
		r := list[slices.IndexFunc(list, func(r Request) bool { return r.ID == q.id })]
		if r.State != q.state || r.By != q.by || r.Used != q.used ||
			r.State == Pending && !r.Expires.Equal(q.expires) {
			rt.Fatalf("stored request = %+v, want %+v", r, q)
		}
	}
}

// TestGateMatchesModel performs random actions of callers, approvers and the clock, across
// restarts.
func TestGateMatchesModel(t *testing.T) {
	// All runs share one store, with new callers in each.
	w := newWorld(t, Options{MaxPending: 6, MaxPendingPerCaller: 4})
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		runs++
		m := &gateModel{
			world: w, rules: prompts(t), granted: map[string]bool{},
			names: []string{fmt.Sprint("ann", runs), fmt.Sprint("bea", runs)},
		}
		defer func() {
			for _, q := range m.all {
				if err := w.Abandon(context.Background(), q.id); err != nil {
					t.Error(err)
				}
			}
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"decide":      m.doDecide,
			"answer":      m.doAnswer,
			"escalate":    m.doEscalate,
			"use":         m.doUse,
			"abandon":     m.doAbandon,
			"time passes": m.passTime,
			"restart":     m.restartGate,
			"":            m.checkMemory,
		})
		m.checkStored(rt)
	})
}
