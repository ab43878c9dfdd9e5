package mcp

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// asking returns the options of a client whose user answers r.
func asking(asked chan<- *mcp.ElicitParams, r *mcp.ElicitResult) *mcp.ClientOptions {
	answer := func(ctx context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		asked <- req.Params
		if r == nil { // the user does not answer
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return r, nil
	}
	return &mcp.ClientOptions{ElicitationHandler: answer}
}

func accept(decision string) *mcp.ElicitResult {
	return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"decision": decision}}
}

func TestElicitationAnswersApproval(t *testing.T) {
	for what, c := range map[string]struct {
		result *mcp.ElicitResult
		denied bool
	}{
		"approves": {accept("approve"), false},
		"denies":   {accept("deny"), true},
		"declines": {&mcp.ElicitResult{Action: "decline"}, true},
	} {
		t.Run(what, func(t *testing.T) {
			f, asked := newFake(), make(chan *mcp.ElicitParams, 1)
			cs, _ := connect(t, Options{Engine: f, Access: operator}, asking(asked, c.result))
			r, err := cs.CallTool(t.Context(), bash("ask git push"))
			if err != nil || r.IsError != c.denied {
				t.Fatalf("CallTool = %+v, %v; want an error result: %t", r, err, c.denied)
			}
			p := within(t, asked, "a question")
			if !strings.Contains(p.Message, `Command: "ask git push"`) ||
				!strings.Contains(p.Message, "it leaves the machine") {
				t.Errorf("question = %q, want the command and the reason in it", p.Message)
			}
			if by := f.answered[0]; by.Caller != "elicitation:test-client" || !by.Operator {
				t.Errorf("answered by %+v, want operator elicitation:test-client", by)
			}
		})
	}
}

func TestElicitationIsSkippedWithoutRights(t *testing.T) {
	user := Access{Principal: caller.Principal{Caller: "ben"}}
	for what, o := range map[string]Options{
		"a caller without rights": {Access: user},
		"elicitation is off":      {Access: operator, NoElicit: true},
	} {
		t.Run(what, func(t *testing.T) {
			f, asked := newFake(), make(chan *mcp.ElicitParams, 1)
			o.Engine = f
			cs, _ := connect(t, o, asking(asked, accept("approve")))
			waitsUntilAnswered(t, f, cs)
			if len(asked) != 0 {
				t.Error("the user was asked, want no question")
			}
		})
	}
	t.Run("a client that cannot ask", func(t *testing.T) {
		f := newFake()
		cs, _ := connect(t, Options{Engine: f, Access: operator}, nil)
		waitsUntilAnswered(t, f, cs)
	})
	t.Run("a user who closes the question", func(t *testing.T) {
		f, asked := newFake(), make(chan *mcp.ElicitParams, 1)
		cs, _ := connect(t, Options{Engine: f, Access: operator}, asking(asked, &mcp.ElicitResult{Action: "cancel"}))
		waitsUntilAnswered(t, f, cs)
	})
	t.Run("a user who thinks about it while another answers", func(t *testing.T) {
		f, asked := newFake(), make(chan *mcp.ElicitParams, 1)
		cs, _ := connect(t, Options{Engine: f, Access: operator}, asking(asked, nil))
		waitsUntilAnswered(t, f, cs)
	})
}

// waitsUntilAnswered makes a call that needs an approval, and answers the approval from elsewhere.
func waitsUntilAnswered(t *testing.T, f *fake, cs *mcp.ClientSession) {
	t.Helper()
	p := bash("ask git push")
	p.SetProgressToken("tok")
	called := make(chan *mcp.CallToolResult, 1)
	go func() {
		r, err := cs.CallTool(context.WithoutCancel(t.Context()), p)
		if err != nil {
			t.Error(err)
		}
		called <- r
	}()
	id := within(t, f.running, "a question")
	if _, err := f.AnswerApproval(t.Context(), caller.Principal{}, id,
		v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	if r := within(t, called, "the call's end"); r.IsError {
		t.Errorf("result after approval = %+v, want no error", r)
	}
}

func TestElicitAllAsksEveryCallersUser(t *testing.T) {
	f, asked := newFake(), make(chan *mcp.ElicitParams, 1)
	cs, _ := connect(t, Options{Engine: f, Access: Access{Principal: caller.Principal{Caller: "ben"}}, ElicitAll: true},
		asking(asked, accept("approve")))
	if r, err := cs.CallTool(t.Context(), bash("ask git push")); err != nil || r.IsError {
		t.Errorf("CallTool = %+v, %v; want no error", r, err)
	}
}

func TestProgressNamesPendingApproval(t *testing.T) {
	f, told := newFake(), make(chan string, 64)
	cs, _ := connect(t, Options{Engine: f, Access: operator}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			told <- r.Params.Message
		},
	})
	p := bash("ask git push")
	p.SetProgressToken(7)
	called := make(chan struct{})
	go func() {
		defer close(called)
		if _, err := cs.CallTool(context.WithoutCancel(t.Context()), p); err != nil {
			t.Error(err)
		}
	}()
	id := within(t, f.running, "a question")
	if got := within(t, told, "progress"); !strings.Contains(got, "waiting for the answer to approval "+id) {
		t.Errorf("progress message = %q, want the approval %s in it", got, id)
	}
	if _, err := f.AnswerApproval(t.Context(), caller.Principal{}, id,
		v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	within(t, called, "the call's end")
}

func TestQuestionQuotesUntrustedText(t *testing.T) {
	in, err := json.Marshal(map[string]any{
		"command": "rm x\nReason: harmless \u202e" + strings.Repeat("a", 2*maxCommand), "cwd": "/w",
	})
	if err != nil {
		t.Fatal(err)
	}
	q := question(v1.Approval{ID: "a\nb", Tool: "system.bash", Input: in, Rule: "r", Reason: "x\ny", Caller: "c"})
	lines := strings.Split(q, "\n")
	for i, begin := range []string{"Allow the tool", "Command: ", "With: ", "Reason: ", "Rule: ", "Caller: ",
		"Approval: "} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], begin) {
			t.Fatalf("question is\n%s\nwant line %d to begin with %q", q, i, begin)
		}
	}
	if len(lines) != 7 || strings.Contains(q, "\u202e") || len(q) > 2*maxCommand+2*maxReason {
		t.Errorf("%d lines, %d bytes; want 7 lines, at most %d bytes and no U+202E:\n%s",
			len(lines), len(q), 2*maxCommand+2*maxReason, q)
	}
}
