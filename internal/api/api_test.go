package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// patience bounds waits on a busy machine.
const patience = 2 * time.Minute

// newServer serves an engine on the in-memory driver.
func newServer(t *testing.T, token string) (*httptest.Server, *fake.Host) {
	t.Helper()
	e, host := newEngine(t)
	return serveHTTP(t, New(Options{Engine: e, Token: token, ShellCaller: "old"})), host
}

// serveHTTP serves s on a loopback address until the test ends.
func serveHTTP(t *testing.T, s *Server) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(s.mux)
	t.Cleanup(srv.Close)
	return srv
}

// newEngine runs an engine on the in-memory driver until the test ends.
func newEngine(tb testing.TB) (*engine.Engine, *fake.Host) {
	tb.Helper()
	dir := tb.TempDir()
	st, err := store.Open(tb.Context(), dir)
	if err != nil {
		tb.Fatal(err)
	}
	v, err := volumes.Open(filepath.Join(dir, "workspaces"), volumes.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	host := &fake.Host{}
	e, err := engine.Open(tb.Context(), engine.Options{
		Driver: fake.New(fake.Options{Host: host}), Store: st, Volumes: v, DefaultTemplate: "default",
		Images: testenv.Images(tb, filepath.Join(dir, "images")),
		Templates: []scheduler.Template{{
			Name: "default", Spec: runtime.Spec{Image: runtime.Image{Ref: "test/image:latest"}},
			Pool: pool.Settings{Min: 1, Max: 10, Rate: 1000, Parallel: 2, MaxAge: time.Hour},
		}},
		Limits: engine.Limits{
			TTL: time.Hour, MaxTTL: 2 * time.Hour, Idle: time.Hour, Timeout: time.Minute, MaxTimeout: time.Hour,
			MaxOutput: 1 << 20, OutputCap: 2 << 20, Wait: patience, MaxSandboxes: 20, MaxMemory: 1 << 40, Queue: 100,
		},
		Program:    engine.Program{Build: "b"},
		Governance: governance(tb, st, dir),
	})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Serve(ctx) }()
	tb.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
		st.Close()
	})
	return e, host
}

type asked struct {
	status int
	header http.Header
	body   string
}

func (a asked) into(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), v); err != nil {
		t.Fatalf("body %s is not the expected JSON: %v", a.body, err)
	}
}

func ask(t *testing.T, srv *httptest.Server, method, path, body string, header ...string) asked {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range res.Trailer {
		res.Header[k] = v
	}
	return asked{res.StatusCode, res.Header, string(b)}
}

func lease(t *testing.T, srv *httptest.Server) string {
	t.Helper()
	var s v1.Sandbox
	got := ask(t, srv, "POST", "/v1/sandboxes", "{}")
	if got.status != http.StatusCreated {
		t.Fatalf("lease = %+v, want status 201", got)
	}
	got.into(t, &s)
	return s.ID
}

func TestLeaseExecRemove(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	id := lease(t, srv)
	var res v1.ExecResult
	ask(t, srv, "POST", "/v1/sandboxes/"+id+"/exec", `{"argv":["echo","hi"]}`).into(t, &res)
	if res.Ending != "exited" || res.Stdout != "hi\n" || res.StdoutBytes != 3 || res.Truncated {
		t.Fatalf("echo = %+v, want exited with hi", res)
	}
	ask(t, srv, "POST", "/v1/sandboxes/"+id+"/exec", `{"command":"exit 7"}`).into(t, &res)
	if res.Ending != "exited" || res.ExitCode != 7 {
		t.Fatalf("exit 7 = %+v, want exited with code 7", res)
	}
	ask(t, srv, "POST", "/v1/sandboxes/"+id+"/exec",
		`{"argv":["cat"],"stdin":"0123456789","max_output_bytes":4}`).into(t, &res)
	if res.Stdout != "0189" || !res.Truncated || res.StdoutBytes != 10 {
		t.Fatalf("cat = %+v, want 0189, truncated from 10 bytes", res)
	}
	statusIs(t, ask(t, srv, "DELETE", "/v1/sandboxes/"+id, ""), http.StatusNoContent)
	var s v1.Sandbox
	ask(t, srv, "GET", "/v1/sandboxes/"+id, "").into(t, &s)
	if s.State != "gone" || s.Reason != "removed" || s.EndedAt == nil {
		t.Fatalf("removed sandbox = %+v, want gone, removed and an end time", s)
	}
	got := ask(t, srv, "POST", "/v1/sandboxes/"+id+"/exec", `{"argv":["true"]}`)
	if got.status != http.StatusNotFound || !strings.Contains(got.body, "removed") {
		t.Fatalf("exec in a removed sandbox = %+v, want 404 with the reason", got)
	}
	if got := ask(t, srv, "DELETE", "/v1/sandboxes/"+id, ""); got.status != http.StatusNoContent {
		t.Fatalf("second DELETE = %+v, want 204", got)
	}
}

func TestExecAnswerForms(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	exec := "/v1/sandboxes/" + lease(t, srv) + "/exec"
	binaryInput := base64.StdEncoding.EncodeToString([]byte{0xff, 0, 'a'})
	body := `{"argv":["cat"],"stdin_base64":"` + binaryInput + `"}`

	got := ask(t, srv, "POST", exec, body, "Accept", "application/octet-stream")
	var res v1.ExecResult
	if err := json.Unmarshal([]byte(got.header.Get("Orchestrator-Result")), &res); err != nil ||
		res.Ending != "exited" || got.body != "\xff\x00a" {
		t.Fatalf("raw answer = %+v, error %v; want the bytes and a result in the trailer", got, err)
	}

	got = ask(t, srv, "POST", exec, body, "Accept", "text/event-stream")
	if !strings.Contains(got.body, "event: started") || !strings.Contains(got.body, `"base64":"`+binaryInput) ||
		!strings.Contains(got.body, "event: end") {
		t.Fatalf("event stream = %+v, want started, base64 output and end", got)
	}

	header := base64.RawURLEncoding.EncodeToString([]byte(`{"argv":["cat"]}`))
	got = ask(t, srv, "POST", exec, "streamed", "Accept", "application/vnd.orchestrator.frames", headerExec, header,
		"Content-Type", formRaw)
	kinds, out := unframe(t, got.body)
	if kinds != "S1E" || out != "streamed" {
		t.Fatalf("frames = %q with stdout %q, want S1E and streamed", kinds, out)
	}

	got = ask(t, srv, "POST", exec, body, "Accept", "text/plain")
	problemIs(t, got, http.StatusBadRequest, "invalid_argument", "Accept")
}

func unframe(t *testing.T, body string) (kinds, stdout string) {
	t.Helper()
	b := []byte(body)
	for len(b) > 0 {
		n := binary.BigEndian.Uint32(b[1:5])
		kinds += string(b[0])
		if b[0] == '1' {
			stdout += string(b[5 : 5+n])
		}
		b = b[5+n:]
	}
	return kinds, stdout
}

// statusIs checks the status of an answer.
func statusIs(t *testing.T, got asked, want int) {
	t.Helper()
	if got.status != want {
		t.Fatalf("status %d, want %d: %s", got.status, want, got.body)
	}
}

// problemIs checks that an answer is the given problem.
func problemIs(t *testing.T, got asked, status int, code, field string) {
	t.Helper()
	p, ok := v1.Decode([]byte(got.body))
	if !ok || got.status != status || p.Code != code || p.Field != field ||
		got.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("status %d %s, want %d with code %q, field %q", got.status, got.body, status, code, field)
	}
}

func TestInvalidInputNamesField(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	id := lease(t, srv)
	exec := "/v1/sandboxes/" + id + "/exec"
	for _, c := range []struct {
		method, path, body string
		status             int
		code, field        string
	}{
		{"POST", "/v1/sandboxes", `{"template":"nope"}`, 404, "not_found", "template"},
		{"POST", "/v1/sandboxes", `{"workspace":"nope"}`, 404, "not_found", "workspace"},
		{"POST", "/v1/sandboxes", `{"tmplate":"x"}`, 400, "invalid_argument", "tmplate"},
		{"POST", "/v1/sandboxes", `{"ttl_ms":-1}`, 400, "invalid_argument", "ttl_ms"},
		{"POST", "/v1/sandboxes", `{"ttl_ms":99999999999}`, 400, "invalid_argument", "ttl_ms"},
		{"POST", "/v1/sandboxes", `{"when_empty":"pray"}`, 400, "invalid_argument", "when_empty"},
		{"POST", "/v1/sandboxes", `{"read_only":true}`, 400, "invalid_argument", "read_only"},
		{"POST", "/v1/sandboxes", `{"env":{"A=B":"x"}}`, 400, "invalid_argument", "env"},
		{"POST", "/v1/sandboxes", `{"labels":{"":"x"}}`, 400, "invalid_argument", "labels"},
		{"POST", "/v1/sandboxes", `{`, 400, "invalid_argument", "body"},
		{"POST", "/v1/sandboxes", "{\"template\":\"\xff\"}", 400, "invalid_argument", "body"},
		{"POST", exec, `{}`, 400, "invalid_argument", "argv"},
		{"POST", exec, `{"argv":["a"],"command":"b"}`, 400, "invalid_argument", "command"},
		{"POST", exec, `{"argv":"a"}`, 400, "invalid_argument", "argv"},
		{"POST", exec, `{"argv":["a"],"timeout_ms":-5}`, 400, "invalid_argument", "timeout_ms"},
		{"POST", exec, `{"argv":["a"],"max_output_bytes":999999999}`, 400, "invalid_argument", "max_output_bytes"},
		{"POST", exec, `{"argv":["a"],"stdin_base64":"!"}`, 400, "invalid_argument", "stdin_base64"},
		{"POST", exec, `{"argv":["a"],"stop_at_output":true}`, 400, "invalid_argument", "stop_at_output"},
		{"POST", "/v1/sandboxes/none/exec", `{"argv":["a"]}`, 404, "not_found", ""},
		{"GET", "/v1/sandboxes?endd=true", "", 400, "invalid_argument", "endd"},
		{"GET", "/v1/sandboxes?ended=maybe", "", 400, "invalid_argument", "ended"},
		{"POST", "/v1/sandboxes/" + id + "/stop?grace_ms=-1", "", 400, "invalid_argument", "grace_ms"},
		{"GET", "/v1/shells/none", "", 404, "not_found", ""},
		{"GET", "/v1/shells/none/output?stream=x", "", 400, "invalid_argument", "stream"},
		{"GET", "/v1/shells/none/output?offset=x", "", 400, "invalid_argument", "offset"},
		{"PUT", "/v1/sandboxes/" + id + "/files?path=a&mode=9", "x", 400, "invalid_argument", "mode"},
		{"GET", "/v1/sandboxes/" + id + "/files?path=a&list=true&stat=true", "", 400, "invalid_argument", "stat"},
		{"POST", "/v1/workspaces", `{"name":"../x"}`, 400, "invalid_argument", "name"},
		{"GET", "/v1/workspaces/none", "", 404, "not_found", ""},
		{"DELETE", "/v1/images?ref=none", "", 404, "not_found", ""},
		{"DELETE", "/v1/images?ref=test/image:latest", "", 409, "failed_precondition", ""},
		{"POST", "/v1/images", "not an archive", 400, "invalid_argument", ""},
		{"GET", "/v1/nothing", "", 404, "not_found", ""},
		{"PATCH", "/v1/sandboxes", "", 404, "not_found", ""},
	} {
		t.Run(c.method+" "+c.path+" "+c.body, func(t *testing.T) {
			t.Parallel()
			problemIs(t, ask(t, srv, c.method, c.path, c.body), c.status, c.code, c.field)
		})
	}
	long := strings.Repeat("x", 300)
	problemIs(t, ask(t, srv, "POST", exec, `{"argv":["true"]}`, "Idempotency-Key", long), 400, "invalid_argument",
		"Idempotency-Key")
	problemIs(t, ask(t, srv, "POST", exec, `{}`, "Content-Type", "text/plain"), 400, "invalid_argument", "Content-Type")
}

func TestBodyOverLimitIsRefused(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	got := ask(t, srv, "POST", "/v1/run", `{"argv":["a"],"stdin":"`+strings.Repeat("x", maxExecBody)+`"}`)
	problemIs(t, got, http.StatusRequestEntityTooLarge, "invalid_argument", "body")
}

func TestIdempotencyKeyRepeatsAnswer(t *testing.T) {
	t.Parallel()
	srv, host := newServer(t, "")
	var a, b v1.Sandbox
	ask(t, srv, "POST", "/v1/sandboxes", "{}", "Idempotency-Key", "k").into(t, &a)
	ask(t, srv, "POST", "/v1/sandboxes", "{}", "Idempotency-Key", "k").into(t, &b)
	if a.ID == "" || a.ID != b.ID {
		t.Fatalf("sandboxes of one key = %s and %s, want the same id", a.ID, b.ID)
	}
	problemIs(t, ask(t, srv, "POST", "/v1/sandboxes", `{"ttl_ms":5000}`, "Idempotency-Key", "k"), 400,
		"invalid_argument", "")
	created := len(host.Created())
	var x, y v1.ExecResult
	ask(t, srv, "POST", "/v1/run", `{"argv":["echo","once"]}`, "Idempotency-Key", "r").into(t, &x)
	ask(t, srv, "POST", "/v1/run", `{"argv":["echo","once"]}`, "Idempotency-Key", "r").into(t, &y)
	if x.ID != y.ID || y.Stdout != "once\n" {
		t.Fatalf("runs of one key = %+v and %+v, want the same with output", x, y)
	}
	if n := len(host.Created()); n > created+2 {
		t.Fatalf("%d sandboxes were created, want at most 2", n-created)
	}
	// A request that had no effect can be repeated with its key.
	problemIs(t, ask(t, srv, "POST", "/v1/sandboxes", `{"template":"nope"}`, "Idempotency-Key", "e"), 404, "not_found",
		"template")
	statusIs(t, ask(t, srv, "POST", "/v1/sandboxes", "{}", "Idempotency-Key", "e"), http.StatusCreated)
}

func TestRunLeavesNoLease(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	var res v1.ExecResult
	ask(t, srv, "POST", "/v1/run", `{"command":"echo one shot"}`).into(t, &res)
	if res.Stdout != "one shot\n" {
		t.Fatalf("run = %+v, want output one shot", res)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		var list v1.List[v1.Sandbox]
		ask(t, srv, "GET", "/v1/sandboxes", "").into(t, &list)
		if len(list.Items) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("sandboxes after a run = %+v, want none", list)
		}
	}
}

func TestLostSandboxIsReported(t *testing.T) {
	t.Parallel()
	srv, host := newServer(t, "")
	id := lease(t, srv)
	var res v1.ExecResult
	ask(t, srv, "POST", "/v1/sandboxes/"+id+"/exec", `{"argv":["lost"]}`).into(t, &res)
	if res.Ending != "sandbox_lost" || res.ExitCode != -1 {
		t.Fatalf("exec in a lost sandbox = %+v, want sandbox_lost with code -1", res)
	}
	host.Kill(id)
}

func TestTokenIsRequired(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	problemIs(t, ask(t, srv, "GET", "/v1/pools", ""), http.StatusUnauthorized, "unauthenticated", "")
	problemIs(t, ask(t, srv, "GET", "/v1/pools", "", "Authorization", "Bearer wrong"), http.StatusUnauthorized,
		"unauthenticated", "")
	statusIs(t, ask(t, srv, "GET", "/v1/pools", "", "Authorization", "Bearer secret"), http.StatusOK)
	statusIs(t, ask(t, srv, "GET", "/healthz", ""), http.StatusOK)
}

func TestWorkspaceFiles(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	statusIs(t, ask(t, srv, "POST", "/v1/workspaces", `{"name":"w"}`), http.StatusCreated)
	statusIs(t, ask(t, srv, "POST", "/v1/workspaces", `{"name":"w"}`), http.StatusConflict)
	files := "/v1/workspaces/w/files?path="
	statusIs(t, ask(t, srv, "PUT", files+"a/b.txt&mode=0600", "content"), http.StatusOK)
	if got := ask(t, srv, "GET", files+"a/b.txt", ""); got.body != "content" ||
		got.header.Get("Orchestrator-Mode") != "0600" {
		t.Fatalf("file = %+v, want content with mode 0600", got)
	}
	if got := ask(t, srv, "GET", files+"a/b.txt&offset=3&limit=2", ""); got.body != "te" {
		t.Fatalf("two bytes at offset 3 = %+v, want te", got)
	}
	var list Listing
	ask(t, srv, "GET", files+"a&list=true", "").into(t, &list)
	if len(list.Items) != 1 || list.Items[0].Path != "a/b.txt" {
		t.Fatalf("list = %+v, want a/b.txt", list)
	}
	problemIs(t, ask(t, srv, "GET", files+"../../etc/passwd", ""), http.StatusForbidden, "permission_denied", "path")
	problemIs(t, ask(t, srv, "GET", files+"/etc/passwd", ""), http.StatusForbidden, "permission_denied", "path")
	problemIs(t, ask(t, srv, "GET", files+"%ff", ""), http.StatusBadRequest, "invalid_argument", "path")
	statusIs(t, ask(t, srv, "DELETE", files+"a&recursive=true", ""), http.StatusNoContent)
	statusIs(t, ask(t, srv, "DELETE", "/v1/workspaces/w", ""), http.StatusNoContent)
}

// The description names every route and resolves every reference.
func TestOpenAPIDescribesAllRoutes(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	var doc struct {
		Paths      map[string]map[string]any `json:"paths"`
		Components struct {
			Schemas map[string]any `json:"schemas"`
		} `json:"components"`
	}
	got := ask(t, srv, "GET", "/openapi.json", "")
	got.into(t, &doc)
	for _, r := range (&Server{}).routes() {
		if doc.Paths[strings.ReplaceAll(r.path, "...}", "}")][cmp.Or(strings.ToLower(r.method), "get")] == nil {
			t.Errorf("%s %s is not in the description, want all routes", r.method, r.path)
		}
	}
	for part := range strings.SplitSeq(got.body, `"#/components/schemas/`) {
		name, _, _ := strings.Cut(part, `"`)
		if !strings.HasPrefix(name, "{") && doc.Components.Schemas[name] == nil {
			t.Errorf("schema %s is not in the description, want all that it refers to", name)
		}
	}
}

// endless is a reader without an end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// A client that still sends input gets the answer of a command that does not read it.
func TestAnswerArrivesWhileInputIsSent(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	exec := srv.URL + "/v1/sandboxes/" + lease(t, srv) + "/exec"
	for range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, exec, io.NopCloser(endless{}))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(headerExec, base64.RawURLEncoding.EncodeToString([]byte(`{"argv":["exit","4"]}`)))
		req.Header.Set("Content-Type", formRaw)
		req.Header.Set("Accept", formFrames)
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(700 * time.Millisecond) // longer than net/http keeps such a connection open
		var kinds []byte
		for !bytes.Contains(kinds, []byte("E")) {
			head := make([]byte, 5)
			if _, err := io.ReadFull(res.Body, head); err != nil {
				t.Fatalf("reading a frame after %q: %v", kinds, err)
			}
			if _, err := io.CopyN(io.Discard, res.Body, int64(binary.BigEndian.Uint32(head[1:]))); err != nil {
				t.Fatal(err)
			}
			kinds = append(kinds, head[0])
		}
		res.Body.Close()
	}
}
