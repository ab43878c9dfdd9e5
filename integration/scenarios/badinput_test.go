//go:build integration

package scenarios

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// testBadInput sends invalid requests. Each error must name the field, and nothing may be created.
func testBadInput(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	exec := "/v1/sandboxes/" + id + "/exec"
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code, field              string
	}{
		{"unknown template", "POST", "/v1/sandboxes", `{"template":"nope"}`, 404, "not_found", "template"},
		{"unknown workspace", "POST", "/v1/sandboxes", `{"workspace":"nope"}`, 404, "not_found", "workspace"},
		{"unknown template of a run", "POST", "/v1/run", `{"command":"true","template":"nope"}`, 404, "not_found",
			"template"},
		{"unknown image", "DELETE", "/v1/images?ref=nope", "", 404, "not_found", ""},
		{"unknown sandbox", "POST", "/v1/sandboxes/nope/exec", `{"command":"true"}`, 404, "not_found", ""},
		{"unknown shell", "GET", "/v1/shells/nope", "", 404, "not_found", ""},
		{"user 0", "POST", exec, `{"command":"id","user":"0"}`, 400, "invalid_argument", "user"},
		{"user root", "POST", exec, `{"command":"id","user":"root"}`, 400, "invalid_argument", "user"},
		{"user 0 by group", "POST", exec, `{"command":"id","user":"0:1000"}`, 400, "invalid_argument", "user"},
		{"unknown user", "POST", exec, `{"command":"id","user":"nobody-known"}`, 400, "invalid_argument", "user"},
		{"unknown field", "POST", exec, `{"command":"id","usr":"x"}`, 400, "invalid_argument", "usr"},
		{"unknown program", "POST", exec, `{"argv":["/no/such/program"]}`, 404, "not_found", "argv"},
		{"unknown directory", "POST", exec, `{"command":"id","cwd":"/no/such/folder"}`, 404, "not_found", "cwd"},
		{"invalid UTF-8", "POST", exec, "{\"command\":\"\xff\xfe\"}", 400, "invalid_argument", "body"},
		{"name of invalid UTF-8", "POST", "/v1/workspaces", "{\"name\":\"\xff\"}", 400, "invalid_argument", "body"},
		{"name that is a path", "POST", "/v1/workspaces", `{"name":"../x"}`, 400, "invalid_argument", "name"},
		{"TTL too long", "POST", "/v1/sandboxes", `{"ttl_ms":99999999999}`, 400, "invalid_argument", "ttl_ms"},
		{"argv and command", "POST", exec, `{"argv":["a"],"command":"b"}`, 400, "invalid_argument", "command"},
		{"unknown when_empty", "POST", "/v1/sandboxes", `{"when_empty":"perhaps"}`, 400, "invalid_argument", "when_empty"},
		{"unknown route", "POST", "/v1/nothing", "", 404, "not_found", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := s.Ask(t, c.method, c.path, c.body).Problem(t, c.status, c.code, c.field)
			if c.field != "" && !strings.Contains(p.Detail, c.field) {
				t.Errorf("detail = %q, want it to name the field %q", p.Detail, c.field)
			}
		})
	}
	t.Run("body over the limit", func(t *testing.T) {
		big := `{"command":"cat","stdin":"` + strings.Repeat("x", 33<<20) + `"}`
		s.Ask(t, "POST", "/v1/run", big).Problem(t, 413, "invalid_argument", "body")
	})
	list, err := s.Client.Sandboxes(within(t), false)
	if err != nil || len(list) != 1 {
		t.Errorf("leases after invalid requests = %+v, %v; want only the one of this test", list, err)
	}
	if got := sh(t, s, id, "id -u; echo fine"); got != "1000\nfine\n" {
		t.Errorf("the sandbox printed %q, want id 1000 and fine", got)
	}
}

// testBadFiles requests special files and paths that leave the workspace, in a live sandbox and in
// a workspace without a sandbox.
func testBadFiles(t *testing.T, s *harness.Server) {
	name := workspace(t, s)
	id := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
	sh(t, s, id, "mkfifo fifo; mkdir dir; ln -s /etc/passwd out; ln -s ../../../etc up; ln -s loop loop; "+
		"python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'")
	t.Run("live", func(t *testing.T) { testBadPaths(t, s, "/v1/sandboxes/"+id+"/files?path=") })
	release(t, s, id)
	t.Run("at rest", func(t *testing.T) { testBadPaths(t, s, "/v1/workspaces/"+name+"/files?path=") })
}

// testBadPaths reads and writes bad paths below the URL files.
func testBadPaths(t *testing.T, s *harness.Server, files string) {
	for _, c := range []struct {
		path   string
		status int
		code   string
	}{
		{"../../etc/passwd", 403, "permission_denied"},
		{"/etc/passwd", 403, "permission_denied"},
		{"out", 403, "permission_denied"},
		{"up/passwd", 403, "permission_denied"},
		{"fifo", 409, "failed_precondition"},
		{"sock", 409, "failed_precondition"},
		{"dir", 409, "failed_precondition"},
		{"\xff\xfe", 400, "invalid_argument"},
		{"no\x00byte", 400, "invalid_argument"},
		{"nothing", 404, "not_found"},
		{strings.Repeat("long/", 2000), 400, "invalid_argument"},
	} {
		t.Run(fmt.Sprintf("read %.20q", c.path), func(t *testing.T) {
			s.Ask(t, "GET", files+url.QueryEscape(c.path), "").Problem(t, c.status, c.code, "path")
		})
	}
	for path, code := range map[string]string{
		"../x":   "permission_denied",
		"/etc/x": "permission_denied",
		"up/x":   "permission_denied",
		"dir":    "failed_precondition",
		"fifo/x": "already_exists",
	} {
		t.Run(fmt.Sprintf("write %q", path), func(t *testing.T) {
			status := 409
			if code == "permission_denied" {
				status = 403
			}
			s.Ask(t, "PUT", files+url.QueryEscape(path), "content").Problem(t, status, code, "path")
		})
	}
}

// assertServeRefuses starts a server that must exit with the code and one line that contains the
// texts.
func assertServeRefuses(t *testing.T, s *harness.Server, code int, texts ...string) {
	t.Helper()
	s.Begin()
	state := s.Ended()
	if state.ExitCode() != code {
		t.Errorf("exit code %d, want %d", state.ExitCode(), code)
	}
	var message string
	for line := range strings.Lines(s.Log()) {
		if strings.HasPrefix(line, "orchestrator: ") {
			message += line
		}
	}
	if strings.Count(message, "\n") != 1 {
		t.Errorf("the server printed %q, want one line\n%s", message, s.Log())
	}
	for _, text := range texts {
		assertContains(t, message, text)
	}
}

// TestServeRefuses checks that a server refuses to start with an invalid configuration.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	onRuntimes(t, func(t *testing.T, name string) {
		for _, c := range []struct {
			name, config string
			code         int
			texts        []string
		}{
			{"limit below the minimum", "templates: {default: {limits: {memory: 1MiB}}}", 64,
				[]string{"templates.default.limits.memory", "at least"}},
			{"unknown key", "templates: {default: {limits: {memroy: 1g}}}", 64, []string{"memroy", "memory"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				assertServeRefuses(t, harness.New(t, harness.Options{Runtime: name, Config: c.config, Seed: &seed}), c.code,
					c.texts...)
			})
		}
	})
}

// TestServeReportsNotReady checks that a template that cannot be used does not keep the server from
// starting, and that its callers get the reason.
func TestServeReportsNotReady(t *testing.T) {
	t.Parallel()
	onRuntimes(t, func(t *testing.T, name string) {
		for _, c := range []struct {
			name, config string
			texts        []string
		}{
			{"unknown image", "templates: {default: {image: 'no/such:image'}}", []string{"not ready", "no/such:image"}},
			{"template above the host's limit", "admission: {max_memory: 400MiB}",
				[]string{"not ready", "limits.memory", "admission.max_memory"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := harness.Run(t, harness.Options{Runtime: name, Config: c.config, Seed: &seed})
				p := s.Ask(t, "POST", "/v1/sandboxes", `{}`).Problem(t, 503, "unavailable", "template")
				for _, text := range c.texts {
					assertContains(t, p.Detail, text)
				}
				got := s.CLI(t, "template", "ls")
				assertContains(t, got.Stdout, "not_ready")
				awaitNoLease(t, s)
			})
		}
	})
}

// TestImpossibleLimitsAreRefused checks that the error names a limit that the engine cannot apply,
// and that no sandbox is created.
func TestImpossibleLimitsAreRefused(t *testing.T) {
	t.Parallel()
	const config = `
templates:
  default: {limits: {memory: 192MiB}, pool: {min: 0, max: 2}}
  wide: {limits: {memory: 192MiB, cpus: 1000}, pool: {min: 0, max: 2}}
`
	onServer(t, config, func(t *testing.T, s *harness.Server) {
		if s.Runtime == "docker" { // it rejects more CPUs than the host has
			p := s.Ask(t, "POST", "/v1/sandboxes", `{"template":"wide","when_empty":"cold"}`).
				Problem(t, 400, "invalid_argument", "")
			assertContains(t, strings.ToLower(p.Detail), "cpus")
		}
		awaitNoLease(t, s)
		sh(t, s, lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID, "true")
	})
}

// TestServeRefusesDeadEngine checks that a server refuses to start without its engine.
func TestServeRefusesDeadEngine(t *testing.T) {
	t.Parallel()
	dead := "unix://" + filepath.Join(harness.TempDir(t), "no.sock")
	s := harness.New(t, harness.Options{Runtime: "docker", Docker: dead, Seed: &seed})
	assertServeRefuses(t, s, 69, dead)
}

// TestSecondServerIsRefused checks that a second server on the same state directory is refused.
func TestSecondServerIsRefused(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand, Seed: &seed})
	got := s.CLI(t, "serve", "--listen", "unix:"+s.Socket()+"2")
	got.Is(t, 69, "held by process")
}

// TestFullDiskRefusesRequests checks that requests are refused while the disk is full, and served
// when it has space again.
func TestFullDiskRefusesRequests(t *testing.T) {
	t.Parallel()
	onRuntimes(t, func(t *testing.T, name string) {
		root := harness.TempDir(t)
		if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=96m,mode=0755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(root, 0); err != nil {
				t.Errorf("unmount %s: %v", root, err)
			}
		})
		testFullDisk(t, name, root)
	})
}
