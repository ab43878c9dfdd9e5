package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// team is a profile with a deny rule and an ask rule.
const team = `
name: team
extends: default
policy:
  deny: [sudo]
  rules:
    - {id: careful, action: ask, programs: [rm]}
`

// governance returns what an engine needs to call tools.
func governance(tb testing.TB, st *store.Store, dir string) *governed.Config {
	tb.Helper()
	profiles := filepath.Join(dir, "profiles")
	if err := os.MkdirAll(profiles, 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(profiles, "team.yaml"), []byte(team), 0o600); err != nil {
		tb.Fatal(err)
	}
	set, err := profile.Load(profiles)
	if err != nil {
		tb.Fatal(err)
	}
	g := &governed.Config{
		Profiles: set, Default: "team", Limiter: &approval.Limiter{}, Redactor: audit.NewRedactor(),
		Outputs: filepath.Join(dir, "outputs"),
		Compat:  &governed.Compat{Caller: "old", Workspaces: map[string]string{"/srv/old": "old"}},
	}
	if g.Gate, err = approval.New(tb.Context(), approval.Options{Store: st, Check: g.CheckModified}); err != nil {
		tb.Fatal(err)
	}
	db, err := store.OpenAudit(tb.Context(), dir)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	if g.Audit, err = audit.Open(tb.Context(),
		audit.Options{Store: db, Head: filepath.Join(dir, "audit.head"), Redactor: g.Redactor}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { g.Audit.Close() })
	return g
}

// callTool calls system.run.
func callTool(t *testing.T, srv *httptest.Server, body string, header ...string) v1.ToolResult {
	t.Helper()
	var res v1.ToolResult
	got := ask(t, srv, "POST", "/v1/tools/system.run/call", body, header...)
	if got.status != http.StatusOK {
		t.Fatalf("tool call = %+v, want status 200", got)
	}
	got.into(t, &res)
	return res
}

func records(t *testing.T, srv *httptest.Server, query string) []v1.AuditRecord {
	t.Helper()
	var list v1.List[v1.AuditRecord]
	ask(t, srv, "GET", "/v1/audit?"+query, "").into(t, &list)
	return list.Items
}

func TestToolsAreListedAndCalled(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	var tools v1.List[v1.Tool]
	ask(t, srv, "GET", "/v1/tools", "").into(t, &tools)
	found := false
	for _, tool := range tools.Items {
		found = found || tool.Name == "system.run" && strings.Contains(string(tool.Input), `"argv"`)
	}
	if !found {
		t.Fatalf("tools = %+v, want system.run with argv", tools)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/tools?profile=nope", ""), http.StatusNotFound, "not_found", "profile")

	res := callTool(t, srv, `{"input":{"argv":["echo","hi"]}}`)
	if res.Ending != "exited" || !strings.Contains(res.Text, "hi") || res.ID == "" || res.SandboxID == "" {
		t.Fatalf("echo = %+v, want exited with hi and ids", res)
	}
	if got := records(t, srv, "call="+res.ID); len(got) != 2 || got[0].Kind != "open" || got[1].Ending != "exited" ||
		got[0].Via != "http" {
		t.Fatalf("records of a call = %+v, want open and exited over http", got)
	}
	res = callTool(t, srv, `{"input":{"argv":["sudo","id"]}}`)
	if res.Ending != "policy_denied" || res.Verdict == nil || res.Verdict.Rule != "denylist:sudo" {
		t.Fatalf("sudo = %+v, want policy_denied by denylist:sudo", res)
	}
}

// Requests that cannot be decoded are recorded too.
func TestUndecodableCallIsRecorded(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	const call = "/v1/tools/system.run/call"
	for i, c := range []struct {
		body, field string
		status      int
		header      []string
	}{
		{`{"input":`, "body", 400, nil},
		{`{"inptu":{}}`, "inptu", 400, nil},
		{`{"session":7}`, "session", 400, nil},
		{"{\"session\":\"\xff\"}", "body", 400, nil},
		{`{}`, "Content-Type", 400, []string{"Content-Type", "text/plain"}},
		{`{}`, "Accept", 400, []string{"Accept", "image/png"}},
		{`{"session":"` + strings.Repeat("x", maxExecBody) + `"}`, "body", 413, nil},
	} {
		problemIs(t, ask(t, srv, "POST", call, c.body, c.header...), c.status, "invalid_argument", c.field)
		got := records(t, srv, "action=system.run")
		if len(got) != i+1 || got[i].Kind != "event" || got[i].Error == "" {
			t.Fatalf("%.40q: %d records, the last %+v; want %d, the last an event with an error",
				c.body, len(got), got[len(got)-1:], i+1)
		}
	}
}

// hear reads server-sent events until each returns true, or to their end.
func hear(t *testing.T, srv *httptest.Server, method, path, body string, each func(kind, data string) (done bool)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, srv.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", formEvents)
	res, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != formEvents {
		b, _ := io.ReadAll(res.Body)
		t.Fatalf("event stream: status %d, body %s; want 200 with %s", res.StatusCode, b, formEvents)
	}
	kind := ""
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if k, ok := strings.CutPrefix(in.Text(), "event: "); ok {
			kind = k
		}
		if data, ok := strings.CutPrefix(in.Text(), "data: "); ok && each(kind, data) {
			return
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
}

// approveFirst approves the first approval request that a listener receives.
func approveFirst(t *testing.T, srv *httptest.Server) error {
	t.Helper()
	var id string
	hear(t, srv, "GET", "/v1/approvals/events", "", func(kind, data string) bool {
		var e v1.ApprovalEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Error(err)
		}
		id = e.Approval.ID
		return kind == "asked"
	})
	got := ask(t, srv, "POST", "/v1/approvals/"+id+"/answer", `{"action":"approve","note":"fine"}`)
	if got.status != http.StatusOK {
		return fmt.Errorf("answer to the approval request = %+v, want status 200", got)
	}
	// A second answer is refused.
	problemIs(t, ask(t, srv, "POST", "/v1/approvals/"+id+"/answer", `{"action":"deny"}`),
		http.StatusConflict, "failed_precondition", "")
	return nil
}

// A listener receives the approval request, and its answer lets the call continue.
func TestApprovalRequestIsSentAndAnswered(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	answered := make(chan error, 1)
	go func() { answered <- approveFirst(t, srv) }() // received below
	var kinds []string
	var question v1.Approval
	var end v1.ToolResult
	hear(t, srv, "POST", "/v1/tools/system.bash/call", `{"input":{"command":"rm -f x"}}`, func(kind, data string) bool {
		kinds = append(kinds, kind)
		var e v1.ToolEvent
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		if e.Approval != nil {
			question = *e.Approval
		}
		if e.Result != nil {
			end = *e.Result
		}
		return false
	})
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	if kinds[0] != "approval" || kinds[len(kinds)-1] != "end" || question.Rule != "careful" ||
		end.Approval != question.ID {
		t.Fatalf("events = %v, approval request = %+v, result = %+v; want rule careful and the same approval in both",
			kinds, question, end)
	}
	var q v1.Approval
	ask(t, srv, "GET", "/v1/approvals/"+question.ID, "").into(t, &q)
	if q.State != "approved" || q.Note != "fine" {
		t.Fatalf("approval request = %+v, want approved with the note", q)
	}
	var list v1.List[v1.Approval]
	ask(t, srv, "GET", "/v1/approvals?state=approved", "").into(t, &list)
	if len(list.Items) != 1 {
		t.Fatalf("approved requests = %+v, want one", list)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/approvals?state=maybe", ""), http.StatusBadRequest, "invalid_argument",
		"state")
	problemIs(t, ask(t, srv, "GET", "/v1/approvals/none", ""), http.StatusNotFound, "not_found", "")
}

func TestTokenLifecycle(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	var token v1.Token
	got := ask(t, srv, "POST", "/v1/tokens", `{"caller":"ci","profile":"team","trust":3}`)
	got.into(t, &token)
	if got.status != http.StatusCreated || token.Secret == "" || got.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("token = %+v, want status 201, a secret and no-store", got)
	}
	as := []string{"Authorization", "Bearer " + token.Secret}
	res := callTool(t, srv, `{"input":{"argv":["true"]}}`, as...)
	if got := records(t, srv, "call="+res.ID); len(got) != 2 || got[0].Caller != "ci" || got[0].Token != token.ID {
		t.Fatalf("records of the token's call = %+v, want two of caller ci", got)
	}
	problemIs(t, ask(t, srv, "POST", "/v1/tokens", `{"caller":"me","trust":3}`, as...), http.StatusForbidden,
		"permission_denied", "")
	problemIs(t, ask(t, srv, "GET", "/v1/audit/export", "", as...), http.StatusForbidden, "permission_denied", "")
	var list v1.List[v1.Token]
	listed := ask(t, srv, "GET", "/v1/tokens", "")
	listed.into(t, &list)
	if len(list.Items) != 1 || strings.Contains(listed.body, token.Secret) {
		t.Fatalf("tokens = %+v, want one without its secret", listed)
	}
	statusIs(t, ask(t, srv, "DELETE", "/v1/tokens/"+token.ID, ""), http.StatusOK)
	problemIs(t, ask(t, srv, "GET", "/v1/tools", "", as...), http.StatusUnauthorized, "unauthenticated", "")
}

func TestAuditListExportVerify(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	for range 3 {
		callTool(t, srv, `{"input":{"argv":["true"]}}`)
	}
	if got := records(t, srv, "limit=2&newest=true"); len(got) != 2 || got[1].Seq != 6 {
		t.Fatalf("newest two records = %+v, want the last with seq 6", got)
	}
	if got := records(t, srv, "after=4&ending=exited"); len(got) != 1 || got[0].Seq != 6 {
		t.Fatalf("exited records after 4 = %+v, want seq 6", got)
	}
	if got := records(t, srv, "since=2999-01-01T00:00:00Z"); len(got) != 0 {
		t.Fatalf("records since 2999 = %+v, want none", got)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/audit?since=yesterday", ""), http.StatusBadRequest, "invalid_argument",
		"since")
	problemIs(t, ask(t, srv, "GET", "/v1/audit?who=me", ""), http.StatusBadRequest, "invalid_argument", "who")
	got := ask(t, srv, "GET", "/v1/audit/export", "")
	if lines := strings.Split(strings.TrimSpace(got.body), "\n"); len(lines) != 6 || !json.Valid([]byte(lines[5])) ||
		got.header.Get("Content-Type") != formLines {
		t.Fatalf("export = %+v, want 6 JSON lines", got)
	}
	var report v1.AuditReport
	ask(t, srv, "GET", "/v1/audit/verify", "").into(t, &report)
	if !report.OK || report.Records != 6 || report.Head == "" {
		t.Fatalf("verify = %+v, want OK with 6 records and a head", report)
	}
	ask(t, srv, "GET", "/v1/audit/verify?head=6:"+strings.Repeat("00", 32), "").into(t, &report)
	if report.OK || len(report.Problems) == 0 {
		t.Fatalf("verify with another head = %+v, want problems", report)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/audit/verify?head=nonsense", ""), http.StatusBadRequest, "invalid_argument",
		"")
}

func TestPolicyCheckAndProfiles(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	var v v1.Verdict
	ask(t, srv, "POST", "/v1/policy/check", `{"profile":"team","command":"ls; sudo id"}`).into(t, &v)
	if v.Verdict != "deny" || v.Rule != "denylist:sudo" || v.At == nil || v.At.Column != 5 {
		t.Fatalf("verdict on sudo = %+v, want deny at column 5", v)
	}
	problemIs(t, ask(t, srv, "POST", "/v1/policy/check", `{"profile":"nope","command":"ls"}`), http.StatusNotFound,
		"not_found", "profile")
	var list v1.List[v1.Profile]
	ask(t, srv, "GET", "/v1/profiles", "").into(t, &list)
	names := ""
	for _, p := range list.Items {
		names += p.Name + " "
	}
	if !strings.Contains(names, "team") || !strings.Contains(names, "default") {
		t.Fatalf("profiles = %s, want team and default", names)
	}
}

func TestSessionsKeepTheirSandbox(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	a := callTool(t, srv, `{"session":"s1","input":{"argv":["true"]}}`)
	b := callTool(t, srv, `{"session":"s1","input":{"argv":["true"]}}`)
	if a.SandboxID == "" || a.SandboxID != b.SandboxID {
		t.Fatalf("sandboxes of one session = %s and %s, want the same", a.SandboxID, b.SandboxID)
	}
	statusIs(t, ask(t, srv, "DELETE", "/v1/sessions/s1", ""), http.StatusNoContent)
	problemIs(t, ask(t, srv, "DELETE", "/v1/sessions/s1", ""), http.StatusNotFound, "not_found", "")
}

// Output that did not fit the answer can be read.
func TestCallOutputReadsTheRest(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	text := strings.Repeat("0123456789", 10_000)
	body, err := json.Marshal(map[string]any{"input": map[string]any{"argv": []string{"cat"}, "stdin": text}})
	if err != nil {
		t.Fatal(err)
	}
	res := callTool(t, srv, string(body))
	if res.Rest == "" {
		t.Fatalf("result = %+v, want a reference to the rest", res)
	}
	path := "/v1/calls/" + res.ID + "/output?offset="
	var out v1.Output
	ask(t, srv, "GET", path+"99990", "").into(t, &out)
	if out.Data != "0123456789" || !out.EOF {
		t.Fatalf("output at 99990 = %+v, want the last 10 bytes and EOF", out)
	}
	got := ask(t, srv, "GET", path+"5&limit=3", "", "Accept", formRaw)
	if got.body != "567" || got.header.Get("Orchestrator-Offset") != "5" ||
		got.header.Get("Orchestrator-End") != "false" {
		t.Fatalf("raw output = %+v, want 567 at offset 5", got)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/calls/none/output", ""), http.StatusNotFound, "not_found", "")
}
