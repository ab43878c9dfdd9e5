package approval

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestBudgetPeriod(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct{ now, period, start, until string }{
		{"2026-07-15T00:00:00Z", Daily, "2026-07-15T00:00:00Z", "2026-07-16T00:00:00Z"},
		{"2026-07-15T23:59:59.999999999Z", Daily, "2026-07-15T00:00:00Z", "2026-07-16T00:00:00Z"},
		{"2026-07-16T01:00:00+02:00", Daily, "2026-07-15T00:00:00Z", "2026-07-16T00:00:00Z"},
		{"2026-12-31T23:00:00Z", Daily, "2026-12-31T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"2026-07-13T00:00:00Z", Weekly, "2026-07-13T00:00:00Z", "2026-07-20T00:00:00Z"}, // a Monday
		{"2026-07-19T23:59:59Z", Weekly, "2026-07-13T00:00:00Z", "2026-07-20T00:00:00Z"}, // its Sunday
		{"2027-01-02T00:00:00Z", Weekly, "2026-12-28T00:00:00Z", "2027-01-04T00:00:00Z"},
		{"2026-07-01T00:00:00Z", Monthly, "2026-07-01T00:00:00Z", "2026-08-01T00:00:00Z"},
		{"2028-02-29T12:00:00Z", Monthly, "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"},
		{"2026-12-31T23:59:59Z", Monthly, "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"},
	} {
		start, until := budgetPeriod(c.period, at(c.now))
		if !start.Equal(at(c.start)) || !until.Equal(at(c.until)) {
			t.Errorf("budgetPeriod(%s, %s) = %s to %s; want %s to %s", c.period, c.now, start, until, c.start, c.until)
		}
	}
}

func TestBudgetIsUsedUpAndRenewed(t *testing.T) {
	for _, c := range []struct {
		period string
		end    time.Time
	}{
		{Daily, time.Date(2026, 7, 16, 0, 0, 0, 0, time.UTC)},
		{Weekly, time.Date(2026, 7, 20, 0, 0, 0, 0, time.UTC)},
		{Monthly, time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)},
	} {
		t.Run(c.period, func(t *testing.T) {
			w := newWorld(t, Options{})
			r := rules(t, budget(2, c.period))
			for i := range 2 {
				if d := w.want(t, call(key(i), r), OutcomeApproved); d.Reservation == "" || d.Rule != "b" {
					t.Fatalf("decision = %+v, want a reservation by rule b", d)
				}
				w.restart(t)
			}
			d := w.want(t, call("x", r), OutcomeDenied)
			if d.RetryAfter != c.end.Sub(noon) {
				t.Fatalf("retry after %s, want %s", d.RetryAfter, c.end.Sub(noon))
			}
			for _, s := range []string{"rule b", c.period, "bash", "2 of 2", c.end.Format(time.RFC3339),
				d.RetryAfter.String()} {
				if !strings.Contains(d.Message, s) {
					t.Errorf("message = %q, want %q in it", d.Message, s)
				}
			}
			other := call("y", r)
			other.Caller = "bea"
			w.want(t, other, OutcomeApproved)
			other = call("z", r)
			other.Tool = "fs.write"
			w.want(t, other, OutcomeApproved)
			w.clock = c.end.Add(-time.Nanosecond)
			w.want(t, call("x", r), OutcomeDenied)
			w.clock = c.end
			w.want(t, call("x", r), OutcomeApproved)
		})
	}
}

func TestBudgetCountsAmountsExactly(t *testing.T) {
	w := newWorld(t, Options{})
	b := budget(0.3, Daily)
	b.Amount = "input.cost"
	r := rules(t, b)
	spend := func(k string, cost any) Decision {
		a := call(k, r)
		a.Args = map[string]any{"cost": cost}
		return w.decide(t, a)
	}
	for _, k := range []string{"a", "b", "c"} {
		if d := spend(k, 0.1); d.Outcome != OutcomeApproved { // the sum of three floats exceeds 0.3
			t.Fatalf("decision = %+v, want approved", d)
		}
	}
	if d := spend("d", 0.000001); d.Outcome != OutcomeDenied || !strings.Contains(d.Message,
		"0.3 of 0.3, and this call counts 0.000001") {
		t.Fatalf("decision over the budget = %+v, want denied", d)
	}
	if d := spend("e", 0.0); d.Outcome != OutcomeApproved {
		t.Fatalf("decision on amount 0 = %+v, want approved", d)
	}
	if d := spend("f", 1e-9); d.Outcome != OutcomeDenied {
		t.Fatalf("decision on amount 1e-9 = %+v, want denied", d)
	}
	for k, cost := range map[string]any{"negative": -1.0, "text": "0", "missing": nil, "large": 1e300, "more": 0.31} {
		d := spend(k, cost)
		if d.Outcome != OutcomeDenied || d.Message == "" || d.RetryAfter != 0 {
			t.Errorf("%s: decision = %+v, want denied without a retry delay", k, d)
		}
	}
}

func TestRefundReturnsChargeOnce(t *testing.T) {
	w := newWorld(t, Options{})
	r := rules(t, budget(1, Daily))
	d := w.want(t, call("a", r), OutcomeApproved)
	w.want(t, call("b", r), OutcomeDenied)
	for range 3 {
		if err := w.Refund(t.Context(), d.Reservation); err != nil {
			t.Fatal(err)
		}
		w.restart(t)
	}
	w.want(t, call("b", r), OutcomeApproved)
	w.want(t, call("c", r), OutcomeDenied)
	if err := w.Refund(t.Context(), "nope"); err != nil {
		t.Fatal(err)
	}
	if err := w.Refund(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
}

func TestCallOverBudgetCanPrompt(t *testing.T) {
	w := newWorld(t, Options{})
	b := budget(1, Daily)
	b.Then = Prompt
	r := rules(t, b)
	w.want(t, call("a", r), OutcomeApproved)
	d := w.want(t, call("b", r), OutcomeAsked)
	if !strings.Contains(d.Message, "1 of 1") || d.Reservation != "" {
		t.Fatalf("decision = %+v, want asked without a reservation", d)
	}
	w.answer(t, d.Request.ID, Answer{Action: AnswerApprove})
	w.want(t, call("b", r), OutcomeApproved)
}

func TestUnapprovedRequestRefundsBudget(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *world, string){
		"denied": func(t *testing.T, w *world, id string) {
			t.Helper()
			w.answer(t, id, Answer{Action: AnswerDeny})
		},
		"cancelled": func(t *testing.T, w *world, id string) {
			t.Helper()
			w.Abandon(t.Context(), id)
		},
		"expired": func(t *testing.T, w *world, _ string) {
			t.Helper()
			w.clock = w.clock.Add(DefaultExpiry)
			w.restart(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{})
			r := rules(t, budget(1, Daily))
			a := call("a", r)
			a.Reasons = []Reason{{Rule: "push"}}
			d := w.want(t, a, OutcomeAsked)
			if d.Reservation == "" {
				t.Fatal("decision has no reservation, want one")
			}
			w.want(t, call("b", r), OutcomeDenied)
			end(t, w, d.Request.ID)
			w.want(t, call("b", r), OutcomeApproved)
		})
	}
	t.Run("approved", func(t *testing.T) {
		w := newWorld(t, Options{})
		r := rules(t, budget(1, Daily))
		a := call("a", r)
		a.Reasons = []Reason{{Rule: "push"}}
		d := w.want(t, a, OutcomeAsked)
		w.answer(t, d.Request.ID, Answer{Action: AnswerApprove})
		again := w.want(t, a, OutcomeApproved)
		w.want(t, call("b", r), OutcomeDenied)
		if err := w.Refund(t.Context(), again.Reservation); err != nil {
			t.Fatal(err)
		}
		w.want(t, call("b", r), OutcomeApproved)
	})
	t.Run("refused for there are too many", func(t *testing.T) {
		w := newWorld(t, Options{MaxPending: 1})
		r := rules(t, budget(1, Daily))
		w.want(t, call("a", prompts(t)), OutcomeAsked)
		a := call("b", r)
		a.Reasons = []Reason{{Rule: "push"}}
		if _, err := w.Decide(t.Context(), a); err == nil {
			t.Fatal("Decide without room for a request succeeded, want an error")
		}
		w.want(t, call("c", r), OutcomeApproved)
	})
}

func TestConcurrentCallsStayWithinBudget(t *testing.T) {
	w := newWorld(t, Options{})
	r := rules(t, budget(25, Daily))
	var approved atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 10 {
				d, err := w.Decide(context.Background(), call(key(g*100+i), r))
				if err != nil {
					t.Error(err)
					return
				}
				if d.Outcome != OutcomeApproved {
					continue
				}
				if i%5 == 0 { // some never run
					if err := w.Refund(context.Background(), d.Reservation); err != nil {
						t.Error(err)
					}
					continue
				}
				approved.Add(1)
			}
		})
	}
	wg.Wait()
	for i := range 100 {
		if w.decide(t, call(key(1000+i), r)).Outcome == OutcomeApproved {
			approved.Add(1)
		}
	}
	if approved.Load() != 25 {
		t.Fatalf("%d calls were approved, want 25", approved.Load())
	}
}

func TestForgetBudgetsKeepsRecentPeriods(t *testing.T) {
	w := newWorld(t, Options{})
	r := rules(t, budget(1, Monthly))
	w.want(t, call("a", r), OutcomeApproved)
	w.clock = time.Date(2026, 7, 31, 23, 59, 59, 0, time.UTC)
	if err := w.forget(t.Context(), w.clock); err != nil {
		t.Fatal(err)
	}
	w.want(t, call("b", r), OutcomeDenied)
}

func BenchmarkBudget(b *testing.B) {
	w := newWorld(b, Options{})
	r := rules(b, budget(1e9, Daily))
	a := call("", r)
	b.ReportAllocs()
	for b.Loop() {
		if d, err := w.Decide(b.Context(), a); err != nil || d.Outcome != OutcomeApproved {
			b.Fatalf("Decide = %+v, %v; want approved", d, err)
		}
	}
}
