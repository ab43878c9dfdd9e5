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

// ask calls bash with an approver who does what answer does.
func ask(t *testing.T, a agent, in fields, answer func(q v1.Approval)) v1.ToolResult {
	t.Helper()
	asked := 0
	r, err := a.client.CallTool(soon(t), a.tool, a.request(t, in), client.CallOptions{Asked: func(q v1.Approval) { asked++; answer(q) }})
	if err != nil || asked != 1 {
		t.Fatalf("asked %d times: %+v %v", asked, r, err)
	}
	return r
}

func (g *gateway) approvals() table {
	asks := func(s *harness.Server) agent { return operator(s, "asks", "bash") }
	return table{
		"approve": func(t *testing.T, s *harness.Server, _ line) {
			gives(t, asks(s).call(t, program("true")), fields{"exitCode": 0})
		},
		"deny": func(t *testing.T, s *harness.Server, _ line) {
			like(t, asks(s).call(t, program("false")), "approval_denied", "ApprovalDenied", "approval-2")
		},
		"prompt-yes": func(t *testing.T, s *harness.Server, _ line) {
			gives(t, asks(s).answered(t, program("echo", "yes"), "approve"), fields{"exitCode": 0, "stdout": "yes\n"})
		},
		"prompt-no": func(t *testing.T, s *harness.Server, _ line) {
			like(t, asks(s).answered(t, program("touch", "never"), "deny"), "approval_denied", "ApprovalDenied", "")
			shell(t, operator(s, "gateway", "bash"), "test ! -e never")
		},
		"no-rule": func(t *testing.T, s *harness.Server, _ line) {
			gives(t, file(t, asks(s), "read", "in/file"), fields{"content": "inside\n"})
		},
		"condition": func(t *testing.T, s *harness.Server, l line) {
			switch lastOf(l) {
			case "holds":
				like(t, operator(s, "breaks", "bash").call(t, program("echo", "x")), "approval_denied", "ApprovalDenied", "")
			case "else":
				gives(t, operator(s, "breaks", "bash").call(t, program("echo", "y")), fields{"stdout": "y\n"})
			default:
				like(t, operator(s, "breaks", "bash").call(t, program("echo")), "approval_denied", "ApprovalDenied", "could not be evaluated")
			}
		},
		"request-id": func(t *testing.T, s *harness.Server, _ line) {
			a := g.somebody(t, s, "asks", "bash")
			r := ask(t, a, program("echo", "which"), func(q v1.Approval) {
				got, err := s.Client.Approval(soon(t), q.ID)
				if err != nil || got.ID == "" || got.State != "pending" || got.Tool != "bash" || got.Caller == "local" || !strings.Contains(string(got.Input), "which") || got.Rule != "approval-3" {
					t.Errorf("%+v %v", got, err)
				}
				if _, err := s.Client.AnswerApproval(soon(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
					t.Error(err)
				}
			})
			if got, err := s.Client.Approval(soon(t), r.Approval); err != nil || got.State != "approved" || got.Call != r.ID {
				t.Errorf("%+v %v", got, err)
			}
		},
		"approve-id": func(t *testing.T, s *harness.Server, _ line) {
			r := ask(t, asks(s), program("echo", "by hand"), func(q v1.Approval) { s.CLI(t, "approvals", "approve", q.ID).Is(t, 0, "") })
			gives(t, r, fields{"stdout": "by hand\n"})
		},
		"deny-id": func(t *testing.T, s *harness.Server, _ line) {
			r := ask(t, asks(s), program("echo", "by hand"), func(q v1.Approval) { s.CLI(t, "approvals", "deny", q.ID).Is(t, 0, "") })
			like(t, r, "approval_denied", "ApprovalDenied", "")
		},
		"answer-once": func(t *testing.T, s *harness.Server, _ line) {
			r := asks(s).answered(t, program("echo", "once"), "approve")
			if _, err := s.Client.AnswerApproval(soon(t), r.Approval, v1.ApprovalAnswer{Action: "deny"}); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("%v", err)
			}
			if _, err := s.Client.AnswerApproval(soon(t), "00000000-0000-7000-8000-000000000000", v1.ApprovalAnswer{Action: "approve"}); !errdefs.IsNotFound(err) {
				t.Errorf("%v", err)
			}
		},
		"listener": func(t *testing.T, s *harness.Server, _ line) {
			ctx, cancel := context.WithCancel(soon(t))
			events, ended := make(chan v1.ApprovalEvent, 16), make(chan error, 1)
			go func() { // waited for below
				ended <- s.Client.WatchApprovals(ctx, func(e v1.ApprovalEvent) error { events <- e; return nil })
			}()
			var q v1.Approval
			ask(t, asks(s), program("echo", "heard"), func(asked v1.Approval) {
				q = asked
				if e := <-events; e.Type != "asked" || e.Approval.ID != q.ID {
					t.Errorf("%+v", e)
				}
				// What is promised holds on a machine with nothing else to do.
				if late := time.Since(q.CreatedAt); late > harness.Short {
					t.Errorf("told after %s", late)
				}
				if _, err := s.Client.AnswerApproval(soon(t), q.ID, v1.ApprovalAnswer{Action: "deny"}); err != nil {
					t.Error(err)
				}
			})
			if e := <-events; e.Type != "decided" || e.Approval.ID != q.ID || e.Approval.State != "denied" {
				t.Errorf("%+v", e)
			}
			cancel()
			<-ended
		},
	}
}

// used wants a budget to be used up: a refusal that says until when.
func used(t *testing.T, r v1.ToolResult, period string) {
	t.Helper()
	like(t, r, "approval_denied", "ApprovalDenied", "the "+period+" budget of filesystem is used up")
	most := map[string]time.Duration{"daily": 24 * time.Hour, "weekly": 7 * 24 * time.Hour, "monthly": 31 * 24 * time.Hour}[period]
	if r.Error != nil && (r.Error.RetryAfterMS <= 0 || r.Error.RetryAfterMS > most.Milliseconds()) {
		t.Errorf("retry after %d ms", r.Error.RetryAfterMS)
	}
}

// spend makes calls that a budget has room for.
func spend(t *testing.T, a agent, calls int) {
	t.Helper()
	for range calls {
		if r := file(t, a, "stat", "."); r.Ending != "ok" {
			t.Fatalf("%s %+v", r.Ending, r.Error)
		}
	}
}

func (g *gateway) budgets() table {
	return table{
		"budget": func(t *testing.T, s *harness.Server, l line) {
			awayFromMidnight()
			a := g.somebody(t, s, lastOf(l), "filesystem")
			spend(t, a, 2)
			for range 2 {
				used(t, file(t, a, "stat", "."), lastOf(l))
			}
		},
		"budget-restart": func(t *testing.T, _ *harness.Server, _ line) {
			awayFromMidnight()
			s := g.another(t)
			a := g.somebody(t, s, "monthly", "filesystem")
			spend(t, a, 1)
			s.Kill9()
			s.Start()
			spend(t, a, 1)
			s.Kill9()
			s.Start()
			used(t, file(t, a, "stat", "."), "monthly")
		},
		"budget-amount": func(t *testing.T, s *harness.Server, _ line) {
			awayFromMidnight()
			a := g.somebody(t, s, "amounts", "filesystem")
			for _, c := range []struct {
				amount string
				ok     bool
			}{{"4", true}, {"4.5", true}, {"2", false}, {"1.5", true}, {"0.1", false}, {"0", true}, {"-1", false}, {"much", false}} {
				if r := file(t, a, "write", "amount", "content", c.amount); (r.Ending == "ok") != c.ok || !c.ok && r.Ending != "approval_denied" {
					t.Errorf("%s: %s %+v", c.amount, r.Ending, r.Error)
				}
			}
		},
		"budget-caller": func(t *testing.T, s *harness.Server, _ line) {
			awayFromMidnight()
			one, other := g.somebody(t, s, "daily", "filesystem"), g.somebody(t, s, "daily", "filesystem")
			spend(t, one, 2)
			spend(t, other, 2)
			used(t, file(t, one, "stat", "."), "daily")
		},
		"budget-unused": func(t *testing.T, s *harness.Server, _ line) {
			awayFromMidnight()
			a := g.somebody(t, s, "daily", "filesystem")
			refuses(t, a, fields{"operation": "chmod", "path": "."}, "operation")
			spend(t, a, 2)
		},
	}
}

// awayFromMidnight waits where a period of a budget is about to end: a line that
// counts calls takes far less than this.
func awayFromMidnight() {
	const near = time.Minute
	now := time.Now().UTC()
	if end := now.Truncate(24 * time.Hour).Add(24 * time.Hour); end.Sub(now) < near {
		time.Sleep(end.Sub(now) + time.Second)
	}
}

func (g *gateway) policy() table {
	return table{
		"enabled-tool": func(t *testing.T, s *harness.Server, _ line) {
			ends(t, operator(s, "off", "bash").call(t, program("true")), "policy_denied", "ToolDisabled", "Tool bash is disabled")
		},
		"enabled-policy": func(t *testing.T, s *harness.Server, _ line) {
			ends(t, file(t, operator(s, "off", ""), "stat", "."), "policy_denied", "ToolDisabled", "Tool filesystem is disabled")
		},
		"rate": func(t *testing.T, s *harness.Server, _ line) {
			limited(t, g.somebody(t, s, "rates", "bash"), 2, 600_000)
		},
		"rate-window": func(t *testing.T, s *harness.Server, _ line) {
			a := g.somebody(t, s, "rates", "filesystem")
			for range 3 {
				harness.Eventually(t, harness.Short, "the window is over", func() bool { return file(t, a, "stat", ".").Ending == "ok" })
			}
		},
		"rate-caller": func(t *testing.T, s *harness.Server, _ line) {
			limited(t, g.somebody(t, s, "rates", "bash"), 2, 600_000)
			gives(t, g.somebody(t, s, "rates", "bash").call(t, program("true")), fields{"exitCode": 0})
		},
		"integration": func(t *testing.T, s *harness.Server, _ line) {
			a := operator(s, "asks", "bash")
			like(t, a.call(t, program("rm", "x")), "policy_denied", "PolicyDenied", "Command denied: 'rm'") // nobody is asked
			like(t, a.answered(t, program("ls", "x"), "deny"), "approval_denied", "ApprovalDenied", "")
			gives(t, a.answered(t, program("ls", "in/sub"), "approve"), fields{"stdout": "file\n"})
		},
		"logged": func(t *testing.T, s *harness.Server, l line) {
			want := map[string][2]string{ // ending, rule
				"allowed": {"exited", ""}, "policy": {"policy_denied", "denylist:rm"}, "approval": {"approval_denied", "approval-2"},
				"rate": {"policy_denied", "rate:bash"}, "disabled": {"policy_denied", "disabled:bash"},
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
				r = limited(t, g.somebody(t, s, "rates", "bash"), 2, 600_000)
			case "disabled":
				r = operator(s, "off", "bash").call(t, program("true"))
			default:
				loggedInvalid(t, s, g.somebody(t, s, "gateway", "bash"))
				return
			}
			record := traced
			if lastOf(l) == "rate" {
				record = tracedRefusal
			}
			if got := record(t, s, r); got.Ending != want[0] || want[1] != "" && got.Rule != want[1] || want[1] != "" && got.Verdict != "deny" {
				t.Errorf("%+v; want %v", got, want)
			}
		},
	}
}

// limited calls bash until the rate limit of its profile is reached, with
// commands that may be refused: those count as well.
func limited(t *testing.T, a agent, calls int, window int64) v1.ToolResult {
	t.Helper()
	for range calls {
		if r := a.call(t, program("rm", "--version")); r.Error != nil && r.Error.Type == "RateLimitExceeded" {
			t.Fatalf("too early: %+v", r.Error)
		}
	}
	r := a.call(t, program("rm", "--version"))
	like(t, r, "policy_denied", "RateLimitExceeded", "Tool bash may be called "+itoa(calls)+" times in "+(time.Duration(window)*time.Millisecond).String())
	if r.Error != nil && (r.Error.RetryAfterMS <= 0 || r.Error.RetryAfterMS > window) {
		t.Errorf("retry after %d ms", r.Error.RetryAfterMS)
	}
	return r
}

func loggedInvalid(t *testing.T, s *harness.Server, a agent) {
	t.Helper()
	refuses(t, a, fields{"command": "ls", "shell": "yes"}, "shell")
	list, err := a.client.Audit(soon(t), client.AuditFilter{Action: "bash"})
	if err != nil || len(list) != 2 || list[0].Kind != "open" || list[1].Kind != "close" || !strings.Contains(list[1].Error, "shell") || !json.Valid(list[0].Input) {
		t.Errorf("%+v %v", list, err)
	}
}
