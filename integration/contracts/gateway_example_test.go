//go:build integration

package contracts

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// projects is the directory that the example uses as its workspace.
const projects = "/home/user/projects"

// example returns the tests of the original system's example configuration.
func (g *gateway) example() table {
	bash := func(t *testing.T, s *harness.Server) agent { return g.newCaller(t, s, "example", "bash") }
	caps := func(t *testing.T, s *harness.Server, name string) v1.ToolCaps {
		t.Helper()
		list, err := s.Client.Tools.List(callContext(t), "example")
		i := slices.IndexFunc(list, func(x v1.Tool) bool { return x.Name == name })
		if err != nil || i < 0 {
			t.Fatalf("Tools of profile example = %+v, %v; want %s among them", list, err, name)
		}
		return list[i].Caps
	}
	return table{
		"example-loads": func(t *testing.T, s *harness.Server, _ line) {
			list, err := s.Client.Tools.Profiles(callContext(t))
			i := slices.IndexFunc(list, func(p v1.Profile) bool { return p.Name == "example" })
			if err != nil || i < 0 || !slices.Equal(list[i].Tools, []string{"bash", "filesystem", "http", "browser"}) ||
				!strings.HasSuffix(list[i].Source, "example.json") {
				t.Errorf("Profiles = %+v, %v; want the example with its four tools and its source", list, err)
			}
		},
		"example-where": func(t *testing.T, s *harness.Server, _ line) {
			a := bash(t, s)
			assertFields(t, file(t, a, "write", projects+"/notes/a.txt", "content", "hello\n"), fields{"bytesWritten": 6})
			assertFields(t, file(t, a, "read", "notes/a.txt"), fields{"content": "hello\n"})
			for _, in := range []fields{program("ls", projects), program("ls"), {"command": "ls", "cwd": projects}} {
				assertFields(t, a.answered(t, in, "approve"), fields{"exitCode": 0, "stdout": "notes\n"})
			}
			for _, cwd := range []string{projects + "/notes", "notes"} {
				assertFields(t, a.answered(t, fields{"command": "cat", "args": []string{"a.txt"}, "cwd": cwd}, "approve"),
					fields{"stdout": "hello\n"})
			}
		},
		"example-tmp": func(t *testing.T, s *harness.Server, _ line) {
			a := bash(t, s)
			assertFields(t, file(t, a, "write", "/tmp/x", "content", "x"), fields{"bytesWritten": 1})
			assertError(t, file(t, a, "write", "/home/user/other", "content", "x"), "failed", "AccessDenied",
				"use one below "+projects+", /tmp")
			assertError(t, a.answered(t, fields{"command": "ls", "cwd": "/tmp"}, "approve"), "failed", "AccessDenied",
				"use one below "+projects)
		},
		"example-list": func(t *testing.T, s *harness.Server, l line) {
			r := bash(t, s).answered(t, program(lastOf(l), "--version"), "approve")
			assertFields(t, r, fields{"exitCode": 0})
		},
		"example-deny": func(t *testing.T, s *harness.Server, l line) {
			assertEnding(t, bash(t, s).call(t, program(lastOf(l), "x")), "policy_denied", "PolicyDenied",
				"Command denied: '"+lastOf(l)+"'")
		},
		"example-caps": func(t *testing.T, s *harness.Server, _ line) {
			if got := caps(t, s, "bash"); got.TimeoutMS != 30000 {
				t.Errorf("caps of bash = %+v, want a timeout of 30 s", got)
			}
			a := bash(t, s)
			assertError(t, file(t, a, "write", "over", "content", strings.Repeat("x", tenMiB+1)), "failed", "ToolError",
				"at most 10485760")
			assertFields(t, file(t, a, "write", "edge", "content", "x"), fields{"bytesWritten": 1})
		},
		"example-prompt": func(t *testing.T, s *harness.Server, _ line) {
			a := bash(t, s)
			for range 2 {
				assertFields(t, a.answered(t, program("ls", "/sys/class/net"), "approve"), fields{"exitCode": 0})
			}
			assertError(t, a.answered(t, program("ls"), "deny"), "approval_denied", "ApprovalDenied", "")
		},
		"example-budget": func(t *testing.T, _ *harness.Server, _ line) {
			awayFromMidnight()
			s := g.newServer(t)
			a := g.newCaller(t, s, "example", "filesystem")
			makeCalls(t, a, 50)
			s.Kill9()
			s.Start() // a restart resets the rate limit, but not the budget
			makeCalls(t, a, 50)
			s.Kill9()
			s.Start()
			assertBudgetUsed(t, file(t, a, "stat", "."), "daily")
		},
		"example-rate": func(t *testing.T, s *harness.Server, l line) {
			if got := caps(t, s, lastOf(l)); got.MaxCalls != map[string]int{"bash": 10, "filesystem": 50}[lastOf(l)] ||
				got.WindowMS != 60000 {
				t.Errorf("caps of %s = %+v, want the example's limit for a minute", lastOf(l), got)
			}
			a := g.newCaller(t, s, "example", lastOf(l))
			if lastOf(l) == "bash" {
				assertRateLimited(t, a, 10, 60000)
				return
			}
			makeCalls(t, a, 50)
			assertError(t, file(t, a, "stat", "."), "policy_denied", "RateLimitExceeded", "50 times in 1m0s")
		},
		"example-memory": func(t *testing.T, s *harness.Server, _ line) {
			if got := caps(t, s, "bash").MemoryBytes; got != 512<<20 {
				t.Errorf("memory limit is %d bytes, want 512 MiB", got)
			}
			// An endless line needs unlimited memory.
			assertError(t, bash(t, s).answered(t, program("grep", "-a", "x", "/dev/zero"), "approve"), "oom", "ResourceLimit",
				"memory")
		},
		"example-network": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, bash(t, s).answered(t, program("ls", "/sys/class/net"), "approve"), fields{"stdout": "lo\n"})
		},
		"example-warnings": func(t *testing.T, s *harness.Server, l line) {
			g.assertWarning(t, s, "example", map[string]string{
				"disabled": "tools.sandbox.enabled: is false, but every call runs in a sandbox",
				"image":    `tools.sandbox.image: "agenc/sandbox:latest" is ignored`,
			}[lastOf(l)])
		},
		"example-http": func(t *testing.T, s *harness.Server, _ line) {
			a := operator(s, "example", "http")
			for _, host := range []string{"github.com", "xapi.github.com", "localhost", "127.0.0.1"} {
				assertError(t, a.get(t, fmt.Sprintf("https://%s:%d/", host, g.site.TLS)), "failed", "DomainBlocked", "")
			}
			// These hosts are allowed, but the name servers of the test do not know them.
			for _, host := range []string{"api.github.com", "x.docs.solana.com"} {
				url := fmt.Sprintf("https://%s:%d/", host, g.site.TLS)
				assertError(t, a.get(t, url), "failed", "NetworkError", host+" has no address")
			}
			if got := caps(t, s, "http").TimeoutMS; got != 30000 {
				t.Errorf("timeout of http is %d ms, want 30000", got)
			}
		},
		"example-cli": func(t *testing.T, s *harness.Server, _ line) {
			ls := s.CLI(t, "profile", "ls", "-o", "json")
			ls.Is(t, 0, "")
			show := s.CLI(t, "profile", "show", "example", "-o", "json")
			show.Is(t, 0, "")
			for text, in := range map[string]string{
				"tools.sandbox.enabled: is false, but every call": ls.Stdout,
				`"example"`:                           ls.Stdout,
				`"/home/user/projects": "/workspace"`: show.Stdout,
				`"limit": 100`:                        show.Stdout,
			} {
				if !strings.Contains(in, text) {
					t.Errorf("output = %.3000s, want %s in it", in, text)
				}
			}
		},
	}
}
