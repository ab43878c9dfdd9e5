package approval

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func TestCallWithoutRuleIsApproved(t *testing.T) {
	w := newWorld(t, Options{})
	if d := w.want(t, call("a", nil), OutcomeApproved); d.Request != nil || d.Rule != "" {
		t.Fatalf("decision = %+v, want no request and no rule", d)
	}
}

func TestDenyRuleWins(t *testing.T) {
	w := newWorld(t, Options{})
	a := call("a", prompts(t))
	d := w.want(t, a, OutcomeAsked)
	w.answer(t, d.Request.ID, Answer{Action: AnswerApprove, Scope: ScopeSession})
	a.Rules = rules(t, Rule{ID: "no", Tool: "bash", Action: Deny, Message: "not today"})
	a.Reasons = []Reason{{Rule: "policy", Message: "git push"}}
	if d := w.want(t, a, OutcomeDenied); d.Rule != "no" || d.Message != "not today" {
		t.Fatalf("decision = %+v, want rule no", d)
	}
}

func TestRequestIsCreatedOncePerKeyAndCall(t *testing.T) {
	w := newWorld(t, Options{})
	a := call("a", prompts(t))
	first := w.want(t, a, OutcomeAsked)
	if first.Request.State != Pending || first.Request.Reason == "" ||
		string(first.Request.Input) != `{"command":"ls"}` {
		t.Fatalf("request = %+v, want pending with reason and input", first.Request)
	}
	if again := w.want(t, a, OutcomeAsked); again.Request.ID != first.Request.ID {
		t.Fatalf("second request of the key = %s, want %s", again.Request.ID, first.Request.ID)
	}
	other := a
	other.Hash = "another"
	if _, err := w.Decide(t.Context(), other); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Fatalf("Decide on another call of the key: %v, want InvalidArgument", err)
	}
	other = a
	other.Caller = "bea"
	if d := w.want(t, other, OutcomeAsked); d.Request.ID == first.Request.ID {
		t.Fatalf("request of another caller with the key = %s, want another one", d.Request.ID)
	}
	w.answer(t, first.Request.ID, Answer{Action: AnswerApprove, Note: "fine"})
	if d := w.want(t, a, OutcomeApproved); d.Request.By != "bob" || d.Message != "fine" {
		t.Fatalf("decision = %+v, want approved by bob", d)
	}
	if err := w.Use(t.Context(), first.Request.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.Use(t.Context(), first.Request.ID); !errors.Is(err,
		errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), "used at") {
		t.Fatalf("second Use: %v, want FailedPrecondition with the time of the first", err)
	}
	if _, err := w.Decide(t.Context(), a); !errors.Is(err,
		errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), "already used") {
		t.Fatalf("Decide after Use: %v, want FailedPrecondition", err)
	}
}

func TestAnswerIsFinal(t *testing.T) {
	w := newWorld(t, Options{})
	d := w.want(t, call("a", prompts(t)), OutcomeAsked)
	w.answer(t, d.Request.ID, Answer{Action: AnswerDeny, Note: "no"})
	w.clock = w.clock.Add(time.Minute)
	if r := w.answer(t, d.Request.ID, Answer{Action: AnswerDeny, Note: "no"}); !r.Decided.Equal(noon) {
		t.Fatalf("request after the same answer = %+v, want it decided at %v", r, noon)
	}
	for _, c := range []struct {
		by string
		a  Answer
	}{{"bob", Answer{Action: AnswerApprove}}, {"eve", Answer{Action: AnswerDeny, Note: "no"}}, {"bob",
		Answer{Action: AnswerEscalate, To: "x"}}} {
		_, err := w.Answer(t.Context(), d.Request.ID, c.by, c.a)
		if !errors.Is(err, errdefs.ErrConflict) ||
			!strings.Contains(err.Error(), "denied by bob at 2026-07-15T12:00:00Z") {
			t.Errorf("second answer %+v = %v, want Conflict", c, err)
		}
	}
	if d := w.want(t, call("a", prompts(t)), OutcomeDenied); !strings.Contains(d.Message, "denied by bob. no") {
		t.Fatalf("decision = %+v, want denied by bob", d)
	}
	if err := w.Use(t.Context(), d.Request.ID); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Fatalf("Use of a denied request: %v, want FailedPrecondition", err)
	}
}

func TestInvalidAnswersNameField(t *testing.T) {
	w := newWorld(t, Options{Check: func(_ context.Context, _ Request, in json.RawMessage) error {
		if strings.Contains(string(in), "bad") {
			return errdefs.ErrInvalidArgument
		}
		return nil
	}})
	a := call("a", prompts(t))
	a.Session = ""
	d := w.want(t, a, OutcomeAsked)
	for _, c := range []struct {
		by   string
		a    Answer
		want string
	}{
		{"bob", Answer{}, "action:"},
		{"bob", Answer{Action: "yes"}, "action:"},
		{"", Answer{Action: AnswerApprove}, "by:"},
		{"bob", Answer{Action: AnswerApprove, Scope: "ever"}, "scope:"},
		{"bob", Answer{Action: AnswerApprove, Scope: ScopeSession}, "names no session"},
		{"bob", Answer{Action: AnswerModify, Scope: ScopeSession, Input: json.RawMessage("{}")}, "scope:"},
		{"bob", Answer{Action: AnswerModify}, "input:"},
		{"bob", Answer{Action: AnswerModify, Input: json.RawMessage(`[]`)}, "input:"},
		{"bob", Answer{Action: AnswerModify, Input: json.RawMessage(`{`)}, "input:"},
		{"bob", Answer{Action: AnswerModify, Input: json.RawMessage(`{"bad":1}`)}, "invalid argument"},
		{"bob", Answer{Action: AnswerApprove, Input: json.RawMessage(`{}`)}, "input:"},
		{"bob", Answer{Action: AnswerEscalate}, "to:"},
		{"bob", Answer{Action: AnswerDeny, To: "x"}, "to:"},
		{"bob", Answer{Action: AnswerDeny, Note: strings.Repeat("a", 5000)}, "note:"},
	} {
		if _, err := w.Answer(t.Context(), d.Request.ID, c.by, c.a); !errors.Is(err,
			errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Answer(%+v) = %v, want InvalidArgument", c.a, err)
		}
	}
	if _, err := w.Answer(t.Context(), "nope", "bob", Answer{Action: AnswerApprove}); !errors.Is(err,
		errdefs.ErrNotFound) {
		t.Errorf("Answer to an unknown request: %v, want NotFound", err)
	}
	if _, err := w.List(t.Context(), Filter{State: "nope"}); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("List with an unknown state: %v, want InvalidArgument", err)
	}
	r := w.answer(t, d.Request.ID, Answer{Action: AnswerModify, Input: json.RawMessage(`{"command":"ls -l"}`)})
	if r.State != Approved || string(r.Modified) != `{"command":"ls -l"}` {
		t.Fatalf("request = %+v, want approved with the modified input", r)
	}
}

func TestSessionAnswerCoversLaterCalls(t *testing.T) {
	for _, action := range []string{AnswerApprove, AnswerDeny} {
		t.Run(action, func(t *testing.T) {
			w := newWorld(t, Options{})
			r := prompts(t)
			d := w.want(t, call("a", r), OutcomeAsked)
			w.answer(t, d.Request.ID, Answer{Action: action, Scope: ScopeSession})
			w.restart(t)
			later := w.decide(t, call("b", r))
			if want := map[string]Outcome{AnswerApprove: OutcomeApproved,
				AnswerDeny: OutcomeDenied}[action]; later.Outcome != want || later.Granted != d.Request.ID ||
				later.By != "bob" {
				t.Fatalf("later decision = %+v, want the session's answer by bob", later)
			}
			for name, change := range map[string]func(*Ask){
				"caller":  func(a *Ask) { a.Caller = "bea" },
				"session": func(a *Ask) { a.Session = "s2" },
				"tool":    func(a *Ask) { a.Tool = "other" },
				"profile": func(a *Ask) { a.Profile = "q" },
				"rule":    func(a *Ask) { a.Rules = rules(t, Rule{ID: "other", Tool: "*", Action: Prompt}) },
				"reason":  func(a *Ask) { a.Reasons = []Reason{{Rule: "policy.push"}}; a.Rules = nil },
			} {
				a := call("other-"+name, r)
				change(&a)
				if d := w.decide(t, a); d.Outcome != OutcomeAsked {
					t.Errorf("decision on another %s = %s, want %s", name, d.Outcome, OutcomeAsked)
				}
			}
			w.clock = w.clock.Add(DefaultGrant)
			w.want(t, call("c", r), OutcomeAsked)
			if err := w.EndSession(t.Context(), "ann", "s1"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestAnswerAfterSessionEndedGrantsNothing answers a request for its session after that session has
// ended. A later session of the same name must not inherit the answer.
func TestAnswerAfterSessionEndedGrantsNothing(t *testing.T) {
	for _, restart := range []bool{false, true} {
		w := newWorld(t, Options{})
		r := prompts(t)
		d := w.want(t, call("a", r), OutcomeAsked)
		if err := w.EndSession(t.Context(), "ann", "s1"); err != nil {
			t.Fatal(err)
		}
		scope := ScopeSession
		if restart {
			w.restart(t)
			_, err := w.Answer(t.Context(), d.Request.ID, "bob", Answer{Action: AnswerApprove, Scope: ScopeSession})
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("answer for the ended session = %v, want InvalidArgument", err)
			}
			scope = ScopeCall
		}
		w.answer(t, d.Request.ID, Answer{Action: AnswerApprove, Scope: scope})
		w.want(t, call("b", r), OutcomeAsked)
	}
}

// An approval covers the requester's trust and more, a denial that trust and less.
func TestSessionAnswerCoversRequesterTrust(t *testing.T) {
	for action, want := range map[string][4]Outcome{
		AnswerApprove: {OutcomeAsked, OutcomeAsked, OutcomeApproved, OutcomeApproved},
		AnswerDeny:    {OutcomeDenied, OutcomeDenied, OutcomeDenied, OutcomeAsked},
	} {
		t.Run(action, func(t *testing.T) {
			w := newWorld(t, Options{})
			r := prompts(t)
			asker := call("a", r)
			asker.Trust = 2
			d := w.want(t, asker, OutcomeAsked)
			if d.Request.Trust != 2 {
				t.Errorf("the request's trust is %d, want 2", d.Request.Trust)
			}
			w.restart(t)
			w.answer(t, d.Request.ID, Answer{Action: action, Scope: ScopeSession})
			w.restart(t)
			for trust, outcome := range want {
				a := call(key(trust), r)
				a.Trust = trust
				if got := w.decide(t, a); got.Outcome != outcome {
					t.Errorf("trust %d: %s, want %s", trust, got.Outcome, outcome)
				}
			}
		})
	}
}

// If two answers cover a call, the newer one counts.
func TestNewerSessionAnswerWins(t *testing.T) {
	for _, c := range []struct {
		first, second string
		want          Outcome
	}{
		{AnswerApprove, AnswerDeny, OutcomeDenied},
		{AnswerDeny, AnswerApprove, OutcomeApproved},
	} {
		w := newWorld(t, Options{})
		r := prompts(t)
		// An approval of trust 0 and a denial of trust 3 cover all calls.
		trust := map[string]int{AnswerApprove: 0, AnswerDeny: 3}
		asked := make([]string, 0, 2)
		for _, action := range []string{c.first, c.second} {
			a := call(action, r)
			a.Trust = trust[action]
			asked = append(asked, w.want(t, a, OutcomeAsked).Request.ID)
		}
		for i, action := range []string{c.first, c.second} {
			w.clock = w.clock.Add(time.Second)
			w.answer(t, asked[i], Answer{Action: action, Scope: ScopeSession})
		}
		if got := w.decide(t, call("later", r)); got.Outcome != c.want || got.Granted != asked[1] {
			t.Errorf("decision after %s, then %s = %+v, want %s", c.first, c.second, got, c.want)
		}
	}
}

func TestCallNeedsEveryQuestionAnswered(t *testing.T) {
	w := newWorld(t, Options{})
	a := call("a", prompts(t))
	a.Reasons = []Reason{{Kind: KindTrust, Rule: "trust", Message: "needs trust 3"},
		{Rule: "push", Message: "git push"}}
	d := w.want(t, a, OutcomeAsked)
	if d.Request.Kind != KindTrust || d.Request.Rule != "trust, push, ask" || !strings.Contains(d.Request.Reason,
		"needs trust 3; git push; ") {
		t.Fatalf("request = %+v, want kind trust with three rules", d.Request)
	}
	w.answer(t, d.Request.ID, Answer{Action: AnswerApprove, Scope: ScopeSession})
	b := call("b", prompts(t))
	b.Reasons = []Reason{{Rule: "push"}}
	w.want(t, b, OutcomeApproved)
	b.Key, b.Reasons = "c", append(b.Reasons, Reason{Rule: "new"})
	b.Hash = "hash-c"
	if d := w.want(t, b, OutcomeAsked); d.Request.Rule != "new" {
		t.Fatalf("request = %+v, want rule new", d.Request)
	}
	// A rule that approves does not answer the policy's question.
	w.want(t, func() Ask {
		a := call("d", rules(t, Rule{Tool: "*", Action: Approve}))
		a.Reasons = []Reason{{Rule: "rm"}}
		return a
	}(), OutcomeAsked)
}

func TestWaitEndsWithAnswer(t *testing.T) {
	w := newWorld(t, Options{})
	d := w.want(t, call("a", prompts(t)), OutcomeAsked)
	got := make(chan Request, 8)
	var wg sync.WaitGroup
	for range cap(got) {
		wg.Go(func() {
			r, err := w.Wait(context.Background(), d.Request.ID)
			if err != nil {
				t.Error(err)
			}
			got <- r
		})
	}
	w.answer(t, d.Request.ID, Answer{Action: AnswerApprove})
	wg.Wait()
	for range cap(got) {
		if r := <-got; r.State != Approved || r.By != "bob" {
			t.Fatalf("Wait = %+v, want approved by bob", r)
		}
	}
	if r, err := w.Wait(t.Context(), d.Request.ID); err != nil || r.State != Approved {
		t.Fatalf("Wait after the answer = %+v, %v; want approved", r, err)
	}
	d = w.want(t, call("b", prompts(t)), OutcomeAsked)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("gone")
	cancel(why)
	if _, err := w.Wait(ctx, d.Request.ID); !errors.Is(err, why) {
		t.Fatalf("Wait: %v, want %v", err, why)
	}
	if err := w.Abandon(t.Context(), d.Request.ID); err != nil {
		t.Fatal(err)
	}
	if r, err := w.Wait(t.Context(), d.Request.ID); err != nil || r.State != Cancelled {
		t.Fatalf("Wait after Abandon = %+v, %v; want cancelled", r, err)
	}
	if err := w.Abandon(t.Context(), d.Request.ID); err != nil {
		t.Fatalf("second Abandon: %v", err)
	}
	if _, err := w.Answer(t.Context(), d.Request.ID, "bob", Answer{Action: AnswerApprove}); !errors.Is(err,
		errdefs.ErrConflict) {
		t.Fatalf("Answer after Abandon: %v, want Conflict", err)
	}
	if _, err := w.Wait(t.Context(), "nope"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Fatalf("Wait for an unknown request: %v, want NotFound", err)
	}
}

func TestRequestsSurviveRestart(t *testing.T) {
	w := newWorld(t, Options{})
	a := call("a", prompts(t))
	a.Session = "s1"
	d := w.want(t, a, OutcomeAsked)
	late := w.want(t, call("late", rules(t, Rule{ID: "late", Tool: "*", Action: Prompt, ExpiresMS: 1000})),
		OutcomeAsked)
	w.restart(t)
	if d2 := w.want(t, a, OutcomeAsked); d2.Request.ID != d.Request.ID || d2.Request.Expires != d.Request.Expires {
		t.Fatalf("request after a restart = %+v, want %+v", d2.Request, d.Request)
	}
	w.clock = w.clock.Add(2 * time.Second)
	w.restart(t)
	if r, err := w.Get(t.Context(), late.Request.ID); err != nil || r.State != Expired {
		t.Fatalf("Get after a restart = %+v, %v; want expired", r, err)
	}
	w.answer(t, d.Request.ID, Answer{Action: AnswerApprove, Scope: ScopeSession})
	w.restart(t)
	w.want(t, a, OutcomeApproved)
	if err := w.Use(t.Context(), d.Request.ID); err != nil {
		t.Fatal(err)
	}
	w.restart(t)
	if err := w.Use(t.Context(), d.Request.ID); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Fatalf("second Use: %v, want FailedPrecondition", err)
	}
	w.want(t, call("next", prompts(t)), OutcomeApproved) // by the session's grant
}

func TestPendingRequestsAreBounded(t *testing.T) {
	w := newWorld(t, Options{MaxPending: 3, MaxPendingPerCaller: 2})
	r := prompts(t)
	var last Decision
	for i := range 2 {
		last = w.want(t, call(key(i), r), OutcomeAsked)
	}
	if _, err := w.Decide(t.Context(), call("x", r)); !errors.Is(err,
		errdefs.ErrResourceExhausted) || !strings.Contains(err.Error(), "2 of caller ann") {
		t.Fatalf("Decide beyond the caller's share: %v, want ResourceExhausted for 2 of caller ann", err)
	}
	w.want(t, call(key(1), r), OutcomeAsked) // an existing request is found
	other := call("y", r)
	other.Caller = "bea"
	w.want(t, other, OutcomeAsked)
	other.Caller = "cleo"
	if _, err := w.Decide(t.Context(), other); !errors.Is(err,
		errdefs.ErrResourceExhausted) || !strings.Contains(err.Error(), "approvals.max_pending") {
		t.Fatalf("Decide beyond all requests: %v, want ResourceExhausted for approvals.max_pending", err)
	}
	w.answer(t, last.Request.ID, Answer{Action: AnswerDeny})
	w.want(t, call("x", r), OutcomeAsked)
}

func TestConcurrentCallsOfOneKeyCreateOneRequest(t *testing.T) {
	w := newWorld(t, Options{})
	a := call("a", prompts(t))
	ids := make(chan string, 16)
	var wg sync.WaitGroup
	for range cap(ids) {
		wg.Go(func() {
			d, err := w.Decide(context.Background(), a)
			if err != nil || d.Request == nil {
				t.Errorf("Decide = %+v, %v; want a request", d, err)
				return
			}
			ids <- d.Request.ID
		})
	}
	wg.Wait()
	close(ids)
	first := <-ids
	for id := range ids {
		if id != first {
			t.Fatalf("concurrent calls have requests %s and %s, want the same", first, id)
		}
	}
	// Of many concurrent uses, one succeeds.
	w.answer(t, first, Answer{Action: AnswerApprove})
	used := make(chan error, 16)
	for range cap(used) {
		wg.Go(func() { used <- w.Use(context.Background(), first) })
	}
	wg.Wait()
	n := 0
	for range cap(used) {
		if err := <-used; err == nil {
			n++
		} else if !errors.Is(err, errdefs.ErrFailedPrecondition) {
			t.Errorf("Use: %v, want success or FailedPrecondition", err)
		}
	}
	if n != 1 {
		t.Fatalf("%d uses succeeded, want 1", n)
	}
}

func TestListIsPerCallerNewestFirst(t *testing.T) {
	w := newWorld(t, Options{})
	r := prompts(t)
	for i := range 4 {
		w.clock = w.clock.Add(time.Second)
		a := call(key(i), r)
		a.Caller = []string{"ann", "bea"}[i%2]
		w.want(t, a, OutcomeAsked)
	}
	all, err := w.List(t.Context(), Filter{})
	if err != nil || len(all) != 4 || all[0].Key != "k3" || all[3].Key != "k0" {
		t.Fatalf("List = %+v, %v; want k3 to k0", all, err)
	}
	w.answer(t, all[0].ID, Answer{Action: AnswerDeny})
	hers, err := w.List(t.Context(), Filter{Caller: "bea", State: Pending, Limit: 5})
	if err != nil || len(hers) != 1 || hers[0].Key != "k1" {
		t.Fatalf("List of bea's pending = %+v, %v; want only k1", hers, err)
	}
}

func TestLongInputIsElidedForApprovers(t *testing.T) {
	w := newWorld(t, Options{})
	a := call("a", prompts(t))
	a.Input = showing(`{"path":"x","content":"` + strings.Repeat("é", 100_000) + `END"}`)
	in := string(w.want(t, a, OutcomeAsked).Request.Input)
	if len(in) > maxInput || !json.Valid([]byte(in)) || !strings.Contains(in, `"path":"x"`) || !strings.Contains(in,
		"bytes are not shown") || !strings.Contains(in, `END"`) {
		t.Fatalf("shown input = %s, want JSON with both ends, at most %d bytes", in, maxInput)
	}
	b := call("b", prompts(t))
	zeros, _ := json.Marshal(map[string]any{"l": make([]int, 100_000)})
	b.Input = showing(string(zeros))
	in = string(w.want(t, b, OutcomeAsked).Request.Input)
	if len(in) > maxInput || !json.Valid([]byte(in)) {
		t.Fatalf("shown input = %s, want JSON of at most %d bytes", in, maxInput)
	}
}
