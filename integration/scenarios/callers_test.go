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

// somebody is a caller with a token.
type somebody struct {
	*harness.Server
	header []string
}

func person(t *testing.T, s *harness.Server, request string) somebody {
	t.Helper()
	var tok v1.Token
	got := s.Ask(t, "POST", "/v1/tokens", request)
	got.Into(t, &tok)
	if got.Status != http.StatusCreated {
		t.Fatalf("%d %s", got.Status, got.Body)
	}
	return somebody{s, []string{"Authorization", "Bearer " + tok.Secret}}
}

func (p somebody) ask(t *testing.T, method, path, body string) harness.Answer {
	t.Helper()
	got := p.Ask(t, method, path, body, p.header...)
	if got.Status >= 400 { // whatever went wrong, the host is not told of
		for _, host := range []string{p.Dir(), p.Socket(), "/var/", "/run/", "/tmp/", "caller."} {
			if strings.Contains(string(got.Body), host) {
				t.Errorf("%s %s tells of the host: %s", method, path, got.Body)
			}
		}
	}
	return got
}

func (p somebody) make(t *testing.T, path, body string, v any) {
	t.Helper()
	got := p.ask(t, "POST", path, body)
	if got.Status != http.StatusCreated {
		t.Fatalf("POST %s: %d %s", path, got.Status, got.Body)
	}
	got.Into(t, v)
}

// Two callers on one host: neither sees, reads, kills, writes into or exhausts
// what is the other's.
func TestCallersAreIsolated(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		ann, bob := person(t, s, `{"caller":"ann","trust":3,"quotas":{"sandboxes":2}}`), person(t, s, `{"caller":"bob","trust":3}`)
		var made v1.Workspace
		ann.make(t, "/v1/workspaces", `{"name":"w"}`, &made)
		var box v1.Sandbox
		ann.make(t, "/v1/sandboxes", fmt.Sprintf(`{"workspace":"w","wait_ms":%d}`, harness.Long.Milliseconds()), &box)
		var shell v1.Shell
		ann.make(t, "/v1/sandboxes/"+box.ID+"/shells", `{"command":"echo of ann > secret; sleep 1000"}`, &shell)
		harness.Eventually(t, harness.Long, "the shell has written", func() bool {
			return string(ann.ask(t, "GET", "/v1/workspaces/w/files?path=secret", "").Body) == "of ann\n"
		})

		const nobodys = "00000000-0000-7000-8000-000000000000"
		for _, c := range []struct{ method, path, body, theirs, none string }{
			{"GET", "/v1/sandboxes/ID", "", box.ID, nobodys},
			{"DELETE", "/v1/sandboxes/ID", "", box.ID, nobodys},
			{"POST", "/v1/sandboxes/ID/stop", "", box.ID, nobodys},
			{"POST", "/v1/sandboxes/ID/exec", `{"command":"cat secret"}`, box.ID, nobodys},
			{"GET", "/v1/sandboxes/ID/shells", "", box.ID, nobodys},
			{"POST", "/v1/sandboxes/ID/shells", `{"command":"cat secret"}`, box.ID, nobodys},
			{"GET", "/v1/sandboxes/ID/files?path=secret", "", box.ID, nobodys},
			{"PUT", "/v1/sandboxes/ID/files?path=secret", "of bob", box.ID, nobodys},
			{"POST", "/v1/sandboxes/ID/files?path=secret&to=b", "", box.ID, nobodys},
			{"DELETE", "/v1/sandboxes/ID/files?path=secret", "", box.ID, nobodys},
			{"GET", "/v1/shells/ID", "", shell.ID, nobodys},
			{"DELETE", "/v1/shells/ID", "", shell.ID, nobodys},
			{"POST", "/v1/shells/ID/signal?signal=9", "", shell.ID, nobodys},
			{"POST", "/v1/shells/ID/input", "x", shell.ID, nobodys},
			{"GET", "/v1/shells/ID/output", "", shell.ID, nobodys},
			{"GET", "/v1/workspaces/ID", "", "w", "v"},
			{"DELETE", "/v1/workspaces/ID", "", "w", "v"},
			{"GET", "/v1/workspaces/ID/files?path=secret", "", "w", "v"},
			{"PUT", "/v1/workspaces/ID/files?path=secret", "of bob", "w", "v"},
			{"DELETE", "/v1/workspaces/ID/files?path=secret", "", "w", "v"},
			{"POST", "/v1/sandboxes", `{"workspace":"ID"}`, "w", "v"},
			{"POST", "/v1/run", `{"command":"cat secret","workspace":"ID"}`, "w", "v"},
		} {
			get := func(id string) string {
				got := bob.ask(t, c.method, strings.ReplaceAll(c.path, "ID", id), strings.ReplaceAll(c.body, "ID", id))
				return fmt.Sprint(got.Status, strings.ReplaceAll(string(got.Body), `\"`+id+`\"`, `\"ID\"`))
			}
			theirs, none := get(c.theirs), get(c.none)
			if !strings.HasPrefix(theirs, "404") || theirs != none {
				t.Errorf("%s %s: %s, and for nobody's %s", c.method, c.path, theirs, none)
			}
		}
		for _, path := range []string{"/v1/sandboxes?ended=true", "/v1/workspaces"} {
			var list v1.List[any]
			if bob.ask(t, "GET", path, "").Into(t, &list); len(list.Items) != 0 {
				t.Errorf("%s: %v", path, list.Items)
			}
		}
		for _, c := range [][2]string{{"POST", "/v1/down"}, {"DELETE", "/v1/images?ref=x"}, {"POST", "/v1/images"}, {"GET", "/v1/tokens"}} {
			bob.ask(t, c[0], c[1], "").Problem(t, http.StatusForbidden, "permission_denied", "")
		}

		// Nothing of it did anything.
		var still v1.Shell
		if ann.ask(t, "GET", "/v1/shells/"+shell.ID, "").Into(t, &still); still.State != "running" {
			t.Errorf("%+v", still)
		}
		if got := ann.ask(t, "GET", "/v1/workspaces/w/files?path=secret", ""); string(got.Body) != "of ann\n" {
			t.Errorf("%d %s", got.Status, got.Body)
		}

		// The same name is another workspace, and what one has used up the other has.
		bob.make(t, "/v1/workspaces", `{"name":"w"}`, &made)
		ann.ask(t, "POST", "/v1/sandboxes", `{"workspace":"w"}`).Problem(t, http.StatusServiceUnavailable, "unavailable", "workspace")
		var more v1.Sandbox
		ann.make(t, "/v1/sandboxes", fmt.Sprintf(`{"wait_ms":%d}`, harness.Long.Milliseconds()), &more)
		ann.ask(t, "POST", "/v1/sandboxes", `{}`).Problem(t, http.StatusTooManyRequests, "resource_exhausted", "")
		bob.make(t, "/v1/sandboxes", fmt.Sprintf(`{"workspace":"w","wait_ms":%d}`, harness.Long.Milliseconds()), &more)
		if got := bob.ask(t, "GET", "/v1/sandboxes/"+more.ID+"/files?path=secret", ""); got.Status != http.StatusNotFound {
			t.Errorf("%d %s", got.Status, got.Body)
		}
	})
}
