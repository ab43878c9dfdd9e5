package approval

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestCompileNamesInvalidRule(t *testing.T) {
	for _, c := range []struct {
		rule         Rule
		path, reason string
	}{
		{Rule{Action: Deny}, "approvals[1].tool", "must be a tool's name"},
		{Rule{Tool: "a["}, "approvals[1].tool", "invalid glob"},
		{Rule{Tool: "*"}, "approvals[1].action", `invalid action ""`},
		{Rule{Tool: "*", Action: "alow"}, "approvals[1].action", `invalid action "alow"`},
		{Rule{Tool: "*", Action: Deny, When: "input.a =="}, "approvals[1].when", "1:11"},
		{Rule{Tool: "*", Action: Deny, When: "nope"}, "approvals[1].when", "undeclared reference to 'nope'"},
		{Rule{Tool: "*", Action: Deny, ExpiresMS: -1}, "approvals[1].expires_ms", "must be 0"},
		{Rule{Tool: "*", Action: Deny, Limit: 1}, "approvals[1].limit", "requires the action budget"},
		{Rule{Tool: "*", Action: Prompt, Period: Daily}, "approvals[1].period", "requires the action budget"},
		{Rule{Tool: "*", Action: Prompt, Amount: "1"}, "approvals[1].amount", "requires the action budget"},
		{Rule{Tool: "*", Action: Approve, Then: Prompt}, "approvals[1].then", "requires the action budget"},
		{Rule{Tool: "*", Action: Budget, Period: Daily}, "approvals[1].limit", "must be over 0"},
		{Rule{Tool: "*", Action: Budget, Period: Daily, Limit: math.NaN()}, "approvals[1].limit", "must be over 0"},
		{Rule{Tool: "*", Action: Budget, Period: Daily, Limit: math.Inf(1)}, "approvals[1].limit", "at most"},
		{Rule{Tool: "*", Action: Budget, Limit: 1}, "approvals[1].period", "daily, weekly or monthly"},
		{
			Rule{Tool: "*", Action: Budget, Limit: 1, Period: Daily, Then: Approve}, "approvals[1].then",
			"deny or prompt",
		},
		{Rule{Tool: "*", Action: Budget, Limit: 1, Period: Daily, Amount: "("}, "approvals[1].amount", "1:"},
		{Rule{ID: "first", Tool: "*", Action: Deny}, "approvals[1].id", "approvals[0]"},
		{Rule{ID: "a\nb", Tool: "*", Action: Deny}, "approvals[1].id", "one line"},
		{
			Rule{Tool: "*", Action: Deny, Message: strings.Repeat("a", 5000)}, "approvals[1].message",
			"the limit is 4096",
		},
	} {
		_, err := Compile([]Rule{{ID: "first", Tool: "x", Action: Approve}, c.rule})
		var re *RuleError
		if !errors.As(err, &re) || re.Path != c.path || !strings.Contains(re.Reason, c.reason) || !errors.Is(err,
			errdefs.ErrInvalidArgument) {
			t.Errorf("Compile(%+v): %v, want %s: %s", c.rule, err, c.path, c.reason)
		}
	}
}

func TestFindReturnsFirstMatch(t *testing.T) {
	r := rules(t,
		Rule{ID: "cheap", Tool: "pay", Action: Approve, When: "input.amount < 10"},
		Rule{ID: "trusted", Tool: "pay", Action: Approve, When: "call.trust >= 3 && call.caller == 'boss'"},
		Rule{ID: "dear", Tool: "pay", Action: Deny, When: "input.amount > 1000"},
		Rule{ID: "pay", Tool: "pay", Action: Prompt},
		Rule{ID: "fs", Tool: "fs.*", Action: Deny},
	)
	for _, c := range []struct {
		tool   string
		amount any
		facts  CallFacts
		rule   string
	}{
		{"pay", 5.0, CallFacts{}, "cheap"},
		{"pay", 50.0, CallFacts{}, "pay"},
		{"pay", 5000.0, CallFacts{}, "dear"},
		{"pay", 5000.0, CallFacts{Caller: "boss", Trust: 3}, "trusted"},
		{"pay", "5", CallFacts{}, "dear"}, // not a number: the approving rule does not hold, the denying one does
		{"fs.read", nil, CallFacts{}, "fs"},
		{"bash", nil, CallFacts{}, ""},
	} {
		got, ok := r.find(t.Context(), c.tool, map[string]any{"amount": c.amount}, c.facts)
		if got.ID != c.rule || ok != (c.rule != "") {
			t.Errorf("find for %+v = %q, %t; want %q", c, got.ID, ok, c.rule)
		}
	}
	var none *Rules
	if _, ok := none.find(t.Context(), "bash", nil, CallFacts{}); ok {
		t.Error("find without rules = true, want false")
	}
}

func TestFailingConditionFailsClosed(t *testing.T) {
	for _, c := range []struct {
		rule  Rule
		found bool
		want  Action
	}{
		{Rule{Tool: "*", Action: Approve, When: "input.nope"}, false, ""},
		{Rule{Tool: "*", Action: Deny, When: "input.nope"}, true, Deny},
		{Rule{Tool: "*", Action: Prompt, When: "input.nope"}, true, Prompt},
		{Rule{Tool: "*", Action: Budget, Limit: 1, Period: Daily, When: "input.nope"}, true, Deny},
		{Rule{Tool: "*", Action: Prompt, When: "input"}, true, Prompt}, // not a bool
	} {
		got, ok := rules(t, c.rule).find(t.Context(), "bash", nil, CallFacts{})
		if ok != c.found || got.Action != c.want {
			t.Errorf("find for %+v = %+v, %t; want action %q, %t", c.rule, got, ok, c.want, c.found)
		}
		if ok && !strings.Contains(got.Message, "could not be evaluated") {
			t.Errorf("find for %+v has message %q, want that the condition could not be evaluated", c.rule, got.Message)
		}
	}
}

func BenchmarkFindAmongTwentyRules(b *testing.B) {
	list := make([]Rule, 0, 20)
	for range 19 {
		list = append(list, Rule{Tool: "other.*", Action: Deny})
	}
	r := rules(b, append(list, Rule{Tool: "bash", Action: Prompt, When: `input.command.startsWith("git ")`})...)
	in := map[string]any{"command": "git push"}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := r.find(b.Context(), "bash", in, CallFacts{Caller: "a"}); !ok {
			b.Fatal("find = false, want true")
		}
	}
}
