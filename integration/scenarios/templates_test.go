//go:build integration

package scenarios

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// small is a template's file that keeps n warm.
func small(n int, more string) string {
	return fmt.Sprintf("image: orchestrator/sandbox:latest\nentrypoint: [/usr/local/lib/orchestrator/entrypoint.sh]\n"+
		"limits: {memory: 192MiB, pids: 160}\npool: {min: %d, max: 6, rate: 10, parallel: 2}\n%s", n, more)
}

// withFolder runs a scenario on every runtime with a server whose templates are
// in a folder.
func withFolder(t *testing.T, files map[string]string, run func(t *testing.T, s *harness.Server, dir string)) {
	each(t, func(t *testing.T, name string) {
		dir := harness.TempDir(t)
		for file, text := range files {
			harness.WriteFile(t, filepath.Join(dir, file), text)
		}
		config := "templates_dir: " + dir + "\ntemplates:\n  default:\n    limits: {memory: 192MiB, pids: 160}\n    pool: {min: 0, max: 4, rate: 10}\n"
		run(t, harness.Run(t, harness.Options{Runtime: name, Config: config, Seed: &seed}), dir)
	})
}

// state is a template's, with what is said of it.
func state(t *testing.T, s *harness.Server, name string) (v1.Template, v1.Pool) {
	t.Helper()
	ctx := within(t)
	list, err := s.Client.Templates(ctx)
	if err != nil {
		t.Fatal(err)
	}
	pools, err := s.Client.Pools(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var tm v1.Template
	var p v1.Pool
	for _, x := range list {
		if x.Name == name {
			tm = x
		}
	}
	for _, x := range pools {
		if x.Template == name {
			p = x
		}
	}
	return tm, p
}

// saidBy runs a command in a one-shot sandbox of a template.
func saidBy(t *testing.T, s *harness.Server, template, command string) string {
	t.Helper()
	r, err := s.Client.Run(within(t), v1.Run{Template: template, Exec: v1.Exec{Command: command}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Ending != "exited" || r.ExitCode != 0 {
		t.Errorf("%s: %s %d %s", command, r.Ending, r.ExitCode, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

// Everything that a template says is so inside.
func TestTemplateMatchesItsFile(t *testing.T) {
	t.Parallel()
	withFolder(t, map[string]string{"py.yaml": small(1, `
tmpfs: {/var/cache: 4MiB}
ulimits: {fsize: 1MiB, stack: 4MiB}
env: {COLOUR: green, KEPT: template, PATH: /usr/local/bin:/usr/bin:/bin:/opt/x}
user: "1234:1234"
warmup:
  - {argv: [sh, -c, "echo $COLOUR-$(id -u) > /tmp/warmed"], timeout: 60s}
  - {argv: [sh, -c, "sleep 1000000"], background: true}
`)}, func(t *testing.T, s *harness.Server, _ string) {
		for command, want := range map[string]string{
			"cat /tmp/warmed":          "green-1234",
			"id -u; id -g":             "1234\n1234",
			"echo $COLOUR ${PATH##*:}": "green /opt/x",
			"ulimit -s":                "4096",
			"grep ' /var/cache ' /proc/mounts | cut -d' ' -f3; touch /var/cache/x && stat -c %u /var/cache/x": "tmpfs\n1234",
			"grep ' /var/cache ' /proc/mounts | grep -c nosuid,nodev":                                         "1",
			"dd if=/dev/zero of=/tmp/big bs=64k count=17 2>/dev/null; stat -c %s /tmp/big":                    "1048576",
		} {
			if got := saidBy(t, s, "py", command); got != want {
				t.Errorf("%s\n got %q\nwant %q", command, got, want)
			}
		}
		ctx := within(t)
		l := lease(t, s, v1.SandboxRequest{Template: "py", Env: map[string]string{"KEPT": "lease"}})
		r, err := s.Client.Exec(ctx, l.ID, v1.Exec{Command: "echo $KEPT $COLOUR; id -u", Env: map[string]string{"COLOUR": "call"}, User: "1000"})
		if err != nil || r.Stdout != "lease call\n1000\n" {
			t.Errorf("under the lease and the call: %q, %v", r.Stdout, err)
		}
		shells, err := s.Client.Shells(ctx, l.ID)
		if err != nil || len(shells) != 1 || shells[0].State != "running" || !strings.Contains(strings.Join(shells[0].Argv, " "), "sleep 1000000") {
			t.Fatalf("shells of the warm-up: %+v, %v", shells, err)
		}
		if sh, err := s.Client.KillShell(ctx, shells[0].ID, 0, false); err != nil || sh.State != "ended" {
			t.Errorf("killed: %+v, %v", sh, err)
		}
	})
}

// A hook that fails is a failed creation, with its words.
func TestFailedHookIsReported(t *testing.T) {
	t.Parallel()
	withFolder(t, map[string]string{
		"loud.yaml": small(1, "warmup: [{argv: [sh, -c, 'echo no such model >&2; exit 3']}]"),
		"slow.yaml": small(1, "warmup: [{argv: [sleep, '1000'], timeout: 300ms}]"),
		"gone.yaml": small(1, "warmup: [{argv: [sh, -c, 'echo bye; exit 0'], background: true}]"),
		"who.yaml":  small(1, "user: nobody-here"),
		"fine.yaml": small(1, ""),
	}, func(t *testing.T, s *harness.Server, _ string) {
		for name, want := range map[string]string{
			"loud": "warm-up 1 (sh): exited with 3: no such model", "slow": "warm-up 1 (sleep): timeout",
			"gone": "in the background (sh -c echo bye; exit 0): exited with 0: bye", "who": `no user "nobody-here"`,
		} {
			harness.Eventually(t, harness.Short, name+" says "+want, func() bool {
				_, p := state(t, s, name)
				return strings.Contains(p.LastError, want) && p.Failed > 0 && p.Warm == 0
			})
		}
		if got := saidBy(t, s, "fine", "echo ok"); got != "ok" {
			t.Errorf("got %q", got)
		}
	})
}

// Files that come, change, break and go, while leases are taken all the time.
func TestTemplateReloadKeepsLeases(t *testing.T) {
	t.Parallel()
	withFolder(t, map[string]string{"py.yaml": small(2, "env: {V: '1'}\nwarmup: [{argv: ['true']}]")}, func(t *testing.T, s *harness.Server, dir string) {
		ctx := within(t)
		kept := lease(t, s, v1.SandboxRequest{Template: "py"})
		stop, cancel := context.WithCancel(ctx)
		var work sync.WaitGroup
		var mu sync.Mutex
		seen := map[string]int{}
		for range 2 {
			work.Go(func() {
				for stop.Err() == nil {
					r, err := s.Client.Run(ctx, v1.Run{Template: "py", Exec: v1.Exec{Command: "echo $V"}})
					if err != nil || r.Ending != "exited" {
						t.Errorf("a call while templates change: %+v, %v", r, err)
						return
					}
					mu.Lock()
					seen[strings.TrimSpace(r.Stdout)]++
					mu.Unlock()
				}
			})
		}
		for i := 2; i < 5; i++ {
			harness.WriteFile(t, filepath.Join(dir, "py.yaml"), small(2, fmt.Sprintf("env: {V: '%d'}\nwarmup: [{argv: ['true']}]", i)))
			harness.Eventually(t, harness.Short, "a call runs in the new version", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return seen[fmt.Sprint(i)] > 0
			})
		}
		cancel()
		work.Wait()
		if r, err := s.Client.Exec(ctx, kept.ID, v1.Exec{Command: "echo $V"}); err != nil || r.Stdout != "1\n" {
			t.Errorf("the lease of before: %q, %v", r.Stdout, err)
		}

		// Only numbers: nothing is made anew.
		harness.Eventually(t, harness.Short, "two are warm", func() bool { _, p := state(t, s, "py"); return p.Warm == 2 })
		_, before := state(t, s, "py")
		harness.WriteFile(t, filepath.Join(dir, "py.yaml"), small(3, "env: {V: '4'}\nwarmup: [{argv: ['true']}]"))
		s.Signal(syscall.SIGHUP)
		harness.Eventually(t, harness.Short, "three are warm", func() bool { _, p := state(t, s, "py"); return p.Warm == 3 })
		if _, p := state(t, s, "py"); p.Created != before.Created+1 {
			t.Errorf("%d were made for one more", p.Created-before.Created)
		}

		// A broken file leaves the last good version; a new one without its image waits.
		harness.WriteFile(t, filepath.Join(dir, "py.yaml"), "image: x\npool: {mn: 3}")
		harness.WriteFile(t, filepath.Join(dir, "far.yaml"), "image: nowhere/at-all:1\nentrypoint: []")
		c := s.CLI(t, "template", "reload")
		if c.Code != 78 || !strings.Contains(c.Stdout, `did you mean "min"?`) || !strings.Contains(c.Stdout, "nowhere/at-all:1") {
			t.Errorf("reload: %+v", c)
		}
		if tm, p := state(t, s, "py"); tm.State != "ready" || !strings.Contains(tm.Error, "py.yaml: unknown key pool.mn") || p.Warm < 2 {
			t.Errorf("broken: %+v %+v", tm, p)
		}
		if tm, _ := state(t, s, "far"); tm.State != "not_ready" || !strings.Contains(tm.Error, "nowhere/at-all:1") {
			t.Errorf("without an image: %+v", tm)
		}
		a := s.Ask(t, "POST", "/v1/sandboxes", `{"template": "far"}`)
		if p := a.Problem(t, 503, "unavailable", "template"); !strings.Contains(p.Detail, "is not ready") || !strings.Contains(p.Detail, "py") {
			t.Errorf("said: %s", p.Detail)
		}
		if got := saidBy(t, s, "py", "echo $V"); got != "4" {
			t.Errorf("got %q", got)
		}

		// A removed one is drained, and its lease goes on.
		if err := os.Remove(filepath.Join(dir, "py.yaml")); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, harness.Short, "py is no more", func() bool { tm, _ := state(t, s, "py"); return tm.Name == "" })
		a = s.Ask(t, "POST", "/v1/sandboxes", `{"template": "py"}`)
		if p := a.Problem(t, 404, "not_found", "template"); !strings.Contains(p.Detail, "default") {
			t.Errorf("said: %s", p.Detail)
		}
		if r, err := s.Client.Exec(ctx, kept.ID, v1.Exec{Command: "echo $V"}); err != nil || r.Stdout != "1\n" {
			t.Errorf("the lease of before: %q, %v", r.Stdout, err)
		}
		harness.WriteFile(t, filepath.Join(dir, "py.yaml"), small(1, "env: {V: '9'}"))
		harness.Eventually(t, harness.Short, "py is back", func() bool { tm, _ := state(t, s, "py"); return tm.State == "ready" })
		if got := saidBy(t, s, "py", "echo $V"); got != "9" {
			t.Errorf("got %q", got)
		}
	})
}

// What was warm stays so over a restart, with its warm-up, and what is in the
// background is the next lease's.
func TestWarmUpSurvivesRestart(t *testing.T) {
	t.Parallel()
	withFolder(t, map[string]string{"py.yaml": small(1, `
env: {V: '1'}
warmup:
  - {argv: [sh, -c, 'head -c16 /dev/urandom | od -An -tx1 > /tmp/id']}
  - {argv: [sleep, '1000000'], background: true}
`)}, func(t *testing.T, s *harness.Server, _ string) {
		harness.Eventually(t, harness.Short, "one is warm", func() bool { _, p := state(t, s, "py"); return p.Warm == 1 })
		s.Term()
		s.Start()
		_, p := state(t, s, "py")
		l := lease(t, s, v1.SandboxRequest{Template: "py"})
		if !l.Warm || p.Created != 0 {
			t.Errorf("not the one of before: %+v %+v", l, p)
		}
		shells, err := s.Client.Shells(within(t), l.ID)
		if err != nil || len(shells) != 1 || shells[0].State != "running" {
			t.Errorf("shells: %+v, %v", shells, err)
		}
		if r, err := s.Client.Exec(within(t), l.ID, v1.Exec{Command: "echo $V; test -s /tmp/id"}); err != nil || r.Stdout != "1\n" || r.ExitCode != 0 {
			t.Errorf("inside: %+v, %v", r, err)
		}
	})
}

// Three at a time, again and again, each time when the pool is as full as it
// wants to be: one of one is not enough, and an adaptive pool knows after a round.
func TestAdaptivePoolServesMoreWarm(t *testing.T) {
	withFolder(t, map[string]string{
		"fixed.yaml":    small(1, ""),
		"adaptive.yaml": strings.Replace(small(1, ""), "max: 6", "max: 6, adaptive: true", 1),
	}, func(t *testing.T, s *harness.Server, _ string) {
		ctx := within(t)
		const rounds, each = 5, 3
		warm := map[string]int{}
		for round := range rounds {
			for _, template := range []string{"fixed", "adaptive"} {
				harness.Eventually(t, harness.Short, template+" is full", func() bool {
					_, p := state(t, s, template)
					return p.Creating == 0 && p.Warm >= p.Target && p.Leased == 0
				})
				var mu sync.Mutex
				var calls sync.WaitGroup
				for range each {
					calls.Go(func() {
						l, err := s.Client.CreateSandbox(ctx, v1.SandboxRequest{Template: template, WaitMS: harness.Long.Milliseconds()})
						if err == nil {
							err = s.Client.RemoveSandbox(ctx, l.ID)
						}
						mu.Lock()
						defer mu.Unlock()
						if err != nil {
							t.Error(err)
						} else if l.Warm && round > 0 {
							warm[template]++
						}
					})
				}
				calls.Wait()
			}
		}
		_, p := state(t, s, "adaptive")
		if all := (rounds - 1) * each; warm["adaptive"] != all || warm["fixed"] > all/2 || p.Target < each {
			t.Errorf("of %d were warm: %v; %+v", all, warm, p)
		}
	})
}
