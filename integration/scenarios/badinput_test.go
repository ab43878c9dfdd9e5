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

// One clear error that names the field, and nothing half done.
func badInput(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	exec := "/v1/sandboxes/" + id + "/exec"
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		code, field              string
	}{
		{"unknown template", "POST", "/v1/sandboxes", `{"template":"nope"}`, 404, "not_found", "template"},
		{"unknown workspace", "POST", "/v1/sandboxes", `{"workspace":"nope"}`, 404, "not_found", "workspace"},
		{"unknown template of a run", "POST", "/v1/run", `{"command":"true","template":"nope"}`, 404, "not_found", "template"},
		{"unknown image", "DELETE", "/v1/images?ref=nope", "", 404, "not_found", ""},
		{"unknown sandbox", "POST", "/v1/sandboxes/nope/exec", `{"command":"true"}`, 404, "not_found", ""},
		{"unknown shell", "GET", "/v1/shells/nope", "", 404, "not_found", ""},
		{"user 0", "POST", exec, `{"command":"id","user":"0"}`, 400, "invalid_argument", "user"},
		{"user root", "POST", exec, `{"command":"id","user":"root"}`, 400, "invalid_argument", "user"},
		{"user 0 by group", "POST", exec, `{"command":"id","user":"0:1000"}`, 400, "invalid_argument", "user"},
		{"unknown user", "POST", exec, `{"command":"id","user":"nobody-known"}`, 400, "invalid_argument", "user"},
		{"unknown field", "POST", exec, `{"command":"id","usr":"x"}`, 400, "invalid_argument", "usr"},
		{"unknown program", "POST", exec, `{"argv":["/no/such/program"]}`, 404, "not_found", "argv"},
		{"no folder", "POST", exec, `{"command":"id","cwd":"/no/such/folder"}`, 404, "not_found", "cwd"},
		{"invalid UTF-8", "POST", exec, "{\"command\":\"\xff\xfe\"}", 400, "invalid_argument", "body"},
		{"a name of invalid UTF-8", "POST", "/v1/workspaces", "{\"name\":\"\xff\"}", 400, "invalid_argument", "body"},
		{"a name that is a path", "POST", "/v1/workspaces", `{"name":"../x"}`, 400, "invalid_argument", "name"},
		{"too long", "POST", "/v1/sandboxes", `{"ttl_ms":99999999999}`, 400, "invalid_argument", "ttl_ms"},
		{"two ways", "POST", exec, `{"argv":["a"],"command":"b"}`, 400, "invalid_argument", "command"},
		{"not a mode", "POST", "/v1/sandboxes", `{"when_empty":"perhaps"}`, 400, "invalid_argument", "when_empty"},
		{"no route", "POST", "/v1/nothing", "", 404, "not_found", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := s.Ask(t, c.method, c.path, c.body).Problem(t, c.status, c.code, c.field)
			if c.field != "" && !strings.Contains(p.Detail, c.field) {
				t.Errorf("the text does not name %s: %s", c.field, p.Detail)
			}
		})
	}
	t.Run("a body over the limit", func(t *testing.T) {
		big := `{"command":"cat","stdin":"` + strings.Repeat("x", 33<<20) + `"}`
		s.Ask(t, "POST", "/v1/run", big).Problem(t, 413, "invalid_argument", "body")
	})
	list, err := s.Client.Sandboxes(within(t), false)
	if err != nil || len(list) != 1 {
		t.Errorf("half-done leases: %+v %v", list, err)
	}
	if got := sh(t, s, id, "id -u; echo fine"); got != "1000\nfine\n" {
		t.Errorf("%q", got)
	}
}

// Files that are no files, and paths that lead out, in a live sandbox and in a
// workspace at rest.
func badFiles(t *testing.T, s *harness.Server) {
	name := workspace(t, s)
	id := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
	sh(t, s, id, "mkfifo fifo; mkdir dir; ln -s /etc/passwd out; ln -s ../../../etc up; ln -s loop loop; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'")
	t.Run("live", func(t *testing.T) { badPaths(t, s, "/v1/sandboxes/"+id+"/files?path=") })
	release(t, s, id)
	t.Run("at rest", func(t *testing.T) { badPaths(t, s, "/v1/workspaces/"+name+"/files?path=") })
}

func badPaths(t *testing.T, s *harness.Server, files string) {
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
		"../x": "permission_denied", "/etc/x": "permission_denied", "up/x": "permission_denied", "dir": "failed_precondition", "fifo/x": "already_exists",
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

// refuses wants a server that ends by itself with one clear line.
func refuses(t *testing.T, s *harness.Server, code int, texts ...string) {
	t.Helper()
	s.Begin()
	state := s.Ended()
	if state.ExitCode() != code {
		t.Errorf("exit code %d, want %d", state.ExitCode(), code)
	}
	var said string
	for line := range strings.Lines(s.Log()) {
		if strings.HasPrefix(line, "orchestrator: ") {
			said += line
		}
	}
	if strings.Count(said, "\n") != 1 {
		t.Errorf("not one line: %q\n%s", said, s.Log())
	}
	for _, text := range texts {
		contains(t, said, text)
	}
}

// What a server cannot serve with is said when it starts.
func TestServeRefuses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, name string) {
		for _, c := range []struct {
			name, config string
			code         int
			texts        []string
		}{
			{"a cap below the least", "templates: {default: {limits: {memory: 1MiB}}}", 64, []string{"templates.default.limits.memory", "at least"}},
			{"a key that is unknown", "templates: {default: {limits: {memroy: 1g}}}", 64, []string{"memroy", "memory"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				refuses(t, harness.New(t, harness.Options{Runtime: name, Config: c.config, Seed: &seed}), c.code, c.texts...)
			})
		}
	})
}

// What keeps one template from being leased keeps nobody from starting: it is not
// ready, and who asks for it is told why.
func TestServeReportsNotReady(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, name string) {
		for _, c := range []struct {
			name, config string
			texts        []string
		}{
			{"an image that is not there", "templates: {default: {image: 'no/such:image'}}", []string{"not ready", "no/such:image"}},
			{"a template that never fits", "admission: {max_memory: 400MiB}", []string{"not ready", "limits.memory", "admission.max_memory"}},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := harness.Run(t, harness.Options{Runtime: name, Config: c.config, Seed: &seed})
				p := s.Ask(t, "POST", "/v1/sandboxes", `{}`).Problem(t, 503, "unavailable", "template")
				for _, text := range c.texts {
					contains(t, p.Detail, text)
				}
				got := s.CLI(t, "template", "ls")
				contains(t, got.Stdout, "not_ready")
				noLease(t, s)
			})
		}
	})
}

// Caps that cannot be kept here: nothing is made, and the answer names the cap.
func TestImpossibleLimitsAreRefused(t *testing.T) {
	t.Parallel()
	const config = `
templates:
  default: {limits: {memory: 192MiB}, pool: {min: 0, max: 2}}
  wide: {limits: {memory: 192MiB, cpus: 1000}, pool: {min: 0, max: 2}}
`
	onServer(t, config, func(t *testing.T, s *harness.Server) {
		if s.Runtime == "docker" { // which takes no more CPUs than there are
			p := s.Ask(t, "POST", "/v1/sandboxes", `{"template":"wide","when_empty":"cold"}`).Problem(t, 400, "invalid_argument", "")
			contains(t, strings.ToLower(p.Detail), "cpus")
		}
		noLease(t, s)
		sh(t, s, lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID, "true")
	})
}

func TestDeadEngine(t *testing.T) {
	t.Parallel()
	dead := "unix://" + filepath.Join(harness.TempDir(t), "no.sock")
	s := harness.New(t, harness.Options{Runtime: "docker", Docker: dead, Seed: &seed})
	refuses(t, s, 69, dead)
}

// A state directory that another server has.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand, Seed: &seed})
	got := s.CLI(t, "serve", "--listen", "unix:"+s.Socket()+"2")
	got.Is(t, 69, "held by process")
}

// A full disk: what is asked for then is refused with a reason, and the server
// goes on when there is room again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, name string) {
		root := harness.TempDir(t)
		if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=96m,mode=0755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := syscall.Unmount(root, 0); err != nil {
				t.Errorf("unmount %s: %v", root, err)
			}
		})
		fullDisk(t, name, root)
	})
}
