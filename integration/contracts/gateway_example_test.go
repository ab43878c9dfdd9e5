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

// projects is where the example has its workspace.
const projects = "/home/user/projects"

func (g *gateway) example() table {
	bash := func(t *testing.T, s *harness.Server) agent { return g.somebody(t, s, "example", "bash") }
	caps := func(t *testing.T, s *harness.Server, name string) v1.ToolCaps {
		t.Helper()
		list, err := s.Client.Tools(soon(t), "example")
		i := slices.IndexFunc(list, func(x v1.Tool) bool { return x.Name == name })
		if err != nil || i < 0 {
			t.Fatalf("%+v %v", list, err)
		}
		return list[i].Caps
	}
	return table{
		"example-loads": func(t *testing.T, s *harness.Server, _ line) {
			list, err := s.Client.Profiles(soon(t))
			i := slices.IndexFunc(list, func(p v1.Profile) bool { return p.Name == "example" })
			if err != nil || i < 0 || !slices.Equal(list[i].Tools, []string{"bash", "filesystem", "http", "browser"}) || !strings.HasSuffix(list[i].Source, "example.json") {
				t.Errorf("%+v %v", list, err)
			}
		},
		"example-where": func(t *testing.T, s *harness.Server, _ line) {
			a := bash(t, s)
			gives(t, file(t, a, "write", projects+"/notes/a.txt", "content", "hello\n"), fields{"bytesWritten": 6})
			gives(t, file(t, a, "read", "notes/a.txt"), fields{"content": "hello\n"})
			for _, in := range []fields{program("ls", projects), program("ls"), {"command": "ls", "cwd": projects}} {
				gives(t, a.answered(t, in, "approve"), fields{"exitCode": 0, "stdout": "notes\n"})
			}
			for _, cwd := range []string{projects + "/notes", "notes"} {
				gives(t, a.answered(t, fields{"command": "cat", "args": []string{"a.txt"}, "cwd": cwd}, "approve"), fields{"stdout": "hello\n"})
			}
		},
		"example-tmp": func(t *testing.T, s *harness.Server, _ line) {
			a := bash(t, s)
			gives(t, file(t, a, "write", "/tmp/x", "content", "x"), fields{"bytesWritten": 1})
			like(t, file(t, a, "write", "/home/user/other", "content", "x"), "failed", "AccessDenied", "use one below "+projects+", /tmp")
			like(t, a.answered(t, fields{"command": "ls", "cwd": "/tmp"}, "approve"), "failed", "AccessDenied", "use one below "+projects)
		},
		"example-list": func(t *testing.T, s *harness.Server, l line) {
			r := bash(t, s).answered(t, program(lastOf(l), "--version"), "approve")
			gives(t, r, fields{"exitCode": 0})
		},
		"example-deny": func(t *testing.T, s *harness.Server, l line) {
			ends(t, bash(t, s).call(t, program(lastOf(l), "x")), "policy_denied", "PolicyDenied", "Command denied: '"+lastOf(l)+"'")
		},
		"example-caps": func(t *testing.T, s *harness.Server, _ line) {
			if got := caps(t, s, "bash"); got.TimeoutMS != 30000 {
				t.Errorf("%+v", got)
			}
			a := bash(t, s)
			like(t, file(t, a, "write", "over", "content", strings.Repeat("x", tenMiB+1)), "failed", "ToolError", "at most 10485760")
			gives(t, file(t, a, "write", "edge", "content", "x"), fields{"bytesWritten": 1})
		},
		"example-prompt": func(t *testing.T, s *harness.Server, _ line) {
			a := bash(t, s)
			for range 2 {
				gives(t, a.answered(t, program("ls", "/sys/class/net"), "approve"), fields{"exitCode": 0})
			}
			like(t, a.answered(t, program("ls"), "deny"), "approval_denied", "ApprovalDenied", "")
		},
		"example-budget": func(t *testing.T, _ *harness.Server, _ line) {
			awayFromMidnight()
			s := g.another(t)
			a := g.somebody(t, s, "example", "filesystem")
			spend(t, a, 50)
			s.Kill9()
			s.Start() // which forgets how often it was called in a minute, and not the budget
			spend(t, a, 50)
			s.Kill9()
			s.Start()
			used(t, file(t, a, "stat", "."), "daily")
		},
		"example-rate": func(t *testing.T, s *harness.Server, l line) {
			if got := caps(t, s, lastOf(l)); got.MaxCalls != map[string]int{"bash": 10, "filesystem": 50}[lastOf(l)] || got.WindowMS != 60000 {
				t.Errorf("%+v", got)
			}
			a := g.somebody(t, s, "example", lastOf(l))
			if lastOf(l) == "bash" {
				limited(t, a, 10, 60000)
				return
			}
			spend(t, a, 50)
			like(t, file(t, a, "stat", "."), "policy_denied", "RateLimitExceeded", "50 times in 1m0s")
		},
		"example-memory": func(t *testing.T, s *harness.Server, _ line) {
			if got := caps(t, s, "bash").MemoryBytes; got != 512<<20 {
				t.Errorf("%d bytes", got)
			}
			// A line without an end is a lot of memory.
			like(t, bash(t, s).answered(t, program("grep", "-a", "x", "/dev/zero"), "approve"), "oom", "ResourceLimit", "memory")
		},
		"example-network": func(t *testing.T, s *harness.Server, _ line) {
			gives(t, bash(t, s).answered(t, program("ls", "/sys/class/net"), "approve"), fields{"stdout": "lo\n"})
		},
		"example-warnings": func(t *testing.T, s *harness.Server, l line) {
			g.warned(t, s, "example", map[string]string{
				"disabled": "tools.sandbox.enabled: is false, but every call runs in a sandbox",
				"image":    `tools.sandbox.image: "agenc/sandbox:latest" is ignored`,
			}[lastOf(l)])
		},
		"example-http": func(t *testing.T, s *harness.Server, _ line) {
			a := operator(s, "example", "http")
			for _, host := range []string{"github.com", "xapi.github.com", "localhost", "127.0.0.1"} {
				like(t, a.get(t, fmt.Sprintf("https://%s:%d/", host, g.site.TLS)), "failed", "DomainBlocked", "")
			}
			// These may be asked; the name servers here do not know them.
			for _, host := range []string{"api.github.com", "x.docs.solana.com"} {
				like(t, a.get(t, fmt.Sprintf("https://%s:%d/", host, g.site.TLS)), "failed", "NetworkError", host+" has no address")
			}
			if got := caps(t, s, "http").TimeoutMS; got != 30000 {
				t.Errorf("%d ms", got)
			}
		},
		"example-cli": func(t *testing.T, s *harness.Server, _ line) {
			ls := s.CLI(t, "profile", "ls", "-o", "json")
			ls.Is(t, 0, "")
			show := s.CLI(t, "profile", "show", "example", "-o", "json")
			show.Is(t, 0, "")
			for text, in := range map[string]string{
				"tools.sandbox.enabled: is false, but every call": ls.Stdout, `"example"`: ls.Stdout, `"/home/user/projects": "/workspace"`: show.Stdout, `"limit": 100`: show.Stdout,
			} {
				if !strings.Contains(in, text) {
					t.Errorf("no %s in %.3000s", text, in)
				}
			}
		},
	}
}
