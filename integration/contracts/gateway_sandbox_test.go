//go:build integration

package contracts

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// lease leases a sandbox by hand.
func (g *gateway) lease(t *testing.T, s *harness.Server, r v1.SandboxRequest) v1.Sandbox {
	t.Helper()
	r.WaitMS = harness.Long.Milliseconds()
	got, err := s.Client.CreateSandbox(soon(t), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Client.RemoveSandbox(soon(t), got.ID); err != nil && !errors.Is(err, client.ErrNoServer) {
			t.Error(err)
		}
	})
	return got
}

// exec runs a command in a sandbox.
func (g *gateway) exec(t *testing.T, s *harness.Server, id, command string) v1.ExecResult {
	t.Helper()
	r, err := s.Client.Exec(soon(t), id, v1.Exec{Command: command})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// hungry needs 200 MB, and busy computes for a second.
const (
	hungry = "x = bytearray(200 << 20); print(len(x))"
	busy   = "import time\nend = time.monotonic() + 1.2\nwhile time.monotonic() < end: pass"
)

// oom wants a command to end for want of memory, alone.
func oom(t *testing.T, a agent) {
	t.Helper()
	before := a.call(t, program("true")).SandboxID
	like(t, a.call(t, program("python3", "-c", hungry)), "oom", "ResourceLimit", "memory")
	r := a.call(t, program("echo", "alive"))
	gives(t, r, fields{"stdout": "alive\n"})
	if r.SandboxID != before {
		t.Error("the sandbox is another one")
	}
}

// throttled wants a command to get far less of the CPU than it asks for. With a
// quarter of one allowed half of one is measured on no machine; a loaded one
// gives less.
func throttled(t *testing.T, a agent) {
	t.Helper()
	r := a.call(t, program("python3", "-c", busy))
	used := r.Usage.CPUUserMS + r.Usage.CPUSystemMS
	if r.Ending != "exited" || used == 0 || used > r.DurationMS/2 {
		t.Errorf("%s: %.0f ms of the CPU in %.0f ms", r.Ending, used, r.DurationMS)
	}
}

func (g *gateway) sandbox() table {
	return table{
		"life/create": func(t *testing.T, s *harness.Server, _ line) {
			made := g.lease(t, s, v1.SandboxRequest{Labels: map[string]string{"by": "hand"}})
			got, err := s.Client.Sandbox(soon(t), made.ID)
			if err != nil || got.State != "leased" || got.Labels["by"] != "hand" || !slices.Contains(s.Cells(), made.ID) {
				t.Errorf("%+v %v", got, err)
			}
		},
		"life/start": func(t *testing.T, s *harness.Server, _ line) {
			if r := g.exec(t, s, g.lease(t, s, v1.SandboxRequest{}).ID, "true"); r.Ending != "exited" || r.ExitCode != 0 {
				t.Errorf("%+v", r)
			}
		},
		"life/exec": func(t *testing.T, s *harness.Server, _ line) {
			r := g.exec(t, s, g.lease(t, s, v1.SandboxRequest{}).ID, "echo out; echo err >&2; sleep 0.05; exit 3")
			if r.ExitCode != 3 || r.Stdout != "out\n" || r.Stderr != "err\n" || r.DurationMS < 50 {
				t.Errorf("%+v", r)
			}
		},
		"life/stop": func(t *testing.T, s *harness.Server, _ line) {
			w, err := s.Client.CreateWorkspace(soon(t), "stopped")
			if err != nil {
				t.Fatal(err)
			}
			id, mark := g.lease(t, s, v1.SandboxRequest{Workspace: w.Name}).ID, word()
			script := "trap 'echo asked > told; exit' TERM; touch ready; while :; do sleep 0.05; done"
			if _, err := s.Client.StartShell(soon(t), id, v1.ShellRequest{Exec: v1.Exec{Argv: []string{"bash", "-c", script, mark}}}); err != nil {
				t.Fatal(err)
			}
			there(t, mark, 1)
			harness.Eventually(t, harness.Short, "the trap is set", func() bool { return g.exec(t, s, id, "test -e ready").ExitCode == 0 })
			got, err := s.Client.StopSandbox(soon(t), id, harness.Short)
			if err != nil || got.State != "gone" {
				t.Errorf("%+v %v", got, err)
			}
			gone(t, mark)
			if r := g.exec(t, s, g.lease(t, s, v1.SandboxRequest{Workspace: w.Name}).ID, "cat told"); r.Stdout != "asked\n" {
				t.Errorf("%+v", r)
			}
		},
		"life/remove": func(t *testing.T, s *harness.Server, _ line) {
			id := g.lease(t, s, v1.SandboxRequest{}).ID
			for range 2 {
				if err := s.Client.RemoveSandbox(soon(t), id); err != nil {
					t.Error(err)
				}
			}
			if _, err := s.Client.Exec(soon(t), id, v1.Exec{Command: "true"}); err == nil {
				t.Error("a sandbox that was removed runs a command")
			}
		},
		"life-gone": func(t *testing.T, s *harness.Server, _ line) {
			for _, end := range []func(id string) error{
				func(id string) error { return s.Client.RemoveSandbox(soon(t), id) },
				func(id string) error { _, err := s.Client.StopSandbox(soon(t), id, time.Second); return err },
			} {
				id := g.lease(t, s, v1.SandboxRequest{}).ID
				g.exec(t, s, id, "true")
				if err := end(id); err != nil {
					t.Fatal(err)
				}
				harness.Eventually(t, harness.Short, "nothing is left", func() bool {
					mounts := strings.Join(harness.MountsUnder(t, s.Dir()), "\n")
					return len(s.Inside(id)) == 0 && len(s.Cgroups(id)) == 0 && !strings.Contains(mounts, id) && !slices.Contains(s.Cells(), id)
				})
			}
		},
		"life-errors": func(t *testing.T, s *harness.Server, _ line) {
			a, mark := g.somebody(t, s, "gateway", "bash"), word()
			id := a.call(t, program("true")).SandboxID
			ended := make(chan v1.ToolResult, 1)
			go func() { // waited for below
				got, err := a.client.CallTool(soon(t), "bash", a.request(t, program("sh", "-c", "sleep 3000; :", mark)), client.CallOptions{})
				if err != nil {
					t.Error(err)
				}
				ended <- got
			}()
			there(t, mark, 1)
			if err := syscall.Kill(s.Init(id), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
			ends(t, <-ended, "sandbox_lost", "SandboxError", "The sandbox was lost")
		},
		"cold-start": func(t *testing.T, s *harness.Server, _ line) {
			best := time.Hour
			// The machine may have a lot else to do.
			for end := time.Now().Add(harness.Short); best > 2*time.Second && time.Now().Before(end); {
				began := time.Now()
				id := g.lease(t, s, v1.SandboxRequest{Template: "cold", WhenEmpty: "cold"}).ID
				g.exec(t, s, id, "true")
				best = min(best, time.Since(began))
				if err := s.Client.RemoveSandbox(soon(t), id); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%s", best)
			if best > 2*time.Second {
				t.Errorf("a sandbox takes %s at best", best)
			}
		},
		"network": func(t *testing.T, s *harness.Server, l line) {
			me := operator(s, "gateway", "bash")
			if lastOf(l) == "interfaces" {
				if got := shell(t, me, "ls /sys/class/net; cat /proc/net/route | tail -n +2"); got != "lo\n" {
					t.Errorf("%q", got)
				}
				return
			}
			for _, call := range []string{"create_connection(('192.0.2.1', 80), 5)", "create_connection(('169.254.169.254', 80), 5)", "getaddrinfo('example.com', 443)"} {
				r := me.call(t, program("python3", "-c", "import socket; socket."+call+"; print('reached')"))
				if out := outputOf(t, r); out["exitCode"] != float64(1) || out["stdout"] != "" {
					t.Errorf("%s: %s", call, r.Output)
				}
			}
		},
		"memory-limit": func(t *testing.T, s *harness.Server, _ line) { oom(t, operator(s, "memory", "bash")) },
		"max-memory":   func(t *testing.T, s *harness.Server, _ line) { oom(t, operator(s, "memory-caps", "bash")) },
		"cpu-limit":    func(t *testing.T, s *harness.Server, _ line) { throttled(t, operator(s, "cpu", "bash")) },
		"max-cpu":      func(t *testing.T, s *harness.Server, _ line) { throttled(t, operator(s, "cpu-caps", "bash")) },
		"max-duration": func(t *testing.T, s *harness.Server, _ line) {
			ends(t, operator(s, "caps", "bash").call(t, program("sleep", "3000")), "timeout", "Timeout", "Command timed out after 1500ms")
		},
		"volume": func(t *testing.T, s *harness.Server, _ line) {
			a := g.somebody(t, s, "gateway", "bash")
			a.session = "" // what a caller's calls share who names none
			shell(t, a, "echo kept > kept")
			first := a.call(t, program("true")).SandboxID
			if err := a.client.EndSession(soon(t), "home"); err != nil {
				t.Fatal(err)
			}
			r := file(t, a, "read", "kept")
			gives(t, r, fields{"content": "kept\n"})
			if r.SandboxID == first {
				t.Error("the sandbox is the same one")
			}
		},
		"volume-mounts": func(t *testing.T, s *harness.Server, _ line) {
			g.warned(t, s, "boxed", "tools.sandbox.volumeMounts: are ignored")
			r := g.somebody(t, s, "boxed", "bash").call(t, program("ls", "/host"))
			if out := outputOf(t, r); out["exitCode"] == float64(0) {
				t.Errorf("%s", r.Output)
			}
		},
		"image": func(t *testing.T, s *harness.Server, _ line) {
			g.warned(t, s, "boxed", `tools.sandbox.image: "other:latest" is ignored`)
			gives(t, g.somebody(t, s, "boxed", "bash").call(t, program("echo", "runs")), fields{"stdout": "runs\n"})
		},
		"bridge": func(t *testing.T, s *harness.Server, _ line) {
			a := g.somebody(t, s, "boxed", "bash")
			gives(t, a.call(t, program("ls", "/sys/class/net")), fields{"stdout": "lo\n"})
			for host, says := range map[string]string{"nowhere.example": "nowhere.example has no address", "x.other.test": "egress.private"} {
				if out := outputOf(t, a.call(t, program("curl", "-sS", "-m", "20", "http://"+host+"/"))); !strings.Contains(fmt.Sprint(out["stdout"]), says) {
					t.Errorf("%s: %v", host, out)
				}
			}
		},
		"shutdown": func(t *testing.T, _ *harness.Server, _ line) {
			s, mark := g.another(t), word()
			g.somebody(t, s, "gateway", "bash").call(t, program("true"))
			other, err := s.Client.CreateSandbox(soon(t), v1.SandboxRequest{WhenEmpty: "cold"})
			if err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"sleep 3000", "setsid nohup sleep 3000 & wait"} {
				if _, err := s.Client.StartShell(soon(t), other.ID, v1.ShellRequest{Exec: v1.Exec{Argv: []string{"sh", "-c", command + "; :", mark}}}); err != nil {
					t.Fatal(err)
				}
			}
			there(t, mark, 2)
			s.CLI(t, "down").Is(t, 0, "")
			if state := s.Ended(); !state.Success() {
				t.Errorf("%s", state)
			}
			gone(t, mark)
			if left := s.Left(); len(left) > 0 {
				t.Errorf("%v", left)
			}
		},
	}
}

// another is a further server with the same configuration, for what cannot be
// done to one that other lines use.
func (g *gateway) another(t *testing.T) *harness.Server {
	t.Helper()
	return harness.Run(t, harness.Options{Runtime: harness.Runtimes()[0], Config: g.config, Seed: &seed})
}

// warned wants a profile to have a warning that a client can see.
func (g *gateway) warned(t *testing.T, s *harness.Server, profile, text string) {
	t.Helper()
	list, err := s.Client.Profiles(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(p v1.Profile) bool { return p.Name == profile })
	if i < 0 || !slices.ContainsFunc(list[i].Warnings, func(w string) bool { return strings.Contains(w, text) }) {
		t.Errorf("no %q in %+v", text, list)
	}
}
