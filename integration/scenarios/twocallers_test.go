//go:build integration

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// apart is a service whose callers' profile asks, and keeps a workspace for
// each of them.
const apart = onDemand + "profiles: {default: phase2}\n"

// as calls a tool with a caller's token over plain HTTP.
func (p somebody) as(t *testing.T, tool, body string) v1.ToolResult {
	t.Helper()
	got := p.ask(t, "POST", "/v1/tools/"+tool+"/call", body)
	if got.Status != http.StatusOK {
		t.Fatalf("%s %s: %d %s", tool, body, got.Status, got.Body)
	}
	var r v1.ToolResult
	got.Into(t, &r)
	return r
}

// Two callers of tools on one host: neither sees, reads, kills, answers or
// exhausts what is the other's, and what is another's is as what is nobody's.
func TestToolCallersAreIsolated(t *testing.T) {
	t.Parallel()
	onServer(t, apart, func(t *testing.T, s *harness.Server) {
		ann, bob := person(t, s, `{"caller":"ann","trust":3}`), person(t, s, `{"caller":"bob","trust":3}`)
		of := annsThings(t, s, ann)
		t.Run("by name", func(t *testing.T) { othersAreNobodys(t, s, bob, of) })
		t.Run("in lists", func(t *testing.T) { listsAreOnesOwn(t, bob, of) })
		t.Run("by the same names", func(t *testing.T) { sameNames(t, ann, bob) })
		t.Run("by keys", func(t *testing.T) { keysAreOnesOwn(t, s) })
		t.Run("in watching", func(t *testing.T) { watchesAreOnesOwn(t, s) })
		t.Run("over MCP", func(t *testing.T) { protocolSessionsAreOnesOwn(t, ann, bob) })

		// Nothing of it did anything.
		if got := ann.as(t, "system.output", `{"session":"`+session+`","input":{"shell_id":"`+of.shell+`"}}`); got.Ending != "ok" || !strings.Contains(string(got.Output), `"running"`) {
			t.Errorf("the shell: %+v %s", got, got.Output)
		}
		if got := ann.ask(t, "GET", "/v1/calls/"+of.call+"/output", ""); got.Status != http.StatusOK || !strings.Contains(string(got.Body), "secret-of-ann") {
			t.Errorf("the output: %d %.200s", got.Status, got.Body)
		}
		if got, err := s.Client.Approval(within(t), of.question); err != nil || got.State != "pending" {
			t.Errorf("the question: %+v %v", got, err)
		}
	})
}

// session is that of ann's things: a name that is in no other text.
const session = "session-0f3a"

// things are what a caller has.
type things struct{ box, shell, call, question string }

// annsThings are a session with a shell, a call with an output that is kept,
// and a question; all of them have the word secret-of-ann in them.
func annsThings(t *testing.T, s *harness.Server, ann somebody) things {
	t.Helper()
	r := ann.as(t, "system.bash", `{"session":"`+session+`","input":{"command":"echo secret-of-ann > secret; echo secret-of-ann; sleep 1000","run_in_background":true}}`)
	var started struct {
		ID string `json:"background_task_id"`
	}
	harness.Answer{Body: r.Output}.Into(t, &started)
	big := ann.as(t, "system.bash", `{"session":"`+session+`","input":{"command":"yes secret-of-ann | head -20000"}}`)
	if started.ID == "" || big.ID == "" || r.SandboxID == "" {
		t.Fatalf("%+v %s %+v", r, r.Output, big)
	}
	c := bearer(t, s, ann)
	q, err := ask(within(t), c, "k", v1.ToolCall{Session: session, Input: input(t, map[string]any{"command": "rm -r secret-of-ann"})})
	if err != nil {
		t.Fatal(err)
	}
	return things{box: r.SandboxID, shell: started.ID, call: big.ID, question: q.ID}
}

// bearer is a client with the token of a person.
func bearer(t *testing.T, s *harness.Server, p somebody) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{Address: "unix:" + s.Socket(), Token: strings.TrimPrefix(p.header[1], "Bearer ")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func othersAreNobodys(t *testing.T, s *harness.Server, bob somebody, of things) {
	for _, c := range []struct {
		method, path, body, theirs string
		status                     int
	}{
		{"POST", "/v1/tools/system.bash/call", `{"sandbox":"ID","input":{"command":"cat secret"}}`, of.box, 404},
		{"POST", "/v1/tools/system.shells/call", `{"sandbox":"ID"}`, of.box, 404},
		{"POST", "/v1/tools/system.output/call", `{"sandbox":"ID","input":{"shell_id":"` + of.shell + `"}}`, of.box, 404},
		{"POST", "/v1/tools/system.kill/call", `{"sandbox":"ID","input":{"shell_id":"` + of.shell + `"}}`, of.box, 404},
		{"POST", "/v1/tools/system.output/call", `{"input":{"shell_id":"ID"}}`, of.shell, 200},
		{"POST", "/v1/tools/system.output/call", `{"session":"` + session + `","input":{"shell_id":"ID"}}`, of.shell, 200},
		{"POST", "/v1/tools/system.kill/call", `{"input":{"shell_id":"ID"}}`, of.shell, 200},
		{"POST", "/v1/tools/system.kill/call", `{"session":"` + session + `","input":{"shell_id":"ID"}}`, of.shell, 200},
		{"POST", "/v1/tools/system.output/call", `{"input":{"shell_id":"ID"}}`, of.call, 200},
		{"GET", "/v1/shells/ID", "", of.shell, 404},
		{"GET", "/v1/shells/ID/output", "", of.shell, 404},
		{"DELETE", "/v1/shells/ID", "", of.shell, 404},
		{"GET", "/v1/calls/ID/output", "", of.call, 404},
		{"GET", "/v1/calls/ID/output?stream=stderr", "", of.call, 404},
		{"DELETE", "/v1/sessions/ID", "", session, 404},
		{"GET", "/v1/approvals/ID", "", of.question, 404},
		{"POST", "/v1/approvals/ID/answer", `{"action":"approve"}`, of.question, 403},
		{"POST", "/v1/approvals/ID/answer", `{"action":"deny"}`, of.question, 403},
	} {
		get := func(id string) (int, string) {
			got := bob.ask(t, c.method, strings.ReplaceAll(c.path, "ID", id), strings.ReplaceAll(c.body, "ID", id))
			text := strings.ReplaceAll(string(got.Body), id, "ID")
			if got.Status == http.StatusOK { // whose id and times are the call's own
				var r v1.ToolResult
				got.Into(t, &r)
				text = strings.ReplaceAll(fmt.Sprint(r.Ending, string(r.Output), r.Text, r.Error == nil, r.SandboxID), id, "ID")
			}
			return got.Status, text
		}
		none := nobody
		status, theirs := get(c.theirs)
		if _, nobodys := get(none); status != c.status || theirs != nobodys || strings.Contains(theirs, "secret-of-ann") {
			t.Errorf("%s %s %s: %d %s\nand for nobody's %s", c.method, c.path, c.body, status, theirs, nobodys)
		}
	}
	if got, err := s.Client.Audit(within(t), client.AuditFilter{Caller: "bob"}); err != nil || len(got) == 0 {
		t.Errorf("no record of what bob tried: %v", err)
	}
}

func listsAreOnesOwn(t *testing.T, bob somebody, of things) {
	for _, path := range []string{
		"/v1/approvals", "/v1/approvals?state=pending", "/v1/audit", "/v1/audit?caller=ann", "/v1/audit?call=" + of.call, "/v1/audit?sandbox=" + of.box,
		"/v1/sandboxes?ended=true", "/v1/workspaces", "/v1/tools", "/v1/profiles",
	} {
		got := bob.ask(t, "GET", path, "")
		if got.Status != http.StatusOK {
			t.Errorf("%s: %d %s", path, got.Status, got.Body)
		}
		for _, word := range []string{`"ann"`, "secret-of-ann", of.box, of.call, of.question} {
			if strings.Contains(path, word) {
				continue
			}
			// What bob sent himself may hold their ids.
			if strings.HasPrefix(path, "/v1/audit") && word != `"ann"` && word != "secret-of-ann" {
				continue
			}
			if strings.Contains(string(got.Body), word) {
				t.Errorf("%s tells of %s: %s", path, word, got.Body)
			}
		}
	}
	for _, path := range []string{"/v1/audit/export", "/v1/audit/verify", "/v1/tokens"} {
		bob.ask(t, "GET", path, "").Problem(t, http.StatusForbidden, "permission_denied", "")
	}
	for _, body := range []string{`{"caller":"bob","operator":true,"trust":3}`, `{"caller":"ann","trust":3}`} {
		bob.ask(t, "POST", "/v1/tokens", body).Problem(t, http.StatusForbidden, "permission_denied", "")
	}
	if got := bob.ask(t, "GET", "/v1/profiles", ""); strings.Contains(string(got.Body), "gateway") {
		t.Errorf("bob sees profiles that are not his: %s", got.Body)
	}
}

// Sessions, jobs and homes of the same name are two callers' own.
func sameNames(t *testing.T, ann, bob somebody) {
	for _, place := range []string{`"session":"same"`, `"job":"` + jobID + `"`, `"read_only":false`} {
		at := func(command string) string { return `{` + place + `,"input":{"command":"` + command + `"}}` }
		a, b := ann.as(t, "system.bash", at("echo of-ann > same.txt")), bob.as(t, "system.bash", at("echo of-bob > same.txt; ls"))
		if a.Ending != "exited" || b.Ending != "exited" || a.SandboxID == b.SandboxID {
			t.Errorf("%s: %+v %+v", place, a, b)
		}
		for _, p := range []struct {
			who  somebody
			word string
		}{{ann, "of-ann"}, {bob, "of-bob"}} {
			if got := p.who.as(t, "system.bash", at("cat same.txt")); !strings.Contains(string(got.Output), p.word) {
				t.Errorf("%s: %s", place, got.Output)
			}
		}
	}
	for _, p := range []somebody{ann, bob} {
		if got := p.ask(t, "DELETE", "/v1/sessions/same", ""); got.Status != http.StatusNoContent {
			t.Errorf("%d %s", got.Status, got.Body)
		}
	}
}

// The same idempotency key of two callers is two keys.
func keysAreOnesOwn(t *testing.T, s *harness.Server) {
	eve, fay := token(t, s, v1.TokenRequest{Caller: "eve", Trust: 3}), token(t, s, v1.TokenRequest{Caller: "fay", Trust: 3})
	one := func(c *client.Client, command string) v1.ToolResult {
		t.Helper()
		got, err := c.CallTool(within(t), "system.bash", v1.ToolCall{Input: input(t, map[string]any{"command": command})}, client.CallOptions{IdempotencyKey: "same"})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first, other := one(eve, "echo of-eve"), one(fay, "echo of-eve")
	if first.ID == other.ID || one(eve, "echo of-eve").ID != first.ID {
		t.Errorf("%s %s", first.ID, other.ID)
	}
	asked, err := ask(within(t), eve, "q", asking(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	hers, err := ask(within(t), fay, "q", asking(t, 1))
	if err != nil || hers.ID == asked.ID {
		t.Errorf("%+v %v", hers, err)
	}
	for _, id := range []string{asked.ID, hers.ID} {
		if _, err := s.Client.AnswerApproval(within(t), id, v1.ApprovalAnswer{Action: "deny"}); err != nil {
			t.Error(err)
		}
	}
}

// Who watches is told of their own questions, and an operator of all.
func watchesAreOnesOwn(t *testing.T, s *harness.Server) {
	eve, fay := token(t, s, v1.TokenRequest{Caller: "eve", Trust: 3}), token(t, s, v1.TokenRequest{Caller: "fay", Trust: 3})
	var mu sync.Mutex
	heard := map[string][]string{}
	ctx, cancel := context.WithCancel(within(t))
	var watches sync.WaitGroup
	defer watches.Wait()
	defer cancel()
	for name, c := range map[string]*client.Client{"eve": eve, "fay": fay, "local": s.Client} {
		watches.Go(func() {
			err := c.WatchApprovals(ctx, func(e v1.ApprovalEvent) error {
				mu.Lock()
				defer mu.Unlock()
				heard[name] = append(heard[name], e.Approval.ID)
				return nil
			})
			if err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	var ids []string
	for i, c := range []*client.Client{eve, fay} {
		q, err := ask(within(t), c, fmt.Sprint("w", i), asking(t, i))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, q.ID)
	}
	has := func(name, id string) bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(strings.Join(heard[name], " "), id)
	}
	harness.Eventually(t, harness.Short, "each hears of theirs, and the operator of both", func() bool {
		return has("eve", ids[0]) && has("fay", ids[1]) && has("local", ids[0]) && has("local", ids[1])
	})
	if has("eve", ids[1]) || has("fay", ids[0]) {
		t.Errorf("heard of another's question: %v", heard)
	}
	for _, id := range ids {
		if _, err := s.Client.AnswerApproval(within(t), id, v1.ApprovalAnswer{Action: "deny"}); err != nil {
			t.Error(err)
		}
	}
}

// speak sends a message of the Model Context Protocol.
func (p somebody) speak(t *testing.T, method, session, message string) harness.Answer {
	t.Helper()
	header := append([]string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream", "MCP-Protocol-Version", "2025-06-18"}, p.header...)
	if session != "" {
		header = append(header, "Mcp-Session-Id", session)
	}
	return p.Ask(t, method, "/mcp", message, header...)
}

// A session of the protocol is its caller's: for another it is as one that is
// not there, and it goes on.
func protocolSessionsAreOnesOwn(t *testing.T, ann, bob somebody) {
	const (
		begin = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"scenario","version":"1"}}}`
		begun = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
		cat   = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"system_bash","arguments":{"command":"echo of-ann >> mcp.txt; cat mcp.txt"}}}`
	)
	opened := ann.speak(t, "POST", "", begin)
	id := opened.Header.Get("Mcp-Session-Id")
	if opened.Status != http.StatusOK || id == "" {
		t.Fatalf("%d %v %s", opened.Status, opened.Header, opened.Body)
	}
	ann.speak(t, "POST", id, begun)
	if got := ann.speak(t, "POST", id, cat); got.Status != http.StatusOK || !strings.Contains(string(got.Body), "of-ann") {
		t.Fatalf("%d %s", got.Status, got.Body)
	}
	for _, c := range [][2]string{{"POST", cat}, {"POST", begun}, {"DELETE", ""}} {
		theirs, none := bob.speak(t, c[0], id, c[1]), bob.speak(t, c[0], "no-such-session", c[1])
		if theirs.Status/100 != 4 || theirs.Status != none.Status || string(theirs.Body) != string(none.Body) {
			t.Errorf("%s %s: %d %s, and for nobody's %d %s", c[0], c[1], theirs.Status, theirs.Body, none.Status, none.Body)
		}
	}
	if got := ann.speak(t, "POST", id, cat); got.Status != http.StatusOK || strings.Count(string(got.Body), "of-ann") < 2 {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	if got := ann.speak(t, "DELETE", id, ""); got.Status/100 != 2 {
		t.Errorf("%d %s", got.Status, got.Body)
	}
}

// A caller who floods the service with calls, questions, output and sandboxes
// does not keep another from an answer.
func TestFloodOfOneCaller(t *testing.T) {
	const config = `
templates:
  default:
    limits: {memory: 128MiB, pids: 100}
    pool: {min: 1, max: 10, rate: 20, parallel: 2}
admission: {max_sandboxes: 10}
profiles: {default: phase2}
callers: {sandboxes: 4, max_waiting: 20, max_pending: 10, calls: 5000}
`
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: config, Seed: &seed})
	ann, bob := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 3}), token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3})
	ctx, cancel := context.WithCancel(within(t))
	var flood sync.WaitGroup
	defer flood.Wait()
	defer cancel()
	for _, r := range []struct {
		n    int
		call v1.ToolCall
	}{
		{20, asking(t, 0)},
		{20, v1.ToolCall{Template: "default", Input: input(t, map[string]any{"command": "true"})}},
		{4, v1.ToolCall{Session: "out", Input: input(t, map[string]any{"command": "yes | head -c 50000000"})}},
		{20, v1.ToolCall{Session: "out", Input: input(t, map[string]any{"command": "echo )"})}},
		{4, v1.ToolCall{Session: "a", Input: input(t, map[string]any{"command": "sleep 1"})}},
		{4, v1.ToolCall{Session: "b", Input: input(t, map[string]any{"command": "sleep 1"})}},
	} {
		for range r.n {
			flood.Go(func() {
				for ctx.Err() == nil {
					// Most are refused, which is what the flood is for.
					_, err := ann.CallTool(ctx, "system.bash", r.call, client.CallOptions{})
					if p, ok := errors.AsType[*v1.Problem](err); ok && p.Status >= 500 && p.Status != http.StatusServiceUnavailable && p.Status != http.StatusGatewayTimeout {
						t.Errorf("to the flood: %v", err)
					}
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Millisecond):
					}
				}
			})
		}
	}
	var worst time.Duration
	for i := range 10 {
		began := time.Now()
		got, err := bob.CallTool(within(t), "system.bash", v1.ToolCall{Template: "default", Input: input(t, map[string]any{"command": "echo fine"})}, client.CallOptions{})
		if err != nil || got.Ending != "exited" {
			t.Errorf("a call: %+v %v", got, err)
		}
		q, err := ask(within(t), bob, fmt.Sprint("k", i), asking(t, i))
		if err != nil {
			t.Errorf("a question: %v", err)
		}
		if list, err := bob.Approvals(within(t), "pending"); err != nil || len(list) == 0 || list[0].ID != q.ID {
			t.Errorf("the list: %+v %v", list, err)
		}
		if _, err := s.Client.AnswerApproval(within(t), q.ID, v1.ApprovalAnswer{Action: "deny"}); err != nil {
			t.Errorf("the answer: %v", err)
		}
		worst = max(worst, time.Since(began))
	}
	t.Logf("a call, a question, a list and an answer took %s at most", worst)
	if worst > harness.Long {
		t.Errorf("they took %s", worst)
	}
	if list, err := s.Client.Sandboxes(within(t), false); err != nil || count(list) > 10 {
		t.Errorf("%d sandboxes %v", len(list), err)
	}
	if got := harness.PeakMemory(t, s.Pid()); got > inputMemory {
		t.Errorf("the service had %d MiB", got>>20)
	}
}

// count counts what is not over.
func count(list []v1.Sandbox) (n int) {
	for _, b := range list {
		if b.EndedAt == nil {
			n++
		}
	}
	return n
}

// A caller's calls of a day are theirs alone, and the refusal says when there
// are more.
func TestCallsOfADay(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: apart, Seed: &seed})
	ann, bob := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 3, Quotas: v1.Quotas{Calls: 3}}), token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3})
	r := v1.ToolCall{Session: "s", Input: input(t, map[string]any{"command": "true"})}
	for i := range 5 {
		got, err := ann.CallTool(within(t), "system.bash", r, client.CallOptions{})
		if i < 3 && (err != nil || got.Ending != "exited") {
			t.Errorf("call %d: %+v %v", i, got, err)
		}
		if i >= 3 && (err != nil || got.Ending != "policy_denied" || got.Error == nil || got.Error.RetryAfterMS <= 0) {
			t.Errorf("call %d: %+v %v", i, got, err)
		}
	}
	if got, err := bob.CallTool(within(t), "system.bash", r, client.CallOptions{}); err != nil || got.Ending != "exited" {
		t.Errorf("%+v %v", got, err)
	}
	s.Term()
	s.Start()
	if got, err := ann.CallTool(within(t), "system.bash", r, client.CallOptions{}); err != nil || got.Ending != "policy_denied" {
		t.Errorf("after a restart: %+v %v", got, err)
	}
}
