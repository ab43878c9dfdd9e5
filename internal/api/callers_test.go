package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
)

// bearer creates a token and returns its header.
func bearer(t *testing.T, srv *httptest.Server, request string) []string {
	t.Helper()
	return bearerOf(t, srv, request, "Authorization", "Bearer secret")
}

// bearerOf is bearer for a server whose operators send header.
func bearerOf(t *testing.T, srv *httptest.Server, request string, header ...string) []string {
	t.Helper()
	var tok v1.Token
	got := ask(t, srv, "POST", "/v1/tokens", request, header...)
	got.into(t, &tok)
	if got.status != http.StatusCreated || tok.Secret == "" {
		t.Fatalf("token = %+v, want status 201 with a secret", got)
	}
	return []string{"Authorization", "Bearer " + tok.Secret}
}

// An operator looks at what another caller has and ends it, but starts and writes nothing there.
func TestOperatorOverseesSandboxesOfCallers(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	operator := []string{"Authorization", "Bearer secret"}
	ann := bearerOf(t, srv, `{"caller":"ann","trust":3,"profile":"default"}`, operator...)
	bob := bearerOf(t, srv, `{"caller":"bob","trust":3,"profile":"default"}`, operator...)
	var s v1.Sandbox
	ask(t, srv, "POST", "/v1/sandboxes", "{}", ann...).into(t, &s)
	statusIs(t, ask(t, srv, "GET", "/v1/sandboxes/"+s.ID, "", operator...), http.StatusOK)
	problemIs(t, ask(t, srv, "GET", "/v1/sandboxes/"+s.ID, "", bob...), http.StatusNotFound, "not_found", "")
	for _, acts := range [][2]string{
		{"POST", "/v1/sandboxes/" + s.ID + "/exec"}, {"POST", "/v1/sandboxes/" + s.ID + "/shells"},
		{"PUT", "/v1/sandboxes/" + s.ID + "/egress"},
	} {
		body := `{"command":"true"}`
		if acts[0] == "PUT" {
			body = `{"rules":[]}`
		}
		problemIs(t, ask(t, srv, acts[0], acts[1], body, operator...), http.StatusNotFound, "not_found", "")
	}
	problemIs(t, ask(t, srv, "DELETE", "/v1/sandboxes/"+s.ID, "", bob...), http.StatusNotFound, "not_found", "")
	statusIs(t, ask(t, srv, "DELETE", "/v1/sandboxes/"+s.ID, "", operator...), http.StatusNoContent)
}

func TestTokenIdentifiesCallerOnEveryListener(t *testing.T) {
	t.Parallel()
	for _, own := range []string{"secret", ""} { // "": a unix socket
		srv, _ := newServer(t, own)
		var operator []string
		if own != "" {
			operator = []string{"Authorization", "Bearer " + own}
		}
		ann := bearerOf(t, srv, `{"caller":"ann"}`, operator...)
		var s v1.Sandbox
		got := ask(t, srv, "POST", "/v1/sandboxes", "{}", ann...)
		got.into(t, &s)
		if got.status != http.StatusCreated {
			t.Fatalf("lease = %+v, want status 201", got)
		}
		statusIs(t, ask(t, srv, "GET", "/v1/sandboxes/"+s.ID, "", ann...), http.StatusOK)
		bob := bearerOf(t, srv, `{"caller":"bob"}`, operator...)
		problemIs(t, ask(t, srv, "GET", "/v1/sandboxes/"+s.ID, "", bob...), http.StatusNotFound, "not_found", "")
		forged := ask(t, srv, "GET", "/v1/pools", "", "Authorization", ann[1]+"x")
		problemIs(t, forged, http.StatusUnauthorized, "unauthenticated", "")
		unknown := ask(t, srv, "GET", "/v1/pools", "", "Authorization",
			"Bearer orc_0123456789abcdef_"+strings.Repeat("a", 43))
		if withoutRequestID(unknown.body) != withoutRequestID(forged.body) {
			t.Errorf("answer to an unknown token = %s, want %s as for a forged one", unknown.body, forged.body)
		}
	}
}

func TestOperatorRoutesRefuseCallers(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	ann := bearer(t, srv, `{"caller":"ann","trust":3}`)
	for _, c := range [][2]string{
		{"POST", "/v1/images"}, {"DELETE", "/v1/images?ref=x"}, {"POST", "/v1/down"},
		{"POST", "/v1/images/pull"}, {"POST", "/v1/images/build?ref=x"}, {"POST", "/v1/images/gc"},
		{"PUT", "/v1/images/pin?ref=x"}, {"DELETE", "/v1/images/pin?ref=x"},
		{"POST", "/v1/tokens"}, {"GET", "/v1/tokens"}, {"DELETE", "/v1/tokens/x"},
	} {
		body := ""
		if c[1] == "/v1/tokens" && c[0] == "POST" {
			body = `{"caller":"ann","operator":true}`
		}
		problemIs(t, ask(t, srv, c[0], c[1], body, ann...), http.StatusForbidden, "permission_denied", "")
	}
	var v v1.Version
	ask(t, srv, "GET", "/v1/version", "", ann...).into(t, &v)
	if v.Why != "" || len(v.Capabilities) != 0 {
		t.Errorf("version for a caller = %+v, want no reason and no capabilities", v)
	}
}

func TestReadyzNamesTemplates(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	var got v1.Readiness
	testenv.Eventually(t, "the service is ready", func() bool {
		a := ask(t, srv, "GET", "/readyz", "")
		return a.status == http.StatusOK && json.Unmarshal([]byte(a.body), &got) == nil
	})
	want := []v1.TemplateReadiness{{Name: "default", State: "ready", Default: true}}
	if got.Status != "ready" || !slices.Equal(got.Templates, want) {
		t.Errorf("GET /readyz = %+v, want status ready and %+v", got, want)
	}
}

func TestReadyzWithoutImage(t *testing.T) {
	t.Parallel()
	e, host := newEngine(t)
	srv := serveHTTP(t, New(Options{Engine: e, Token: "secret"}))
	host.SetHook(fake.Fail(errors.New("no such runtime"), -1, fake.OpCreate))
	for _, c := range []struct {
		header []string
		want   string
	}{{nil, "log has the reason"}, {[]string{"Authorization", "Bearer secret"}, "no such runtime"}} {
		var got v1.NotReady
		testenv.Eventually(t, "no template can be used", func() bool {
			ask(t, srv, "POST", "/v1/run", `{"argv": ["true"], "wait_ms": 1}`, "Authorization", "Bearer secret")
			a := ask(t, srv, "GET", "/readyz", "", c.header...)
			return a.status == http.StatusServiceUnavailable && json.Unmarshal([]byte(a.body), &got) == nil &&
				len(got.Templates) == 1 && got.Templates[0].State == "failing"
		})
		if got.Code != "unavailable" || !strings.Contains(got.Templates[0].Error, c.want) {
			t.Errorf("GET /readyz with %v = %+v, want unavailable with reason %q", c.header, got, c.want)
		}
	}
}

func TestReadyzNeedsNoToken(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if got := ask(t, srv, "GET", "/readyz", ""); got.status == http.StatusOK {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("/readyz = %+v, want status 200", got)
		}
	}
}

// Callers that are not operators see no details of the host in errors.
func TestErrorsHideHostDetails(t *testing.T) {
	const host = "/var/lib/orchestrator/workspaces/0198"
	path := &fs.PathError{Op: "open", Path: host, Err: errors.New("permission denied")}
	for name, c := range map[string]struct {
		err    error
		status int
		want   string // the part that is shown
	}{
		"bare":         {path, 500, ""},
		"classed":      {fmt.Errorf("bind: %w: %w", path, errdefs.ErrUnavailable), 503, ""},
		"not found":    {fmt.Errorf("no such image %s: %w", host, errdefs.ErrNotFound), 404, ""},
		"precondition": {fmt.Errorf("driver: %s: %w", host, errdefs.ErrFailedPrecondition), 409, ""},
		"exhausted":    {fmt.Errorf("disk of %s is full: %w", host, errdefs.ErrResourceExhausted), 429, ""},
		"invalid":      {fmt.Errorf("%s: %w", host, errdefs.ErrInvalidArgument), 400, ""},
		"denied":       {fmt.Errorf("%s: %w", host, errdefs.ErrPermissionDenied), 403, ""},
		"deadline":     {fmt.Errorf("%s: %w", host, context.DeadlineExceeded), 504, ""},
		"panic":        {errors.New("panic: " + host + "\ngoroutine 1 [running]"), 500, ""},
		"joined": {errors.Join(usererror.Errorf(errdefs.ErrNotFound, "x not found"), path), 404,
			"x not found"},
		"around a field": {fmt.Errorf("%s: %w", host, &usererror.InvalidError{Field: "f", Message: "is wrong"}), 400,
			"f is wrong"},
		"around what is said": {fmt.Errorf("%s: %w", host, usererror.Errorf(errdefs.ErrUnavailable, "try later")), 503,
			"try later"},
		"around a quota": {fmt.Errorf("%s: %w", host,
			&caller.QuotaError{Quota: "calls", Limit: 1, Used: 1, Unit: "u"}), 429, "the quota calls is used up"},
		"around an end": {fmt.Errorf("%s: %w", host, &core.EndedError{ID: "x", Reason: "idle"}), 404,
			"sandbox x is gone: idle"},
		"around the guest's": {fmt.Errorf("%s: %w", host, &guest.Error{Code: wire.NotFound, Message: "no file"}), 404,
			"no file"},
		"around JSON": {fmt.Errorf("%s: %w", host, &strictjson.FieldError{Field: "f", Message: "is unknown"}),
			400, "f is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			var logged bytes.Buffer
			log := slog.New(slog.NewTextHandler(&logged, nil))
			p := problem(redactError(caller.Principal{Caller: "ann"}, log, c.err))
			if strings.Contains(p.Detail, "/var") || strings.Contains(p.Detail, "goroutine") ||
				!strings.Contains(p.Detail, c.want) || p.Status != c.status {
				t.Errorf("problem = %d %q; want %d with %q and no details of the host", p.Status, p.Detail, c.status, c.want)
			}
			ref := regexp.MustCompile(`e-[A-Z2-7]{12}`).FindString(p.Detail)
			if (ref == "") != (c.want != "") {
				t.Errorf("detail = %q, want a reference: %t", p.Detail, c.want == "")
			}
			if ref != "" && (!strings.Contains(logged.String(), ref) || !strings.Contains(logged.String(), host)) {
				t.Errorf("log = %q, want the reference %s and the cause", logged.String(), ref)
			}
			if p := problem(redactError(caller.Local(""), log, c.err)); p.Status != c.status ||
				c.status != 500 && !strings.Contains(p.Detail, "/var") {
				t.Errorf("problem for an operator = %d %q; want %d with the cause, except for 500", p.Status, p.Detail, c.status)
			}
		})
	}
}

// Routes that run commands or write files without a tool bypass its policy, approvals and audit.
func TestDirectRoutesRefuseToolOnlyCallers(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	const id = "00000000-0000-7000-8000-000000000000"
	for request, want := range map[string]int{
		// The service's default profile is team.
		`{"caller":"a","trust":3}`:                        http.StatusForbidden,
		`{"caller":"b","profile":"team","trust":3}`:       http.StatusForbidden,
		`{"caller":"c","profile":"readonly","trust":3}`:   http.StatusForbidden,
		`{"caller":"d","profile":"default","trust":2}`:    http.StatusForbidden,
		`{"caller":"e","profile":"default","trust":3}`:    http.StatusNotFound,
		`{"caller":"f","profile":"team","operator":true}`: http.StatusNotFound,
	} {
		who := bearer(t, srv, request)
		for _, c := range [][3]string{
			{"POST", "/v1/sandboxes/" + id + "/exec", `{"argv":["true"]}`},
			{"POST", "/v1/run", `{"argv":["true"],"workspace":"none"}`},
			{"POST", "/v1/sandboxes/" + id + "/shells", `{"argv":["true"]}`},
			{"POST", "/v1/shells/" + id + "/input", "x"},
			{"PUT", "/v1/sandboxes/" + id + "/files?path=a", "x"},
			{"POST", "/v1/sandboxes/" + id + "/files?path=a&to=b", ""},
			{"DELETE", "/v1/sandboxes/" + id + "/files?path=a", ""},
			{"PUT", "/v1/workspaces/none/files?path=a", "x"},
			{"DELETE", "/v1/workspaces/none/files?path=a", ""},
			{"DELETE", "/v1/workspaces/none", ""},
		} {
			if got := ask(t, srv, c[0], c[1], c[2], who...); got.status != want {
				t.Errorf("%s: %s %s: status %d %s; want %d", request, c[0], c[1], got.status, got.body, want)
			}
		}
		if got := ask(t, srv, "GET", "/v1/sandboxes", "", who...); got.status != http.StatusOK {
			t.Errorf("%s: list of sandboxes = %+v, want status 200", request, got)
		}
	}
}

// Objects of other callers and missing objects give the same answer on every route with an id or a
// name.
func TestOthersObjectsLookMissing(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	ann, bob := bearer(t, srv, `{"caller":"ann"}`), bearer(t, srv, `{"caller":"bob","profile":"default","trust":3}`)
	var s v1.Sandbox
	ask(t, srv, "POST", "/v1/sandboxes", "{}", ann...).into(t, &s)
	statusIs(t, ask(t, srv, "POST", "/v1/workspaces", `{"name":"w"}`, ann...), http.StatusCreated)
	const nobodys = "00000000-0000-7000-8000-000000000000"
	for _, c := range []struct{ method, path, body, theirs, none string }{
		{"GET", "/v1/sandboxes/ID", "", s.ID, nobodys},
		{"DELETE", "/v1/sandboxes/ID", "", s.ID, nobodys},
		{"POST", "/v1/sandboxes/ID/stop", "", s.ID, nobodys},
		{"POST", "/v1/sandboxes/ID/exec", `{"argv":["true"]}`, s.ID, nobodys},
		{"POST", "/v1/sandboxes/ID/shells", `{"argv":["true"]}`, s.ID, nobodys},
		{"GET", "/v1/sandboxes/ID/shells", "", s.ID, nobodys},
		{"GET", "/v1/sandboxes/ID/files?path=a", "", s.ID, nobodys},
		{"PUT", "/v1/sandboxes/ID/files?path=a", "x", s.ID, nobodys},
		{"POST", "/v1/sandboxes/ID/files?path=a&to=b", "", s.ID, nobodys},
		{"DELETE", "/v1/sandboxes/ID/files?path=a", "", s.ID, nobodys},
		{"GET", "/v1/workspaces/ID", "", "w", "v"},
		{"DELETE", "/v1/workspaces/ID", "", "w", "v"},
		{"GET", "/v1/workspaces/ID/files?path=a", "", "w", "v"},
		{"GET", "/v1/workspaces/ID/files?path=.&list=true", "", "w", "v"},
		{"PUT", "/v1/workspaces/ID/files?path=a", "x", "w", "v"},
		{"DELETE", "/v1/workspaces/ID/files?path=a", "", "w", "v"},
		{"POST", "/v1/sandboxes", `{"workspace":"ID"}`, "w", "v"},
		{"POST", "/v1/run", `{"argv":["true"],"workspace":"ID"}`, "w", "v"},
	} {
		get := func(id string) asked {
			got := ask(t, srv, c.method, strings.ReplaceAll(c.path, "ID", id), strings.ReplaceAll(c.body, "ID", id),
				bob...)
			got.body = strings.ReplaceAll(got.body, `"`+id+`\"`, `"ID\"`)
			got.body = withoutRequestID(strings.ReplaceAll(got.body, id+`\"`, `ID\"`))
			return got
		}
		theirs, none := get(c.theirs), get(c.none)
		if theirs.status != http.StatusNotFound || theirs.body != none.body || theirs.status != none.status {
			t.Errorf("%s %s: another caller's = %d %s, missing = %d %s; want the same 404", c.method, c.path,
				theirs.status, theirs.body, none.status, none.body)
		}
	}
	for _, path := range []string{"/v1/sandboxes?ended=true", "/v1/workspaces"} {
		var list v1.List[any]
		if ask(t, srv, "GET", path, "", bob...).into(t, &list); len(list.Items) != 0 {
			t.Errorf("%s lists %v, want nothing", path, list.Items)
		}
	}
}

func TestTokenIsNotLogged(t *testing.T) {
	var logged bytes.Buffer
	srv := New(Options{Token: "secret", Engine: nil,
		Log: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	req := httptest.NewRequest(http.MethodGet, "/v1/pools", nil)
	req.Header.Set("Authorization", "Bearer wrongtoken")
	srv.mux.ServeHTTP(httptest.NewRecorder(), req)
	if strings.Contains(logged.String(), "wrongtoken") || !strings.Contains(logged.String(), "/v1/pools") {
		t.Errorf("log = %s, want the path without the token", logged.String())
	}
}

func TestEveryCodeHasGeneralMessage(t *testing.T) {
	for _, c := range classes {
		if generalMessages[c.code] == "" {
			t.Errorf("generalMessages[%q] is empty, want a message", c.code)
		}
	}
	if generalMessages["internal"] == "" {
		t.Error("generalMessages of internal is empty, want a message")
	}
}

// withoutRequestID removes what differs between the answers to equal requests.
func withoutRequestID(body string) string {
	return regexp.MustCompile(`"request_id":"[^"]*"`).ReplaceAllString(body, "")
}
