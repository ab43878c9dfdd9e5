//go:build integration

package contracts

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// callWithAnswer calls bash and has answer decide the one approval request.
func callWithAnswer(t *testing.T, a agent, in fields, answer func(q v1.Approval)) v1.ToolResult {
	t.Helper()
	asked := 0
	r, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, in), client.CallOptions{Asked: func(q v1.Approval) {
		asked++
		answer(q)
	}})
	if err != nil || asked != 1 {
		t.Fatalf("%d approval requests, want 1: %+v, %v", asked, r, err)
	}
	return r
}

// approvals returns the tests of approval rules.
func (g *gateway) approvals() table {
	asks := func(s *harness.Server) agent { return operator(s, "asks", "bash") }
	return table{
		"approve": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, asks(s).call(t, program("true")), fields{"exitCode": 0})
		},
		"deny": func(t *testing.T, s *harness.Server, _ line) {
			assertError(t, asks(s).call(t, program("false")), "approval_denied", "ApprovalDenied", "approval-2")
		},
		"prompt-yes": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, asks(s).answered(t, program("echo", "yes"), "approve"), fields{"exitCode": 0, "stdout": "yes\n"})
		},
		"prompt-no": func(t *testing.T, s *harness.Server, _ line) {
			assertError(t, asks(s).answered(t, program("touch", "never"), "deny"), "approval_denied", "ApprovalDenied", "")
			shell(t, operator(s, "gateway", "bash"), "test ! -e never")
		},
		"no-rule": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, file(t, asks(s), "read", "in/file"), fields{"content": "inside\n"})
		},
		"condition": func(t *testing.T, s *harness.Server, l line) {
			switch lastOf(l) {
			case "holds":
				assertError(t, operator(s, "breaks", "bash").call(t, program("echo", "x")), "approval_denied", "ApprovalDenied", "")
			case "else":
				assertFields(t, operator(s, "breaks", "bash").call(t, program("echo", "y")), fields{"stdout": "y\n"})
			default:
				assertError(t, operator(s, "breaks", "bash").call(t, program("echo")), "approval_denied", "ApprovalDenied",
					"could not be evaluated")
			}
		},
		"request-id": func(t *testing.T, s *harness.Server, _ line) {
			a := g.newCaller(t, s, "asks", "bash")
			r := callWithAnswer(t, a, program("echo", "which"), func(q v1.Approval) {
				got, err := s.Client.Approvals.Get(callContext(t), q.ID)
				pending := err == nil && got.ID != "" && got.State == "pending" && got.Tool == "bash" && got.Caller != "local"
				if !pending || !strings.Contains(string(got.Input), "which") || got.Rule != "approval-3" {
					t.Errorf("Approval = %+v, %v; want it pending by approval-3, with tool, caller and input", got, err)
				}
				if _, err := s.Client.Approvals.Answer(callContext(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
					t.Error(err)
				}
			})
			if got, err := s.Client.Approvals.Get(callContext(t), r.Approval); err != nil || got.State != "approved" ||
				got.Call != r.ID {
				t.Errorf("Approval after the answer = %+v, %v; want it approved with the call's id", got, err)
			}
		},
		"approve-id": func(t *testing.T, s *harness.Server, _ line) {
			r := callWithAnswer(t, asks(s), program("echo", "by hand"), func(q v1.Approval) {
				s.CLI(t, "approvals", "approve", q.ID).Is(t, 0, "")
			})
			assertFields(t, r, fields{"stdout": "by hand\n"})
		},
		"deny-id": func(t *testing.T, s *harness.Server, _ line) {
			r := callWithAnswer(t, asks(s), program("echo", "by hand"), func(q v1.Approval) {
				s.CLI(t, "approvals", "deny", q.ID).Is(t, 0, "")
			})
			assertError(t, r, "approval_denied", "ApprovalDenied", "")
		},
		"answer-once": func(t *testing.T, s *harness.Server, _ line) {
			r := asks(s).answered(t, program("echo", "once"), "approve")
			if _, err := s.Client.Approvals.Answer(callContext(t), r.Approval,
				v1.ApprovalAnswer{Action: "deny"}); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("second AnswerApproval: %v, want failed precondition", err)
			}
			if _, err := s.Client.Approvals.Answer(callContext(t), "00000000-0000-7000-8000-000000000000",
				v1.ApprovalAnswer{Action: "approve"}); !errdefs.IsNotFound(err) {
				t.Errorf("AnswerApproval of an unknown id: %v, want not found", err)
			}
		},
		"listener": func(t *testing.T, s *harness.Server, _ line) {
			ctx, cancel := context.WithCancel(callContext(t))
			events, ended := make(chan v1.ApprovalEvent, 16), make(chan error, 1)
			go func() { // the end is received below
				ended <- s.Client.Approvals.Watch(ctx, func(e v1.ApprovalEvent) error { events <- e; return nil })
			}()
			var q v1.Approval
			callWithAnswer(t, asks(s), program("echo", "heard"), func(asked v1.Approval) {
				q = asked
				if e := <-events; e.Type != "asked" || e.Approval.ID != q.ID {
					t.Errorf("event %+v, want asked for %s", e, q.ID)
				}
				// The contract's time holds on an idle machine only.
				if late := time.Since(q.CreatedAt); late > harness.Short {
					t.Errorf("the event came after %s, want at most %s", late, harness.Short)
				}
				if _, err := s.Client.Approvals.Answer(callContext(t), q.ID, v1.ApprovalAnswer{Action: "deny"}); err != nil {
					t.Error(err)
				}
			})
			if e := <-events; e.Type != "decided" || e.Approval.ID != q.ID || e.Approval.State != "denied" {
				t.Errorf("event %+v, want decided for %s", e, q.ID)
			}
			cancel()
			<-ended
		},
	}
}

// assertBudgetUsed checks that a budget is exhausted, and that the refusal has the time until it is
// renewed.
func assertBudgetUsed(t *testing.T, r v1.ToolResult, period string) {
	t.Helper()
	assertError(t, r, "approval_denied", "ApprovalDenied", "the "+period+" budget of filesystem is used up")
	most := map[string]time.Duration{
		"daily": 24 * time.Hour, "weekly": 7 * 24 * time.Hour, "monthly": 31 * 24 * time.Hour,
	}[period]
	if r.Error != nil && (r.Error.RetryAfterMS <= 0 || r.Error.RetryAfterMS > most.Milliseconds()) {
		t.Errorf("retry after %d ms, want up to %s", r.Error.RetryAfterMS, most)
	}
}

// makeCalls makes calls that must be within the budget.
func makeCalls(t *testing.T, a agent, calls int) {
	t.Helper()
	for range calls {
		if r := file(t, a, "stat", "."); r.Ending != "ok" {
			t.Fatalf("call within the budget: ending %s, error %+v; want ok", r.Ending, r.Error)
		}
	}
}

// budgets returns the tests of budgets.
func (g *gateway) budgets() table {
	return table{
		"budget": func(t *testing.T, s *harness.Server, l line) {
			awayFromMidnight()
			a := g.newCaller(t, s, lastOf(l), "filesystem")
			makeCalls(t, a, 2)
			for range 2 {
				assertBudgetUsed(t, file(t, a, "stat", "."), lastOf(l))
			}
		},
		"budget-restart": func(t *testing.T, _ *harness.Server, _ line) {
			awayFromMidnight()
			s := g.newServer(t)
			a := g.newCaller(t, s, "monthly", "filesystem")
			makeCalls(t, a, 1)
			s.Kill9()
			s.Start()
			makeCalls(t, a, 1)
			s.Kill9()
			s.Start()
			assertBudgetUsed(t, file(t, a, "stat", "."), "monthly")
		},
		"budget-amount": func(t *testing.T, s *harness.Server, _ line) {
			awayFromMidnight()
			a := g.newCaller(t, s, "amounts", "filesystem")
			for _, c := range []struct {
				amount string
				ok     bool
			}{{"4", true}, {"4.5", true}, {"2", false}, {"1.5", true}, {"0.1", false}, {"0", true}, {"-1", false}, {
				"much", false,
			}} {
				if r := file(t, a, "write", "amount", "content", c.amount); (r.Ending == "ok") != c.ok ||
					!c.ok && r.Ending != "approval_denied" {
					t.Errorf("write with amount %s: ending %s, error %+v; want allowed %v", c.amount, r.Ending, r.Error, c.ok)
				}
			}
		},
		"budget-carried": func(t *testing.T, s *harness.Server, _ line) {
			awayFromMidnight()
			a := g.newCaller(t, s, "carried", "bash")
			if r := a.run(t, "true"); r.Ending != "approval_denied" {
				t.Errorf("bash without amount: ending %s, error %+v; want approval_denied", r.Ending, r.Error)
			}
			for _, c := range []struct {
				amount float64
				ok     bool
			}{{4, true}, {6.5, false}, {6, true}, {0.1, false}} {
				a.amount = &c.amount
				if r := a.run(t, "true"); (r.Ending == "exited") != c.ok || !c.ok && r.Ending != "approval_denied" {
					t.Errorf("bash with amount %v: ending %s, error %+v; want allowed %v", c.amount, r.Ending, r.Error, c.ok)
				}
			}
		},
		"budget-caller": func(t *testing.T, s *harness.Server, _ line) {
			awayFromMidnight()
			one, other := g.newCaller(t, s, "daily", "filesystem"), g.newCaller(t, s, "daily", "filesystem")
			makeCalls(t, one, 2)
			makeCalls(t, other, 2)
			assertBudgetUsed(t, file(t, one, "stat", "."), "daily")
		},
		"budget-unused": func(t *testing.T, s *harness.Server, _ line) {
			awayFromMidnight()
			a := g.newCaller(t, s, "daily", "filesystem")
			assertInvalid(t, a, fields{"operation": "chmod", "path": "."}, "operation")
			makeCalls(t, a, 2)
		},
	}
}

// awayFromMidnight waits if a period of a budget ends soon. A test that counts calls takes much
// less than a minute.
func awayFromMidnight() {
	const near = time.Minute
	now := time.Now().UTC()
	if end := now.Truncate(24 * time.Hour).Add(24 * time.Hour); end.Sub(now) < near {
		time.Sleep(end.Sub(now) + time.Second)
	}
}

// policy returns the tests of disabled tools, rate limits and records.
func (g *gateway) policy() table {
	return table{
		"enabled-tool": func(t *testing.T, s *harness.Server, _ line) {
			assertEnding(t, operator(s, "off", "bash").call(t, program("true")), "policy_denied", "ToolDisabled",
				"Tool bash is disabled")
		},
		"enabled-policy": func(t *testing.T, s *harness.Server, _ line) {
			assertEnding(t, file(t, operator(s, "off", ""), "stat", "."), "policy_denied", "ToolDisabled",
				"Tool filesystem is disabled")
		},
		"rate": func(t *testing.T, s *harness.Server, _ line) {
			assertRateLimited(t, g.newCaller(t, s, "rates", "bash"), 2, 600_000)
		},
		"rate-window": func(t *testing.T, s *harness.Server, _ line) {
			a := g.newCaller(t, s, "rates", "filesystem")
			for range 3 {
				harness.Eventually(t, harness.Short, "the rate limit's window is over", func() bool {
					return file(t, a, "stat", ".").Ending == "ok"
				})
			}
		},
		"rate-caller": func(t *testing.T, s *harness.Server, _ line) {
			assertRateLimited(t, g.newCaller(t, s, "rates", "bash"), 2, 600_000)
			assertFields(t, g.newCaller(t, s, "rates", "bash").call(t, program("true")), fields{"exitCode": 0})
		},
		"integration": func(t *testing.T, s *harness.Server, _ line) {
			a := operator(s, "asks", "bash")
			assertError(t, a.call(t, program("rm", "x")), "policy_denied", "PolicyDenied",
				"Command denied: 'rm'") // without approval
			assertError(t, a.answered(t, program("ls", "x"), "deny"), "approval_denied", "ApprovalDenied", "")
			assertFields(t, a.answered(t, program("ls", "in/sub"), "approve"), fields{"stdout": "file\n"})
		},
		"logged": func(t *testing.T, s *harness.Server, l line) {
			want := map[string][2]string{ // ending, rule
				"allowed":  {"exited", ""},
				"policy":   {"policy_denied", "denylist:rm"},
				"approval": {"approval_denied", "approval-2"},
				"rate":     {"policy_denied", "rate:bash"},
				"disabled": {"policy_denied", "disabled:bash"},
			}[lastOf(l)]
			var r v1.ToolResult
			switch lastOf(l) {
			case "allowed":
				r = operator(s, "gateway", "bash").call(t, program("true"))
			case "policy":
				r = operator(s, "denies", "bash").call(t, program("rm", "x"))
			case "approval":
				r = operator(s, "asks", "bash").call(t, program("false"))
			case "rate":
				r = assertRateLimited(t, g.newCaller(t, s, "rates", "bash"), 2, 600_000)
			case "disabled":
				r = operator(s, "off", "bash").call(t, program("true"))
			default:
				assertInvalidLogged(t, g.newCaller(t, s, "gateway", "bash"))
				return
			}
			record := closingRecord
			if lastOf(l) == "rate" {
				record = refusalRecord
			}
			if got := record(t, s, r); got.Ending != want[0] || want[1] != "" && got.Rule != want[1] ||
				want[1] != "" && got.Verdict != "deny" {
				t.Errorf("closing record %+v, want ending and rule %v", got, want)
			}
		},
	}
}

// assertRateLimited calls bash until its profile's rate limit is reached. The commands may be
// refused, which counts, too.
func assertRateLimited(t *testing.T, a agent, calls int, window int64) v1.ToolResult {
	t.Helper()
	for range calls {
		if r := a.call(t, program("rm", "--version")); r.Error != nil && r.Error.Type == "RateLimitExceeded" {
			t.Fatalf("call within the rate limit: %+v, want no limit before %d calls", r.Error, calls)
		}
	}
	r := a.call(t, program("rm", "--version"))
	assertError(t, r, "policy_denied", "RateLimitExceeded",
		"Tool bash may be called "+itoa(calls)+" times in "+(time.Duration(window)*time.Millisecond).String())
	if r.Error != nil && (r.Error.RetryAfterMS <= 0 || r.Error.RetryAfterMS > window) {
		t.Errorf("retry after %d ms, want up to %d", r.Error.RetryAfterMS, window)
	}
	return r
}

// assertInvalidLogged makes an invalid call and checks its records.
func assertInvalidLogged(t *testing.T, a agent) {
	t.Helper()
	assertInvalid(t, a, fields{"command": "ls", "shell": "yes"}, "shell")
	list, err := a.client.Audit.Records(callContext(t), client.AuditFilter{Action: "bash"})
	if err != nil || len(list) != 2 || list[0].Kind != "open" || list[1].Kind != "close" ||
		!strings.Contains(list[1].Error, "shell") || !json.Valid(list[0].Input) {
		t.Errorf("records %+v, %v; want two, the last with the field's name", list, err)
	}
}
