//go:build integration

package scenarios

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// caller is a caller with a token.
type caller struct {
	*harness.Server
	header []string
}

// newCaller creates the token that the request describes.
func newCaller(t *testing.T, s *harness.Server, request string) caller {
	t.Helper()
	var tok v1.Token
	got := s.Ask(t, "POST", "/v1/tokens", request)
	got.Into(t, &tok)
	if got.Status != http.StatusCreated {
		t.Fatalf("POST /v1/tokens %s: status %d, want 201: %s", request, got.Status, got.Body)
	}
	return caller{s, []string{"Authorization", "Bearer " + tok.Secret}}
}

// request sends a request with the caller's token. An error must not contain names or paths of the
// host.
func (c caller) request(t *testing.T, method, path, body string) harness.Answer {
	t.Helper()
	got := c.Ask(t, method, path, body, c.header...)
	if got.Status >= 400 {
		for _, host := range []string{c.Dir(), c.Socket(), "/var/", "/run/", "/tmp/", "caller."} {
			if strings.Contains(string(got.Body), host) {
				t.Errorf("%s %s: the error is %s, want it without the host's %q", method, path, got.Body, host)
			}
		}
	}
	return got
}

// create sends a POST request that must create something, and decodes the answer into v.
func (c caller) create(t *testing.T, path, body string, v any) {
	t.Helper()
	got := c.request(t, "POST", path, body)
	if got.Status != http.StatusCreated {
		t.Fatalf("POST %s: status %d, want 201: %s", path, got.Status, got.Body)
	}
	got.Into(t, v)
}

// unknownID is an id that no object has.
const unknownID = "00000000-0000-7000-8000-000000000000"

// TestCallersAreIsolated checks that a caller neither sees nor changes another caller's sandboxes,
// shells and workspaces, and does not use up the other's quotas.
func TestCallersAreIsolated(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		ann := newCaller(t, s, `{"caller":"ann","trust":3,"quotas":{"sandboxes":2}}`)
		bob := newCaller(t, s, `{"caller":"bob","trust":3}`)
		var ws v1.Workspace
		ann.create(t, "/v1/workspaces", `{"name":"w"}`, &ws)
		waiting := fmt.Sprintf(`"wait_ms":%d`, harness.Long.Milliseconds())
		var box v1.Sandbox
		ann.create(t, "/v1/sandboxes", `{"workspace":"w",`+waiting+`}`, &box)
		var shell v1.Shell
		ann.create(t, "/v1/sandboxes/"+box.ID+"/shells", `{"command":"echo of ann > secret; sleep 1000"}`, &shell)
		secret := func() harness.Answer { return ann.request(t, "GET", "/v1/workspaces/w/files?path=secret", "") }
		harness.Eventually(t, harness.Long, "the shell has written its file", func() bool {
			return string(secret().Body) == "of ann\n"
		})

		assertSandboxesHidden(t, bob, box.ID, shell.ID)

		// None of these requests had an effect.
		var still v1.Shell
		if ann.request(t, "GET", "/v1/shells/"+shell.ID, "").Into(t, &still); still.State != "running" {
			t.Errorf("ann's shell = %+v, want it running", still)
		}
		if got := secret(); string(got.Body) != "of ann\n" {
			t.Errorf("ann's file: status %d, content %q, want %q", got.Status, got.Body, "of ann\n")
		}

		// Names and quotas are separate for each caller.
		bob.create(t, "/v1/workspaces", `{"name":"w"}`, &ws)
		ann.request(t, "POST", "/v1/sandboxes", `{"workspace":"w"}`).
			Problem(t, http.StatusServiceUnavailable, "unavailable", "workspace")
		var more v1.Sandbox
		ann.create(t, "/v1/sandboxes", `{`+waiting+`}`, &more)
		ann.request(t, "POST", "/v1/sandboxes", `{}`).
			Problem(t, http.StatusTooManyRequests, "resource_exhausted", "")
		bob.create(t, "/v1/sandboxes", `{"workspace":"w",`+waiting+`}`, &more)
		got := bob.request(t, "GET", "/v1/sandboxes/"+more.ID+"/files?path=secret", "")
		if got.Status != http.StatusNotFound {
			t.Errorf("ann's file in bob's workspace of the same name: status %d, want 404: %s", got.Status, got.Body)
		}
	})
}

// assertSandboxesHidden checks that requests of bob for another caller's sandbox, shell and
// workspace "w" get the same answer as for an unknown one, and that lists and operators' routes
// give him nothing.
func assertSandboxesHidden(t *testing.T, bob caller, sandbox, shell string) {
	t.Helper()
	for _, c := range []struct{ method, path, body, existing, unknown string }{
		{"GET", "/v1/sandboxes/ID", "", sandbox, unknownID},
		{"DELETE", "/v1/sandboxes/ID", "", sandbox, unknownID},
		{"POST", "/v1/sandboxes/ID/stop", "", sandbox, unknownID},
		{"POST", "/v1/sandboxes/ID/exec", `{"command":"cat secret"}`, sandbox, unknownID},
		{"GET", "/v1/sandboxes/ID/shells", "", sandbox, unknownID},
		{"POST", "/v1/sandboxes/ID/shells", `{"command":"cat secret"}`, sandbox, unknownID},
		{"GET", "/v1/sandboxes/ID/files?path=secret", "", sandbox, unknownID},
		{"PUT", "/v1/sandboxes/ID/files?path=secret", "of bob", sandbox, unknownID},
		{"POST", "/v1/sandboxes/ID/files?path=secret&to=b", "", sandbox, unknownID},
		{"DELETE", "/v1/sandboxes/ID/files?path=secret", "", sandbox, unknownID},
		{"GET", "/v1/shells/ID", "", shell, unknownID},
		{"DELETE", "/v1/shells/ID", "", shell, unknownID},
		{"POST", "/v1/shells/ID/signal?signal=9", "", shell, unknownID},
		{"POST", "/v1/shells/ID/input", "x", shell, unknownID},
		{"GET", "/v1/shells/ID/output", "", shell, unknownID},
		{"GET", "/v1/workspaces/ID", "", "w", "v"},
		{"DELETE", "/v1/workspaces/ID", "", "w", "v"},
		{"GET", "/v1/workspaces/ID/files?path=secret", "", "w", "v"},
		{"PUT", "/v1/workspaces/ID/files?path=secret", "of bob", "w", "v"},
		{"DELETE", "/v1/workspaces/ID/files?path=secret", "", "w", "v"},
		{"POST", "/v1/sandboxes", `{"workspace":"ID"}`, "w", "v"},
		{"POST", "/v1/run", `{"command":"cat secret","workspace":"ID"}`, "w", "v"},
	} {
		answer := func(id string) string {
			got := bob.request(t, c.method, strings.ReplaceAll(c.path, "ID", id), strings.ReplaceAll(c.body, "ID", id))
			return fmt.Sprint(got.Status, strings.ReplaceAll(string(got.Body), `\"`+id+`\"`, `\"ID\"`))
		}
		existing, unknown := answer(c.existing), answer(c.unknown)
		if !strings.HasPrefix(existing, "404") || existing != unknown {
			t.Errorf("%s %s of another caller = %s, want the same as for an unknown id: %s", c.method, c.path, existing, unknown)
		}
	}
	for _, path := range []string{"/v1/sandboxes?ended=true", "/v1/workspaces"} {
		var list v1.List[any]
		if bob.request(t, "GET", path, "").Into(t, &list); len(list.Items) != 0 {
			t.Errorf("GET %s of another caller = %v, want an empty list", path, list.Items)
		}
	}
	for _, c := range [][2]string{
		{"POST", "/v1/down"}, {"DELETE", "/v1/images?ref=x"}, {"POST", "/v1/images"}, {"GET", "/v1/tokens"},
	} {
		bob.request(t, c[0], c[1], "").Problem(t, http.StatusForbidden, "permission_denied", "")
	}
}
