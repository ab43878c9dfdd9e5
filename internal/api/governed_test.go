package api

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// team is a profile with something of everything.
const team = `
name: team
extends: default
policy:
  deny: [sudo]
  rules:
    - {id: careful, action: ask, programs: [rm]}
`

// governance is what an engine needs to call tools.
func governance(t testing.TB, st *store.Store, dir string) *engine.Governance {
	t.Helper()
	profiles := filepath.Join(dir, "profiles")
	if err := os.MkdirAll(profiles, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(profiles, "team.yaml"), []byte(team), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := profile.Load(profiles)
	if err != nil {
		t.Fatal(err)
	}
	g := &engine.Governance{
		Profiles: set, Default: "team", Limiter: &approval.Limiter{}, Redactor: audit.NewRedactor(), Outputs: filepath.Join(dir, "outputs"),
		Compat: &engine.Compat{Caller: "old", Workspaces: map[string]string{"/srv/old": "old"}},
	}
	if g.Gate, err = approval.New(t.Context(), approval.Options{Store: st, Check: g.CheckModified}); err != nil {
		t.Fatal(err)
	}
	db, err := store.OpenAudit(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if g.Audit, err = audit.Open(t.Context(), audit.Options{Store: db, Head: filepath.Join(dir, "audit.head"), Redactor: g.Redactor}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Audit.Close() })
	return g
}

func callTool(t *testing.T, srv *httptest.Server, tool, body string, header ...string) v1.ToolResult {
	t.Helper()
	var res v1.ToolResult
	got := ask(t, srv, "POST", "/v1/tools/"+tool+"/call", body, header...)
	if got.status != http.StatusOK {
		t.Fatalf("%+v", got)
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
		t.Fatalf("%+v", tools)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/tools?profile=nope", ""), http.StatusNotFound, "not_found", "profile")

	res := callTool(t, srv, "system.run", `{"input":{"argv":["echo","hi"]}}`)
	if res.Ending != "exited" || !strings.Contains(res.Text, "hi") || res.ID == "" || res.SandboxID == "" {
		t.Fatalf("%+v", res)
	}
	if got := records(t, srv, "call="+res.ID); len(got) != 2 || got[0].Kind != "open" || got[1].Ending != "exited" || got[0].Via != "http" {
		t.Fatalf("%+v", got)
	}
	res = callTool(t, srv, "system.run", `{"input":{"argv":["sudo","id"]}}`)
	if res.Ending != "policy_denied" || res.Verdict == nil || res.Verdict.Rule != "denylist:sudo" {
		t.Fatalf("%+v", res)
	}
}

// What cannot even be decoded leaves a trace.
func TestACallThatCannotBeDecodedIsRecorded(t *testing.T) {
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
			t.Fatalf("%.40q: %d records, %+v", c.body, len(got), got[len(got)-1:])
		}
	}
}

// hear reads server-sent events until done says so, or their end.
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
		t.Fatalf("%d %s", res.StatusCode, b)
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

func TestAStreamedCallTellsWhatHappens(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	var kinds []string
	var end v1.ToolEvent
	hear(t, srv, "POST", "/v1/tools/system.run/call", `{"input":{"argv":["echo","hi"]}}`, func(kind, data string) bool {
		kinds = append(kinds, kind)
		if err := json.Unmarshal([]byte(data), &end); err != nil {
			t.Fatal(err)
		}
		if kind == "stdout" && end.Data != "hi\n" {
			t.Errorf("stdout %s", data)
		}
		return false
	})
	if got := strings.Join(kinds, " "); got != "started stdout end" || end.Result == nil || end.Result.Ending != "exited" {
		t.Fatalf("%s, %+v", got, end)
	}
	// An error before anything happened has its status.
	got := ask(t, srv, "POST", "/v1/tools/nope/call", `{}`, "Accept", formEvents)
	problemIs(t, got, http.StatusNotFound, "not_found", "")
}

// A question reaches who listens; its answer lets the call go on.
func TestAQuestionIsAskedToldAndAnswered(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	answered := make(chan error, 1)
	go func() { // waited for below
		answered <- func() error {
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
				return fmt.Errorf("%+v", got)
			}
			// It is decided once.
			problemIs(t, ask(t, srv, "POST", "/v1/approvals/"+id+"/answer", `{"action":"deny"}`), http.StatusConflict, "failed_precondition", "")
			return nil
		}()
	}()
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
	if kinds[0] != "approval" || kinds[len(kinds)-1] != "end" || question.Rule != "careful" || end.Approval != question.ID {
		t.Fatalf("%v, %+v, %+v", kinds, question, end)
	}
	var q v1.Approval
	ask(t, srv, "GET", "/v1/approvals/"+question.ID, "").into(t, &q)
	if q.State != "approved" || q.Note != "fine" {
		t.Fatalf("%+v", q)
	}
	var list v1.List[v1.Approval]
	ask(t, srv, "GET", "/v1/approvals?state=approved", "").into(t, &list)
	if len(list.Items) != 1 {
		t.Fatalf("%+v", list)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/approvals?state=maybe", ""), http.StatusBadRequest, "invalid_argument", "state")
	problemIs(t, ask(t, srv, "GET", "/v1/approvals/none", ""), http.StatusNotFound, "not_found", "")
}

// A client that leaves takes its question along.
func TestAClientThatLeavesCancelsItsQuestion(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	hear(t, srv, "POST", "/v1/tools/system.bash/call", `{"input":{"command":"rm -f x"}}`, func(kind, _ string) bool { return kind == "approval" })
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		var list v1.List[v1.Approval]
		ask(t, srv, "GET", "/v1/approvals?state=cancelled", "").into(t, &list)
		if len(list.Items) == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("its question still waits")
		}
	}
}

func TestTokensOfCallers(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	var token v1.Token
	got := ask(t, srv, "POST", "/v1/tokens", `{"caller":"ci","profile":"team","trust":3}`)
	got.into(t, &token)
	if got.status != http.StatusCreated || token.Secret == "" || got.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%+v", got)
	}
	as := []string{"Authorization", "Bearer " + token.Secret}
	res := callTool(t, srv, "system.run", `{"input":{"argv":["true"]}}`, as...)
	if got := records(t, srv, "call="+res.ID); len(got) != 2 || got[0].Caller != "ci" || got[0].Token != token.ID {
		t.Fatalf("%+v", got)
	}
	problemIs(t, ask(t, srv, "POST", "/v1/tokens", `{"caller":"me","trust":3}`, as...), http.StatusForbidden, "permission_denied", "")
	problemIs(t, ask(t, srv, "GET", "/v1/audit/export", "", as...), http.StatusForbidden, "permission_denied", "")
	var list v1.List[v1.Token]
	listed := ask(t, srv, "GET", "/v1/tokens", "")
	listed.into(t, &list)
	if len(list.Items) != 1 || strings.Contains(listed.body, token.Secret) {
		t.Fatalf("%+v", listed)
	}
	if got := ask(t, srv, "DELETE", "/v1/tokens/"+token.ID, ""); got.status != http.StatusOK {
		t.Fatalf("%+v", got)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/tools", "", as...), http.StatusUnauthorized, "unauthenticated", "")
}

func TestTheAuditIsListedExportedAndVerified(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	for range 3 {
		callTool(t, srv, "system.run", `{"input":{"argv":["true"]}}`)
	}
	if got := records(t, srv, "limit=2&newest=true"); len(got) != 2 || got[1].Seq != 6 {
		t.Fatalf("%+v", got)
	}
	if got := records(t, srv, "after=4&ending=exited"); len(got) != 1 || got[0].Seq != 6 {
		t.Fatalf("%+v", got)
	}
	if got := records(t, srv, "since=2999-01-01T00:00:00Z"); len(got) != 0 {
		t.Fatalf("%+v", got)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/audit?since=yesterday", ""), http.StatusBadRequest, "invalid_argument", "since")
	problemIs(t, ask(t, srv, "GET", "/v1/audit?who=me", ""), http.StatusBadRequest, "invalid_argument", "who")
	got := ask(t, srv, "GET", "/v1/audit/export", "")
	if lines := strings.Split(strings.TrimSpace(got.body), "\n"); len(lines) != 6 || !json.Valid([]byte(lines[5])) || got.header.Get("Content-Type") != formLines {
		t.Fatalf("%+v", got)
	}
	var report v1.AuditReport
	ask(t, srv, "GET", "/v1/audit/verify", "").into(t, &report)
	if !report.OK || report.Records != 6 || report.Head == "" {
		t.Fatalf("%+v", report)
	}
	ask(t, srv, "GET", "/v1/audit/verify?head=6:"+strings.Repeat("00", 32), "").into(t, &report)
	if report.OK || len(report.Problems) == 0 {
		t.Fatalf("%+v", report)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/audit/verify?head=nonsense", ""), http.StatusBadRequest, "invalid_argument", "")
}

func TestPolicyAndProfilesAreAsked(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	var v v1.Verdict
	ask(t, srv, "POST", "/v1/policy/check", `{"profile":"team","command":"ls; sudo id"}`).into(t, &v)
	if v.Verdict != "deny" || v.Rule != "denylist:sudo" || v.At == nil || v.At.Column != 5 {
		t.Fatalf("%+v", v)
	}
	problemIs(t, ask(t, srv, "POST", "/v1/policy/check", `{"profile":"nope","command":"ls"}`), http.StatusNotFound, "not_found", "profile")
	var list v1.List[v1.Profile]
	ask(t, srv, "GET", "/v1/profiles", "").into(t, &list)
	names := ""
	for _, p := range list.Items {
		names += p.Name + " "
	}
	if !strings.Contains(names, "team") || !strings.Contains(names, "default") {
		t.Fatalf("%s", names)
	}
}

func TestSessionsKeepTheirSandbox(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	a := callTool(t, srv, "system.run", `{"session":"s1","input":{"argv":["true"]}}`)
	b := callTool(t, srv, "system.run", `{"session":"s1","input":{"argv":["true"]}}`)
	if a.SandboxID == "" || a.SandboxID != b.SandboxID {
		t.Fatalf("%s and %s", a.SandboxID, b.SandboxID)
	}
	if got := ask(t, srv, "DELETE", "/v1/sessions/s1", ""); got.status != http.StatusNoContent {
		t.Fatalf("%+v", got)
	}
	problemIs(t, ask(t, srv, "DELETE", "/v1/sessions/s1", ""), http.StatusNotFound, "not_found", "")
}

// The output that an answer had no room for can be read.
func TestTheRestOfAnOutputIsRead(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	text := strings.Repeat("0123456789", 10_000)
	body, err := json.Marshal(map[string]any{"input": map[string]any{"argv": []string{"cat"}, "stdin": text}})
	if err != nil {
		t.Fatal(err)
	}
	res := callTool(t, srv, "system.run", string(body))
	if res.Rest == "" {
		t.Fatalf("%+v", res)
	}
	path := "/v1/calls/" + res.ID + "/output?offset="
	var out v1.Output
	ask(t, srv, "GET", path+"99990", "").into(t, &out)
	if out.Data != "0123456789" || !out.EOF {
		t.Fatalf("%+v", out)
	}
	got := ask(t, srv, "GET", path+"5&limit=3", "", "Accept", formRaw)
	if got.body != "567" || got.header.Get("Orchestrator-Offset") != "5" || got.header.Get("Orchestrator-End") != "false" {
		t.Fatalf("%+v", got)
	}
	problemIs(t, ask(t, srv, "GET", "/v1/calls/none/output", ""), http.StatusNotFound, "not_found", "")
}

// A client that is too slow for the output misses some, is told how much, and
// never misses what happens.
func TestASlowClientMissesOutputOnly(t *testing.T) {
	c := &toolStream{missed: map[string]int64{}, wake: make(chan struct{}, 1)}
	w := c.watch()
	w.Started("s1")
	total := 0
	for range 3 * maxPending / 1000 {
		w.Output("stdout", make([]byte, 1000))
		total += 1000
	}
	w.Asked(v1.Approval{ID: "q1"})
	first := c.take()
	w.Output("stdout", []byte("x"))
	sent := 0
	for _, q := range first {
		sent += len(q.output)
	}
	next := c.take()
	if sent > maxPending || first[0].event.SandboxID != "s1" || first[len(first)-1].event.Approval.ID != "q1" || len(next) != 1 || next[0].event.Missed != int64(total-sent) {
		t.Fatalf("%d of %d bytes sent, then %+v", sent, total, next)
	}
}

func TestOutputEventsKeepCharactersWhole(t *testing.T) {
	w := httptest.NewRecorder()
	e := newToolEventer(w)
	for _, p := range []string{"a\xe2\x82", "\xac", "\xff", "\xe2"} {
		if err := e.queued(queued{event: v1.ToolEvent{Type: "stdout"}, output: []byte(p)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.flush(); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(w.Body.String()) {
		var v v1.ToolEvent
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			if err := json.Unmarshal([]byte(data), &v); err != nil {
				t.Fatal(err)
			}
			got = append(got, v.Data+v.Base64)
		}
	}
	if strings.Join(got, "|") != "a|€|/w==|4g==" {
		t.Fatalf("%q", got)
	}
}

func TestWhoMayUseTheReadonlyShell(t *testing.T) {
	for name, c := range map[string]struct {
		remote, local string
		header        []string
		ok            bool
	}{
		"loopback":                  {"127.0.0.1:5", "tcp", nil, true},
		"loopback of IPv6":          {"[::1]:5", "tcp", nil, true},
		"a unix socket":             {"@", "unix", nil, true},
		"with a charset":            {"127.0.0.1:5", "tcp", []string{"Content-Type", "application/json; charset=utf-8"}, true},
		"asked for by a person":     {"127.0.0.1:5", "tcp", []string{"Sec-Fetch-Site", "none"}, true},
		"another host":              {"192.0.2.7:5", "tcp", nil, false},
		"nobody knows":              {"", "tcp", nil, false},
		"a page":                    {"127.0.0.1:5", "tcp", []string{"Origin", "http://evil.example"}, false},
		"a page without an origin":  {"127.0.0.1:5", "tcp", []string{"Origin", "null"}, false},
		"a page of the same host":   {"127.0.0.1:5", "tcp", []string{"Sec-Fetch-Site", "same-site"}, false},
		"a form":                    {"127.0.0.1:5", "tcp", []string{"Content-Type", "text/plain"}, false},
		"a form that says nothing":  {"127.0.0.1:5", "tcp", []string{"Content-Type", ""}, false},
		"a page of a rebound name":  {"127.0.0.1:5", "tcp", []string{"Host", "evil.example:7070"}, false},
		"by the address of IPv6":    {"[::1]:5", "tcp", []string{"Host", "[::1]:7070"}, true},
		"a name on a unix socket":   {"@", "unix", []string{"Host", "orchestrator"}, true},
		"a form over a unix socket": {"@", "unix", []string{"Content-Type", "application/x-www-form-urlencoded"}, false},
	} {
		r := httptest.NewRequest("POST", "/shell", nil)
		r.RemoteAddr = c.remote
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i+1 < len(c.header); i += 2 {
			r.Header.Set(c.header[i], c.header[i+1])
		}
		r.Host = cmp.Or(r.Header.Get("Host"), "localhost:7070")
		var addr net.Addr = &net.TCPAddr{}
		if c.local == "unix" {
			addr = &net.UnixAddr{Net: "unix"}
		}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr))
		if err := fromHere(r); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheReadonlyShellAnswersInItsShape(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "a token that its clients do not have")
	for _, body := range []string{`{`, `[]`, `{"command":7}`, `{"command":"ls","workspace":"/nope"}`, `{"command":"ls","workspace":"/srv/old","timeout":-1}`, `{"command":"ls","more":1}`} {
		got := ask(t, srv, "POST", "/shell", body, "Content-Type", formJSON)
		var a shellAnswer
		got.into(t, &a)
		if got.status != http.StatusOK || a.Success || a.Stderr == "" || a.ReturnCode != -1 {
			t.Errorf("%s: %+v", body, got)
		}
	}
	got := ask(t, srv, "POST", "/shell", `{"command":"ls"}`, "Content-Type", formJSON, "Origin", "http://evil.example")
	problemIs(t, got, http.StatusForbidden, "permission_denied", "")
}

func TestTheReadonlyShellIsOffUnlessSwitchedOn(t *testing.T) {
	s := New(Options{Engine: &engine.Engine{}, Log: slog.New(slog.DiscardHandler)})
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest("POST", "/shell", strings.NewReader(`{}`)))
	if w.Code != http.StatusNotFound {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
}
