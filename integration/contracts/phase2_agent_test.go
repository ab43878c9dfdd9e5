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

// agent calls one tool of a profile in one session, so that calls share a sandbox and take
// milliseconds.
type agent struct {
	s       *harness.Server
	client  *client.Client
	profile string // "": that of the client's token
	tool    string
	session string
	job     string // instead of session, for profiles with a workspace for each job
	amount  *float64
}

// operator returns an agent with all rights.
func operator(s *harness.Server, profile, tool string) agent {
	return agent{s: s, client: s.Client, profile: profile, tool: tool, session: "contract"}
}

// newTokenAgent returns an agent with a new token.
func newTokenAgent(t *testing.T, s *harness.Server, r v1.TokenRequest, tool string) agent {
	t.Helper()
	token, err := s.Client.Tokens.Create(callContext(t), r)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Options{Address: "unix:" + s.Socket(), Token: token.Secret})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	a := agent{s: s, client: c, tool: tool, session: "contract"}
	t.Cleanup(func() { _ = c.Tools.EndSession(context.Background(), a.session) })
	return a
}

// callContext returns the context of one call.
func callContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Long)
	t.Cleanup(cancel)
	return ctx
}

// fields are a tool's input, or the fields of its output that are checked.
type fields = map[string]any

// request returns the request of a call with this input.
func (a agent) request(t *testing.T, in fields) v1.ToolCall {
	t.Helper()
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	r := v1.ToolCall{Input: b, Profile: a.profile, Session: a.session, Job: a.job, Amount: a.amount}
	if a.job != "" {
		r.Session = ""
	}
	return r
}

// call calls the tool, which must request no approval.
func (a agent) call(t *testing.T, in fields) v1.ToolResult {
	t.Helper()
	return a.answered(t, in, "")
}

// run calls the tool with a command.
func (a agent) run(t *testing.T, command string) v1.ToolResult {
	t.Helper()
	return a.call(t, fields{"command": command})
}

// answered calls the tool and answers every approval request. If answer is empty, none may be made.
func (a agent) answered(t *testing.T, in fields, answer string) v1.ToolResult {
	t.Helper()
	asked := 0
	got, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, in), client.CallOptions{Asked: func(q v1.Approval) {
		asked++
		action := answer
		if action == "" {
			action = "deny"
		}
		if _, err := a.s.Client.Approvals.Answer(callContext(t), q.ID, v1.ApprovalAnswer{Action: action}); err != nil {
			t.Error(err)
		}
	}})
	if err != nil {
		t.Fatalf("call with %v: %v", in, err)
	}
	if want := map[bool]int{true: 1}[answer != ""]; asked != want {
		t.Errorf("call with %v: %d approval requests, want %d: %+v", in, asked, want, got)
	}
	return got
}

// with returns the agent with another tool.
func (a agent) with(tool string) agent {
	a.tool = tool
	return a
}

// as returns the agent with another profile.
func (a agent) as(profile string) agent {
	a.profile = profile
	return a
}

// outputOf decodes the output of a tool.
func outputOf(t *testing.T, r v1.ToolResult) fields {
	t.Helper()
	var out fields
	if err := json.Unmarshal(r.Output, &out); err != nil {
		t.Fatalf("decode the output: %v in %+v", err, r)
	}
	return out
}

// assertFields checks fields of a call's output.
func assertFields(t *testing.T, r v1.ToolResult, want fields) {
	t.Helper()
	out := outputOf(t, r)
	for name, v := range want {
		if n, ok := v.(int); ok {
			v = float64(n)
		}
		if got, ok := out[name]; !ok || got != v {
			t.Errorf("field %s is %.200v, want %.200v, in %.1000s", name, got, v, r.Output)
		}
	}
}

// assertEnding checks the ending of a call, and the type and message of its error.
func assertEnding(t *testing.T, r v1.ToolResult, ending, kind, message string) {
	t.Helper()
	got := v1.ToolError{}
	if r.Error != nil {
		got = *r.Error
	}
	if r.Ending != ending || got.Type != kind || got.Message != message {
		t.Errorf("ending %s, error %q %q; want %s, %q %q (%.500s)",
			r.Ending, got.Type, got.Message, ending, kind, message, r.Output)
	}
}

// refusalRecord returns the only record of a call that a quota or rate limit refused. It has the
// size of the input, but not the input.
func refusalRecord(t *testing.T, s *harness.Server, r v1.ToolResult) v1.AuditRecord {
	t.Helper()
	list, err := s.Client.Audit.Records(callContext(t), client.AuditFilter{Call: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].Kind != "refused" || list[0].Ending != r.Ending || list[0].Action != r.Tool ||
		len(list[0].Input) > 0 || list[0].InputBytes == 0 {
		t.Fatalf("call %s (%s) left %+v, want one record of kind refused without its input", r.ID, r.Ending, list)
	}
	return list[0]
}

// closingRecord returns the closing record of a call that has an opening and a closing one.
func closingRecord(t *testing.T, s *harness.Server, r v1.ToolResult) v1.AuditRecord {
	t.Helper()
	list, err := s.Client.Audit.Records(callContext(t), client.AuditFilter{Call: r.ID})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Kind != "open" || list[1].Kind != "close" || list[1].Ending != r.Ending ||
		list[0].Action != r.Tool {
		t.Fatalf("call %s (%s) has records %+v, want an opening and a closing one", r.ID, r.Ending, list)
	}
	return list[1]
}

var words atomic.Int64

// uniqueWord returns a word that no other command line of this machine contains.
func uniqueWord() string { return fmt.Sprintf("contract%dx%dend", os.Getpid(), words.Add(1)) }

// awaitNoProcess waits until the host has no process with a word in its command line.
func awaitNoProcess(t *testing.T, mark string) {
	t.Helper()
	harness.Eventually(t, harness.Short, "no process of "+mark, func() bool { return len(harness.Marked(mark)) == 0 })
}

// awaitProcesses waits for at least n processes with a word in their command line.
func awaitProcesses(t *testing.T, mark string, n int) {
	t.Helper()
	harness.Eventually(t, harness.Short, "processes of "+mark, func() bool { return len(harness.Marked(mark)) >= n })
}

// profiles returns a configuration with a directory of profile files and small sandboxes.
func profiles(t *testing.T, files map[string]string) (config string) {
	t.Helper()
	dir := harness.TempDir(t)
	for name, text := range files {
		harness.WriteFile(t, filepath.Join(dir, name+".yaml"), text)
	}
	return harness.DefaultConfig + fmt.Sprintf("profiles: {dir: '%s'}\n", dir)
}

// assertTimeoutKills runs a command that starts hidden processes until its timeout, and checks on
// the host that all are dead. in returns the agent and the input for a command with a timeout in
// seconds, which grows until the machine is fast enough to start all processes.
func assertTimeoutKills(t *testing.T, in func(command string, seconds int) (agent, fields)) {
	t.Helper()
	const hidden = 5
	for seconds := 1; ; seconds *= 4 {
		mark := uniqueWord()
		sleep := `bash -c 'trap "" TERM INT HUP; sleep 600; :' ` + mark
		command := sleep + " & setsid " + sleep + " & (" + sleep + " & ) ; nohup " + sleep + " >/dev/null 2>&1 & (setsid " +
			sleep + " & ) & sleep 600"
		ended, most := make(chan struct{}), 0
		go func() { // waited for below
			defer close(ended)
			a, in := in(command, seconds)
			r, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, in), client.CallOptions{})
			if err != nil || r.Ending != "timeout" {
				t.Errorf("call with a timeout of %d s = %+v, %v; want timeout", seconds, r, err)
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
		awaitNoProcess(t, mark)
		switch {
		case most > hidden: // the hidden processes and their shell
			return
		case seconds > 60:
			t.Fatalf("saw at most %d processes, want more than %d", most, hidden)
		}
	}
}

// commandSet are commands with the same effect, by how they must be decided.
type commandSet struct {
	denied []string // refused without approval
	asked  []string // wait for approval
	runs   []string // run without approval
}

// assertDecided checks every command. None of denied and asked may run.
func (c commandSet) assertDecided(t *testing.T, a agent, refused func(t *testing.T, command string, r v1.ToolResult)) {
	t.Helper()
	for _, command := range c.denied {
		refused(t, command, a.run(t, command))
	}
	for _, command := range c.asked {
		if r := a.answered(t, fields{"command": command}, "deny"); r.Ending != "approval_denied" {
			t.Errorf("%s after a denial: %+v, want approval_denied", command, r)
		}
	}
	for _, command := range c.runs {
		if r := a.run(t, command); r.Ending != "exited" {
			t.Errorf("%s: ending %s, verdict %+v, text %s; want exited", command, r.Ending, r.Verdict, r.Text)
		}
	}
}

// lastOf returns the part of a line's id after the slash.
func lastOf(l line) string { return l.id[strings.IndexByte(l.id, '/')+1:] }
