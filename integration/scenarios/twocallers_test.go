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

// askingConfig has a default profile that asks for approval and keeps a workspace for each caller.
const askingConfig = onDemand + "profiles: {default: phase2}\n"

// callTool calls a tool, which must be answered.
func (c caller) callTool(t *testing.T, tool, body string) v1.ToolResult {
	t.Helper()
	got := c.request(t, "POST", "/v1/tools/"+tool+"/call", body)
	if got.Status != http.StatusOK {
		t.Fatalf("call %s %s: status %d, want 200: %s", tool, body, got.Status, got.Body)
	}
	var r v1.ToolResult
	got.Into(t, &r)
	return r
}

// TestToolCallersAreIsolated checks that a caller neither sees nor changes another caller's shells,
// output and approval requests, and gets the same answers as for unknown ones.
func TestToolCallersAreIsolated(t *testing.T) {
	t.Parallel()
	onServer(t, askingConfig, func(t *testing.T, s *harness.Server) {
		ann, bob := newCaller(t, s, `{"caller":"ann","trust":3}`), newCaller(t, s, `{"caller":"bob","trust":3}`)
		own := createOwned(t, ann)
		t.Run("ids", func(t *testing.T) { testOwnedIsHidden(t, s, bob, own) })
		t.Run("lists", func(t *testing.T) { testListsAreSeparate(t, bob, own) })
		t.Run("equal names", func(t *testing.T) { testSameNames(t, ann, bob) })
		t.Run("idempotency keys", func(t *testing.T) { testKeysAreSeparate(t, s) })
		t.Run("watching approvals", func(t *testing.T) { testWatchesAreSeparate(t, s) })
		t.Run("MCP sessions", func(t *testing.T) { testMcpSessionsAreSeparate(t, ann, bob) })

		// None of these requests had an effect.
		shell := ann.callTool(t, "system.output", `{"session":"`+session+`","input":{"shell_id":"`+own.shell+`"}}`)
		if shell.Ending != "ok" || !strings.Contains(string(shell.Output), `"running"`) {
			t.Errorf("ann's shell = %+v %s, want it running", shell, shell.Output)
		}
		got := ann.request(t, "GET", "/v1/calls/"+own.call+"/output", "")
		if got.Status != http.StatusOK || !strings.Contains(string(got.Body), "secret-of-ann") {
			t.Errorf("output of ann's call: status %d, want 200 with her word: %.200s", got.Status, got.Body)
		}
		if got, err := s.Client.Approvals.Get(within(t), own.approval); err != nil || got.State != "pending" {
			t.Errorf("ann's approval request = %+v, %v; want it pending", got, err)
		}
	})
}

// session is ann's session: a name that appears in no other text.
const session = "session-0f3a"

// owned has the ids of what a caller has.
type owned struct{ sandbox, shell, call, approval string }

// createOwned creates a session with a shell, a call with stored output, and an approval request
// for ann. All of them contain the word secret-of-ann.
func createOwned(t *testing.T, ann caller) owned {
	t.Helper()
	r := ann.callTool(t, "system.bash", `{"session":"`+session+
		`","input":{"command":"echo secret-of-ann > secret; echo secret-of-ann; sleep 1000","run_in_background":true}}`)
	var started struct {
		ID string `json:"background_task_id"`
	}
	harness.Answer{Body: r.Output}.Into(t, &started)
	big := ann.callTool(t, "system.bash", `{"session":"`+session+
		`","input":{"command":"yes secret-of-ann | head -20000"}}`)
	if started.ID == "" || big.ID == "" || r.SandboxID == "" {
		t.Fatalf("background call %+v %s, call with output %+v; want ids of shell, call and sandbox", r, r.Output, big)
	}
	remove := v1.ToolCall{Session: session, Input: input(t, map[string]any{"command": "rm -r secret-of-ann"})}
	q, err := requestApproval(within(t), ann.client(t), "k", remove)
	if err != nil {
		t.Fatal(err)
	}
	return owned{sandbox: r.SandboxID, shell: started.ID, call: big.ID, approval: q.ID}
}

// client returns a client with the caller's token.
func (c caller) client(t *testing.T) *client.Client {
	t.Helper()
	cl, err := client.New(client.Options{
		Address: "unix:" + c.Socket(), Token: strings.TrimPrefix(c.header[1], "Bearer "),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// testOwnedIsHidden checks that requests of bob for what another caller has get the same answer as
// for unknown ids.
func testOwnedIsHidden(t *testing.T, s *harness.Server, bob caller, own owned) {
	for _, c := range []struct {
		method, path, body, existing string
		status                       int
	}{
		{"POST", "/v1/tools/system.bash/call", `{"sandbox":"ID","input":{"command":"cat secret"}}`, own.sandbox, 404},
		{"POST", "/v1/tools/system.shells/call", `{"sandbox":"ID"}`, own.sandbox, 404},
		{"POST", "/v1/tools/system.output/call", `{"sandbox":"ID","input":{"shell_id":"` + own.shell + `"}}`, own.sandbox,
			404},
		{"POST", "/v1/tools/system.kill/call", `{"sandbox":"ID","input":{"shell_id":"` + own.shell + `"}}`, own.sandbox, 404},
		{"POST", "/v1/tools/system.output/call", `{"input":{"shell_id":"ID"}}`, own.shell, 200},
		{"POST", "/v1/tools/system.output/call", `{"session":"` + session + `","input":{"shell_id":"ID"}}`, own.shell, 200},
		{"POST", "/v1/tools/system.kill/call", `{"input":{"shell_id":"ID"}}`, own.shell, 200},
		{"POST", "/v1/tools/system.kill/call", `{"session":"` + session + `","input":{"shell_id":"ID"}}`, own.shell, 200},
		{"POST", "/v1/tools/system.output/call", `{"input":{"shell_id":"ID"}}`, own.call, 200},
		{"GET", "/v1/shells/ID", "", own.shell, 404},
		{"GET", "/v1/shells/ID/output", "", own.shell, 404},
		{"DELETE", "/v1/shells/ID", "", own.shell, 404},
		{"GET", "/v1/calls/ID/output", "", own.call, 404},
		{"GET", "/v1/calls/ID/output?stream=stderr", "", own.call, 404},
		{"DELETE", "/v1/sessions/ID", "", session, 404},
		{"GET", "/v1/approvals/ID", "", own.approval, 404},
		{"POST", "/v1/approvals/ID/answer", `{"action":"approve"}`, own.approval, 403},
		{"POST", "/v1/approvals/ID/answer", `{"action":"deny"}`, own.approval, 403},
	} {
		answer := func(id string) (int, string) {
			got := bob.request(t, c.method, strings.ReplaceAll(c.path, "ID", id), strings.ReplaceAll(c.body, "ID", id))
			text := strings.ReplaceAll(string(got.Body), id, "ID")
			if got.Status == http.StatusOK { // the id and times of the call itself differ
				var r v1.ToolResult
				got.Into(t, &r)
				text = fmt.Sprint(r.Ending, string(r.Output), r.Text, r.Error == nil, r.SandboxID)
				text = strings.ReplaceAll(text, id, "ID")
			}
			return got.Status, text
		}
		status, existing := answer(c.existing)
		_, unknown := answer(unknownID)
		if status != c.status || existing != unknown || strings.Contains(existing, "secret-of-ann") {
			t.Errorf("%s %s %s of another caller: status %d, %s\nwant status %d and the answer for an unknown id: %s",
				c.method, c.path, c.body, status, existing, c.status, unknown)
		}
	}
	if got, err := s.Client.Audit.Records(within(t), client.AuditFilter{Caller: "bob"}); err != nil || len(got) == 0 {
		t.Errorf("Audit of bob = %d records, %v; want records of his requests", len(got), err)
	}
}

// testListsAreSeparate checks that lists show bob nothing of another caller, and that operators'
// routes refuse him.
func testListsAreSeparate(t *testing.T, bob caller, own owned) {
	for _, path := range []string{
		"/v1/approvals", "/v1/approvals?state=pending",
		"/v1/audit", "/v1/audit?caller=ann", "/v1/audit?call=" + own.call, "/v1/audit?sandbox=" + own.sandbox,
		"/v1/sandboxes?ended=true", "/v1/workspaces", "/v1/tools", "/v1/profiles",
	} {
		got := bob.request(t, "GET", path, "")
		if got.Status != http.StatusOK {
			t.Errorf("GET %s: status %d, want 200: %s", path, got.Status, got.Body)
		}
		for _, word := range []string{`"ann"`, "secret-of-ann", own.sandbox, own.call, own.approval} {
			if strings.Contains(path, word) {
				continue
			}
			// Bob's own requests, which are recorded, contain the ids.
			if strings.HasPrefix(path, "/v1/audit") && word != `"ann"` && word != "secret-of-ann" {
				continue
			}
			if strings.Contains(string(got.Body), word) {
				t.Errorf("GET %s shows bob %s, want it hidden: %s", path, word, got.Body)
			}
		}
	}
	for _, path := range []string{"/v1/audit/export", "/v1/audit/verify", "/v1/tokens"} {
		bob.request(t, "GET", path, "").Problem(t, http.StatusForbidden, "permission_denied", "")
	}
	for _, body := range []string{`{"caller":"bob","operator":true,"trust":3}`, `{"caller":"ann","trust":3}`} {
		bob.request(t, "POST", "/v1/tokens", body).Problem(t, http.StatusForbidden, "permission_denied", "")
	}
	if got := bob.request(t, "GET", "/v1/profiles", ""); strings.Contains(string(got.Body), "gateway") {
		t.Errorf("GET /v1/profiles shows bob %s, want only profiles that he can use", got.Body)
	}
}

// testSameNames checks that sessions, jobs and home workspaces of the same name are separate for
// each caller.
func testSameNames(t *testing.T, ann, bob caller) {
	for _, place := range []string{`"session":"same"`, `"job":"` + jobID + `"`, `"read_only":false`} {
		at := func(command string) string { return `{` + place + `,"input":{"command":"` + command + `"}}` }
		a := ann.callTool(t, "system.bash", at("echo of-ann > same.txt"))
		b := bob.callTool(t, "system.bash", at("echo of-bob > same.txt; ls"))
		if a.Ending != "exited" || b.Ending != "exited" || a.SandboxID == b.SandboxID {
			t.Errorf("%s: ann's call %+v, bob's call %+v; want both exited in different sandboxes", place, a, b)
		}
		for _, p := range []struct {
			caller caller
			word   string
		}{{ann, "of-ann"}, {bob, "of-bob"}} {
			if got := p.caller.callTool(t, "system.bash", at("cat same.txt")); !strings.Contains(string(got.Output), p.word) {
				t.Errorf("%s: the caller's file has %s, want %s", place, got.Output, p.word)
			}
		}
	}
	for _, p := range []caller{ann, bob} {
		if got := p.request(t, "DELETE", "/v1/sessions/same", ""); got.Status != http.StatusNoContent {
			t.Errorf("DELETE session: status %d, want 204: %s", got.Status, got.Body)
		}
	}
}

// testKeysAreSeparate checks that the same idempotency key of two callers is two keys.
func testKeysAreSeparate(t *testing.T, s *harness.Server) {
	eve := token(t, s, v1.TokenRequest{Caller: "eve", Trust: 3})
	fay := token(t, s, v1.TokenRequest{Caller: "fay", Trust: 3})
	callWithKey := func(c *client.Client, command string) v1.ToolResult {
		t.Helper()
		r := v1.ToolCall{Input: input(t, map[string]any{"command": command})}
		got, err := c.Tools.Call(within(t), "system.bash", r, client.CallOptions{IdempotencyKey: "same"})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first, other := callWithKey(eve, "echo of-eve"), callWithKey(fay, "echo of-eve")
	if first.ID == other.ID || callWithKey(eve, "echo of-eve").ID != first.ID {
		t.Errorf("the same key gave eve call %s and fay call %s, want two calls that stay the same", first.ID, other.ID)
	}
	hers, err := requestApproval(within(t), eve, "q", callNeedingApproval(t, 1))
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := requestApproval(within(t), fay, "q", callNeedingApproval(t, 1))
	if err != nil || theirs.ID == hers.ID {
		t.Errorf("the same key gave fay approval request %+v, %v; want another one than %s", theirs, err, hers.ID)
	}
	for _, id := range []string{hers.ID, theirs.ID} {
		if _, err := s.Client.Approvals.Answer(within(t), id, v1.ApprovalAnswer{Action: "deny"}); err != nil {
			t.Error(err)
		}
	}
}

// testWatchesAreSeparate checks that a caller who watches approvals gets events of their own
// requests only, and an operator those of all.
func testWatchesAreSeparate(t *testing.T, s *harness.Server) {
	eve := token(t, s, v1.TokenRequest{Caller: "eve", Trust: 3})
	fay := token(t, s, v1.TokenRequest{Caller: "fay", Trust: 3})
	var mu sync.Mutex
	events := map[string][]string{}
	ctx, cancel := context.WithCancel(within(t))
	var watches sync.WaitGroup
	defer watches.Wait()
	defer cancel()
	for name, c := range map[string]*client.Client{"eve": eve, "fay": fay, "local": s.Client} {
		watches.Go(func() {
			err := c.Approvals.Watch(ctx, func(e v1.ApprovalEvent) error {
				mu.Lock()
				defer mu.Unlock()
				events[name] = append(events[name], e.Approval.ID)
				return nil
			})
			if err != nil && ctx.Err() == nil {
				t.Errorf("WatchApprovals of %s: %v", name, err)
			}
		})
	}
	watched := []*client.Client{eve, fay}
	ids := make([]string, 0, len(watched))
	for i, c := range watched {
		q, err := requestApproval(within(t), c, fmt.Sprint("w", i), callNeedingApproval(t, i))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, q.ID)
	}
	has := func(name, id string) bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(strings.Join(events[name], " "), id)
	}
	harness.Eventually(t, harness.Short, "each caller gets an event of their request, and the operator both", func() bool {
		return has("eve", ids[0]) && has("fay", ids[1]) && has("local", ids[0]) && has("local", ids[1])
	})
	if has("eve", ids[1]) || has("fay", ids[0]) {
		t.Errorf("events by caller = %v, want none of another caller's request", events)
	}
	for _, id := range ids {
		if _, err := s.Client.Approvals.Answer(within(t), id, v1.ApprovalAnswer{Action: "deny"}); err != nil {
			t.Error(err)
		}
	}
}

// sendMCP sends a message of the Model Context Protocol.
func (c caller) sendMCP(t *testing.T, method, session, message string) harness.Answer {
	t.Helper()
	header := append([]string{
		"Content-Type", "application/json",
		"Accept", "application/json, text/event-stream",
		"MCP-Protocol-Version", "2025-06-18",
	}, c.header...)
	if session != "" {
		header = append(header, "Mcp-Session-Id", session)
	}
	return c.Ask(t, method, "/mcp", message, header...)
}

// testMcpSessionsAreSeparate checks that requests for another caller's protocol session get the
// same answer as for an unknown one, and leave it usable.
func testMcpSessionsAreSeparate(t *testing.T, ann, bob caller) {
	const (
		initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",` +
			`"capabilities":{},"clientInfo":{"name":"scenario","version":"1"}}}`
		initialized = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
		cat         = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"system_bash",` +
			`"arguments":{"command":"echo of-ann >> mcp.txt; cat mcp.txt"}}}`
	)
	opened := ann.sendMCP(t, "POST", "", initialize)
	id := opened.Header.Get("Mcp-Session-Id")
	if opened.Status != http.StatusOK || id == "" {
		t.Fatalf("initialize: status %d, header %v, want 200 with a session: %s", opened.Status, opened.Header, opened.Body)
	}
	ann.sendMCP(t, "POST", id, initialized)
	if got := ann.sendMCP(t, "POST", id, cat); got.Status != http.StatusOK ||
		!strings.Contains(string(got.Body), "of-ann") {
		t.Fatalf("system_bash: status %d, want 200 with the file's content: %s", got.Status, got.Body)
	}
	for _, c := range [][2]string{{"POST", cat}, {"POST", initialized}, {"DELETE", ""}} {
		existing, unknown := bob.sendMCP(t, c[0], id, c[1]), bob.sendMCP(t, c[0], "no-such-session", c[1])
		if existing.Status/100 != 4 || existing.Status != unknown.Status || string(existing.Body) != string(unknown.Body) {
			t.Errorf("%s %s to another caller's session: status %d %s, want that of an unknown one: %d %s",
				c[0], c[1], existing.Status, existing.Body, unknown.Status, unknown.Body)
		}
	}
	if got := ann.sendMCP(t, "POST", id, cat); got.Status != http.StatusOK ||
		strings.Count(string(got.Body), "of-ann") < 2 {
		t.Errorf("system_bash after bob's requests: status %d, want 200 with two lines: %s", got.Status, got.Body)
	}
	if got := ann.sendMCP(t, "DELETE", id, ""); got.Status/100 != 2 {
		t.Errorf("DELETE session: status %d, want success: %s", got.Status, got.Body)
	}
}

// TestFloodOfOneCallerDoesNotBlockOthers floods the service with one caller's calls, approval
// requests, output and sandboxes. Another caller's requests must be answered in time.
func TestFloodOfOneCallerDoesNotBlockOthers(t *testing.T) {
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
	ann := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 3})
	bob := token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3})
	ctx, cancel := context.WithCancel(within(t))
	var flood sync.WaitGroup
	defer flood.Wait()
	defer cancel()
	startFlood(ctx, t, ann, &flood)
	var worst time.Duration
	for i := range 10 {
		began := time.Now()
		requestsAreAnswered(t, s, bob, i)
		worst = max(worst, time.Since(began))
	}
	t.Logf("a call, an approval request, a list and an answer took up to %s", worst)
	if worst > harness.Long {
		t.Errorf("they took up to %s, want at most %s", worst, harness.Long)
	}
	if list, err := s.Client.Sandboxes(within(t), false); err != nil || countLive(list) > 10 {
		t.Errorf("Sandboxes = %d sandboxes, %v; want at most 10 that are live", len(list), err)
	}
	if got := harness.PeakMemory(t, s.Pid()); got > inputMemory {
		t.Errorf("peak memory %d MiB, want at most %d MiB", got>>20, inputMemory>>20)
	}
}

// startFlood starts clients that call tools repeatedly until ctx is done. Most calls are refused.
func startFlood(ctx context.Context, t *testing.T, c *client.Client, flood *sync.WaitGroup) {
	t.Helper()
	bash := func(session, command string) v1.ToolCall {
		return v1.ToolCall{Session: session, Input: input(t, map[string]any{"command": command})}
	}
	for _, r := range []struct {
		clients int
		call    v1.ToolCall
	}{
		{20, callNeedingApproval(t, 0)},
		{20, v1.ToolCall{Template: "default", Input: input(t, map[string]any{"command": "true"})}},
		{4, bash("out", "yes | head -c 50000000")},
		{20, bash("out", "echo )")},
		{4, bash("a", "sleep 1")},
		{4, bash("b", "sleep 1")},
	} {
		for range r.clients {
			flood.Go(func() {
				for ctx.Err() == nil {
					_, err := c.Tools.Call(ctx, "system.bash", r.call, client.CallOptions{})
					if p, ok := errors.AsType[*v1.Problem](err); ok && p.Status >= 500 &&
						p.Status != http.StatusServiceUnavailable && p.Status != http.StatusGatewayTimeout {
						t.Errorf("a call of the flood: %v, want no internal error", err)
					}
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Millisecond):
					}
				}
			})
		}
	}
}

// requestsAreAnswered makes the nth call, requests an approval, finds it in the list, and denies
// it.
func requestsAreAnswered(t *testing.T, s *harness.Server, c *client.Client, n int) {
	t.Helper()
	fine := v1.ToolCall{Template: "default", Input: input(t, map[string]any{"command": "echo fine"})}
	got, err := c.Tools.Call(within(t), "system.bash", fine, client.CallOptions{})
	if err != nil || got.Ending != "exited" {
		t.Errorf("system.bash during the flood = %+v, %v; want exited", got, err)
	}
	q, err := requestApproval(within(t), c, fmt.Sprint("k", n), callNeedingApproval(t, n))
	if err != nil {
		t.Errorf("approval request during the flood: %v", err)
	}
	if list, err := c.Approvals.List(within(t), "pending"); err != nil || len(list) == 0 || list[0].ID != q.ID {
		t.Errorf("Approvals during the flood = %+v, %v; want %s first", list, err, q.ID)
	}
	if _, err := s.Client.Approvals.Answer(within(t), q.ID, v1.ApprovalAnswer{Action: "deny"}); err != nil {
		t.Errorf("AnswerApproval during the flood: %v", err)
	}
}

// countLive counts the sandboxes that have not ended.
func countLive(list []v1.Sandbox) (n int) {
	for _, b := range list {
		if b.EndedAt == nil {
			n++
		}
	}
	return n
}

// TestDailyCallQuotaIsPerCaller checks that a caller without calls left is refused with the time of
// the next, also after a restart, and that another caller is not.
func TestDailyCallQuotaIsPerCaller(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: askingConfig, Seed: &seed})
	ann := token(t, s, v1.TokenRequest{Caller: "ann", Trust: 3, Quotas: v1.Quotas{Calls: 3}})
	bob := token(t, s, v1.TokenRequest{Caller: "bob", Trust: 3})
	r := v1.ToolCall{Session: "s", Input: input(t, map[string]any{"command": "true"})}
	for i := range 5 {
		got, err := ann.Tools.Call(within(t), "system.bash", r, client.CallOptions{})
		if i < 3 && (err != nil || got.Ending != "exited") {
			t.Errorf("call %d within the quota = %+v, %v; want exited", i, got, err)
		}
		if i >= 3 && (err != nil || got.Ending != "policy_denied" || got.Error == nil || got.Error.RetryAfterMS <= 0) {
			t.Errorf("call %d over the quota = %+v, %v; want policy_denied with a time to retry", i, got, err)
		}
	}
	if got, err := bob.Tools.Call(within(t), "system.bash", r, client.CallOptions{}); err != nil || got.Ending != "exited" {
		t.Errorf("call of another caller = %+v, %v; want exited", got, err)
	}
	s.Term()
	s.Start()
	if got, err := ann.Tools.Call(within(t), "system.bash", r, client.CallOptions{}); err != nil ||
		got.Ending != "policy_denied" {
		t.Errorf("call over the quota after a restart = %+v, %v; want policy_denied", got, err)
	}
}
