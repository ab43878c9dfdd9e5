//go:build integration

package contracts

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// agent calls one tool of a profile, in the sandbox of one session, so that a
// call takes milliseconds.
type agent struct {
	s       *harness.Server
	client  *client.Client
	profile string // "": that of the client's token
	tool    string
	session string
	job     string // instead of session, for profiles with a workspace for each job
}

// operator is an agent who may do everything.
func operator(s *harness.Server, profile, tool string) agent {
	return agent{s: s, client: s.Client, profile: profile, tool: tool, session: "contract"}
}

// holder is an agent with a token.
func holder(t *testing.T, s *harness.Server, r v1.TokenRequest, tool string) agent {
	t.Helper()
	token, err := s.Client.CreateToken(soon(t), r)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Options{Address: "unix:" + s.Socket(), Token: token.Secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	a := agent{s: s, client: c, tool: tool, session: "contract"}
	t.Cleanup(func() { _ = c.EndSession(context.Background(), a.session) })
	return a
}

// soon bounds one call of a test.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Long)
	t.Cleanup(cancel)
	return ctx
}

// fields are a tool's input, or what is looked at of its output.
type fields = map[string]any

func (a agent) request(t *testing.T, in fields) v1.ToolCall {
	t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	r := v1.ToolCall{Input: b, Profile: a.profile, Session: a.session, Job: a.job}
	if a.job != "" {
		r.Session = ""
	}
	return r
}

// call calls the tool and wants an answer.
func (a agent) call(t *testing.T, in fields) v1.ToolResult {
	t.Helper()
	return a.answered(t, in, "")
}

// run is call for a command.
func (a agent) run(t *testing.T, command string) v1.ToolResult {
	t.Helper()
	return a.call(t, fields{"command": command})
}

// answered calls the tool and gives each question this answer; none may be
// asked if it is empty.
func (a agent) answered(t *testing.T, in fields, answer string) v1.ToolResult {
	t.Helper()
	asked := 0
	got, err := a.client.CallTool(soon(t), a.tool, a.request(t, in), client.CallOptions{Asked: func(q v1.Approval) {
		asked++
		action := answer
		if action == "" {
			action = "deny"
		}
		if _, err := a.s.Client.AnswerApproval(soon(t), q.ID, v1.ApprovalAnswer{Action: action}); err != nil {
			t.Error(err)
		}
	}})
	if err != nil {
		t.Fatalf("%v: %v", in, err)
	}
	if want := map[bool]int{true: 1}[answer != ""]; asked != want {
		t.Errorf("%v: asked %d times, want %d: %+v", in, asked, want, got)
	}
	return got
}

// with is the same agent with another tool.
func (a agent) with(tool string) agent {
	a.tool = tool
	return a
}

// as is the same agent with another profile.
func (a agent) as(profile string) agent {
	a.profile = profile
	return a
}

// outputOf decodes what a tool gave back; fields alone are wanted.
func outputOf(t *testing.T, r v1.ToolResult) fields {
	t.Helper()
	var out fields
	if err := json.Unmarshal(r.Output, &out); err != nil {
		t.Fatalf("%v in %+v", err, r)
	}
	return out
}

// gives checks fields of what a call gave back.
func gives(t *testing.T, r v1.ToolResult, want fields) {
	t.Helper()
	out := outputOf(t, r)
	for name, v := range want {
		if n, ok := v.(int); ok {
			v = float64(n)
		}
		if got, ok := out[name]; !ok || got != v {
			t.Errorf("%s is %.200v, want %.200v, in %.1000s", name, got, v, r.Output)
		}
	}
}

// ends checks how a call ended, and with which error of the tool.
func ends(t *testing.T, r v1.ToolResult, ending, kind, message string) {
	t.Helper()
	got := v1.ToolError{}
	if r.Error != nil {
		got = *r.Error
	}
	if r.Ending != ending || got.Type != kind || got.Message != message {
		t.Errorf("%s, %q %q; want %s, %q %q (%.500s)", r.Ending, got.Type, got.Message, ending, kind, message, r.Output)
	}
}

// tracedRefusal returns the one record of a call that a quota or rate limit refused. It has the size
// of the input and no input.
func tracedRefusal(t *testing.T, s *harness.Server, r v1.ToolResult) v1.AuditRecord {
	t.Helper()
	list, err := s.Client.Audit(soon(t), client.AuditFilter{Call: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].Kind != "refused" || list[0].Ending != r.Ending || list[0].Action != r.Tool || len(list[0].Input) > 0 || list[0].InputBytes == 0 {
		t.Fatalf("call %s (%s) left %+v, want one record of kind refused without its input", r.ID, r.Ending, list)
	}
	return list[0]
}

// traced returns the closing record of a call that has an opening and a closing one.
func traced(t *testing.T, s *harness.Server, r v1.ToolResult) v1.AuditRecord {
	t.Helper()
	list, err := s.Client.Audit(soon(t), client.AuditFilter{Call: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Kind != "open" || list[1].Kind != "close" || list[1].Ending != r.Ending || list[0].Action != r.Tool {
		t.Fatalf("call %s (%s) left %+v", r.ID, r.Ending, list)
	}
	return list[1]
}

var words atomic.Int64

// word is one that is in no other command line of this machine.
func word() string { return fmt.Sprintf("contract%dx%dend", os.Getpid(), words.Add(1)) }

// gone waits until the host has no process with a word in its command line.
func gone(t *testing.T, mark string) {
	t.Helper()
	harness.Eventually(t, harness.Short, "no process of "+mark, func() bool { return len(harness.Marked(mark)) == 0 })
}

// there waits for at least n processes with a word in their command line.
func there(t *testing.T, mark string, n int) {
	t.Helper()
	harness.Eventually(t, harness.Short, "processes of "+mark, func() bool { return len(harness.Marked(mark)) >= n })
}

// profiles is a configuration with a folder of profile files beside the built-in
// ones, and small sandboxes.
func profiles(t *testing.T, files map[string]string) (config string) {
	t.Helper()
	dir := harness.TempDir(t)
	for name, text := range files {
		harness.WriteFile(t, filepath.Join(dir, name+".yaml"), text)
	}
	return harness.DefaultConfig + fmt.Sprintf("profiles: {dir: '%s'}\n", dir)
}

// timeoutKills runs a command that hides what it starts until its time is over,
// and sees all of it dead, as the host shows it. in makes the input of a command
// with so many seconds, and whom to call with it. A machine that has not started
// everything by then gets more time.
func timeoutKills(t *testing.T, in func(command string, seconds int) (agent, fields)) {
	t.Helper()
	const hidden = 5
	for seconds := 1; ; seconds *= 4 {
		mark := word()
		sleep := `bash -c 'trap "" TERM INT HUP; sleep 600; :' ` + mark
		command := sleep + " & setsid " + sleep + " & (" + sleep + " & ) ; nohup " + sleep + " >/dev/null 2>&1 & (setsid " + sleep + " & ) & sleep 600"
		ended, most := make(chan struct{}), 0
		go func() { // received below
			defer close(ended)
			a, in := in(command, seconds)
			r, err := a.client.CallTool(soon(t), a.tool, a.request(t, in), client.CallOptions{})
			if err != nil || r.Ending != "timeout" {
				t.Errorf("%+v %v", r, err)
			}
		}()
		for over := false; !over; {
			select {
			case <-ended:
				over = true
			case <-time.After(20 * time.Millisecond):
				most = max(most, len(harness.Marked(mark)))
			}
		}
		gone(t, mark)
		switch {
		case most > hidden: // them and the shell around
			return
		case seconds > 60:
			t.Fatalf("of %d processes %d were seen", hidden, most)
		}
	}
}

// commandSet are spellings of one thing, by what becomes of them.
type commandSet struct {
	denied []string // refused, whoever may be asked
	asked  []string // wait for an answer
	runs   []string // run without a word
}

// hold checks each of them; where none of denied and asked may have run at all,
// every command would leave a mark in front of it.
func (c commandSet) hold(t *testing.T, a agent, refused func(t *testing.T, command string, r v1.ToolResult)) {
	t.Helper()
	for _, command := range c.denied {
		refused(t, command, a.run(t, command))
	}
	for _, command := range c.asked {
		if r := a.answered(t, fields{"command": command}, "deny"); r.Ending != "approval_denied" {
			t.Errorf("%s: after a no: %+v", command, r)
		}
	}
	for _, command := range c.runs {
		if r := a.run(t, command); r.Ending != "exited" {
			t.Errorf("%s: %s %+v %s", command, r.Ending, r.Verdict, r.Text)
		}
	}
}

// lastOf is the part of a line's id after the slash.
func lastOf(l line) string { return l.id[strings.IndexByte(l.id, '/')+1:] }
