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

// templateFile returns a template's file that keeps n sandboxes warm. more is appended to it.
func templateFile(n int, more string) string {
	return fmt.Sprintf("image: orchestrator/sandbox:latest\nentrypoint: [/usr/local/lib/orchestrator/entrypoint.sh]\n"+
		"limits: {memory: 192MiB, pids: 160}\npool: {min: %d, max: 6, rate: 10, parallel: 2}\n%s", n, more)
}

// withTemplatesDir runs a scenario on every runtime with a server whose templates are files in a
// directory.
func withTemplatesDir(t *testing.T, files map[string]string, run func(t *testing.T, s *harness.Server, dir string)) {
	t.Helper()
	onRuntimes(t, func(t *testing.T, name string) {
		dir := harness.TempDir(t)
		for file, text := range files {
			harness.WriteFile(t, filepath.Join(dir, file), text)
		}
		config := "templates_dir: " + dir + `
templates:
  default:
    limits: {memory: 192MiB, pids: 160}
    pool: {min: 0, max: 4, rate: 10}
`
		run(t, harness.Run(t, harness.Options{Runtime: name, Config: config, Seed: &seed}), dir)
	})
}

// templateState returns a template and its pool, which are zero if they do not exist.
func templateState(t *testing.T, s *harness.Server, name string) (v1.Template, v1.Pool) {
	t.Helper()
	ctx := within(t)
	list, err := s.Client.Templates.List(ctx)
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

// runInTemplate runs a command in a one-shot sandbox of a template and returns its trimmed output.
func runInTemplate(t *testing.T, s *harness.Server, template, command string) string {
	t.Helper()
	r, err := s.Client.Run(within(t), v1.Run{Template: template, Exec: v1.Exec{Command: command}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Ending != "exited" || r.ExitCode != 0 {
		t.Errorf("%s: ending %s, exit code %d, want exited with 0: %s", command, r.Ending, r.ExitCode, r.Stderr)
	}
	return strings.TrimSpace(r.Stdout)
}

// TestTemplateMatchesItsFile checks that every setting of a template's file applies in its
// sandboxes.
func TestTemplateMatchesItsFile(t *testing.T) {
	t.Parallel()
	withTemplatesDir(t, map[string]string{"py.yaml": templateFile(1, `
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
			if got := runInTemplate(t, s, "py", command); got != want {
				t.Errorf("%s printed %q, want %q", command, got, want)
			}
		}
		ctx := within(t)
		l := lease(t, s, v1.SandboxRequest{Template: "py", Env: map[string]string{"KEPT": "lease"}})
		r, err := s.Client.Exec(ctx, l.ID, v1.Exec{
			Command: "echo $KEPT $COLOUR; id -u", Env: map[string]string{"COLOUR": "call"}, User: "1000",
		})
		if err != nil || r.Stdout != "lease call\n1000\n" {
			t.Errorf("with variables of lease and call, the command printed %q, %v; want lease call and id 1000", r.Stdout, err)
		}
		shells, err := s.Client.Shells(ctx, l.ID)
		running := err == nil && len(shells) == 1 && shells[0].State == "running"
		if !running || !strings.Contains(strings.Join(shells[0].Argv, " "), "sleep 1000000") {
			t.Fatalf("Shells = %+v, %v; want the running warm-up command", shells, err)
		}
		if sh, err := s.Client.KillShell(ctx, shells[0].ID, 0, false); err != nil || sh.State != "ended" {
			t.Errorf("KillShell of the warm-up command = %+v, %v; want it ended", sh, err)
		}
	})
}

// TestFailedHookIsReported checks that a failed warm-up command fails the creation, and that the
// pool reports its output.
func TestFailedHookIsReported(t *testing.T) {
	t.Parallel()
	withTemplatesDir(t, map[string]string{
		"loud.yaml": templateFile(1, "warmup: [{argv: [sh, -c, 'echo no such model >&2; exit 3']}]"),
		"slow.yaml": templateFile(1, "warmup: [{argv: [sleep, '1000'], timeout: 300ms}]"),
		"gone.yaml": templateFile(1, "warmup: [{argv: [sh, -c, 'echo bye; exit 0'], background: true}]"),
		"who.yaml":  templateFile(1, "user: nobody-here"),
		"fine.yaml": templateFile(1, ""),
	}, func(t *testing.T, s *harness.Server, _ string) {
		for name, want := range map[string]string{
			"loud": "warm-up 1 (sh): exited with 3: no such model",
			"slow": "warm-up 1 (sleep): timeout",
			"gone": "in the background (sh -c echo bye; exit 0): exited with 0: bye",
			"who":  `no user "nobody-here"`,
		} {
			harness.Eventually(t, harness.Short, name+" says "+want, func() bool {
				_, p := templateState(t, s, name)
				return strings.Contains(p.LastError, want) && p.Failed > 0 && p.Warm == 0
			})
		}
		if got := runInTemplate(t, s, "fine", "echo ok"); got != "ok" {
			t.Errorf("the other template printed %q, want ok", got)
		}
	})
}

// TestTemplateReloadKeepsLeases adds, changes, breaks and removes templates' files while calls use
// them.
func TestTemplateReloadKeepsLeases(t *testing.T) {
	t.Parallel()
	version := func(min, v int) string {
		return templateFile(min, fmt.Sprintf("env: {V: '%d'}\nwarmup: [{argv: ['true']}]", v))
	}
	files := map[string]string{"py.yaml": version(2, 1)}
	withTemplatesDir(t, files, func(t *testing.T, s *harness.Server, dir string) {
		file := filepath.Join(dir, "py.yaml")
		kept := lease(t, s, v1.SandboxRequest{Template: "py"})
		assertKept := func() {
			t.Helper()
			r, err := s.Client.Exec(within(t), kept.ID, v1.Exec{Command: "echo $V"})
			if err != nil || r.Stdout != "1\n" {
				t.Errorf("the lease of the first version printed %q, %v; want 1", r.Stdout, err)
			}
		}
		calls := startVersionCalls(t, s)
		for v := 2; v < 5; v++ {
			harness.WriteFile(t, file, version(2, v))
			harness.Eventually(t, harness.Short, "a call runs in the new version", func() bool {
				return calls.seen(fmt.Sprint(v))
			})
		}
		calls.stop()
		assertKept()

		// If only numbers change, sandboxes are not replaced.
		awaitWarm(t, s, 2)
		_, before := templateState(t, s, "py")
		harness.WriteFile(t, file, version(3, 4))
		s.Signal(syscall.SIGHUP)
		awaitWarm(t, s, 3)
		if _, p := templateState(t, s, "py"); p.Created != before.Created+1 {
			t.Errorf("%d sandboxes were created for one more, want 1", p.Created-before.Created)
		}

		reloadBroken(t, s, dir)

		// A removed template is drained, and its lease continues.
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, harness.Short, "template py is removed", func() bool {
			tm, _ := templateState(t, s, "py")
			return tm.Name == ""
		})
		p := s.Ask(t, "POST", "/v1/sandboxes", `{"template": "py"}`).Problem(t, 404, "not_found", "template")
		assertContains(t, p.Detail, "default")
		assertKept()
		harness.WriteFile(t, file, templateFile(1, "env: {V: '9'}"))
		harness.Eventually(t, harness.Short, "template py is ready", func() bool {
			tm, _ := templateState(t, s, "py")
			return tm.State == "ready"
		})
		if got := runInTemplate(t, s, "py", "echo $V"); got != "9" {
			t.Errorf("the new template printed %q, want 9", got)
		}
	})
}

// awaitWarm waits until template py has n warm sandboxes.
func awaitWarm(t *testing.T, s *harness.Server, n int) {
	t.Helper()
	harness.Eventually(t, harness.Short, fmt.Sprintf("%d sandboxes are warm", n), func() bool {
		_, p := templateState(t, s, "py")
		return p.Warm == n
	})
}

// reloadBroken breaks the file of template py, whose last valid version must stay, and adds a
// template without its image, which must not become ready.
func reloadBroken(t *testing.T, s *harness.Server, dir string) {
	t.Helper()
	harness.WriteFile(t, filepath.Join(dir, "py.yaml"), "image: x\npool: {mn: 3}")
	harness.WriteFile(t, filepath.Join(dir, "far.yaml"), "image: nowhere/at-all:1\nentrypoint: []")
	c := s.CLI(t, "template", "reload")
	if c.Code != 78 || !strings.Contains(c.Stdout, `did you mean "min"?`) ||
		!strings.Contains(c.Stdout, "nowhere/at-all:1") {
		t.Errorf("template reload = %+v, want exit code 78 with both errors", c)
	}
	tm, p := templateState(t, s, "py")
	if tm.State != "ready" || !strings.Contains(tm.Error, "py.yaml: unknown key pool.mn") || p.Warm < 2 {
		t.Errorf("template with a broken file = %+v, pool %+v; want it ready with the error", tm, p)
	}
	if tm, _ := templateState(t, s, "far"); tm.State != "not_ready" || !strings.Contains(tm.Error, "nowhere/at-all:1") {
		t.Errorf("template without its image = %+v, want it not ready because of the image", tm)
	}
	a := s.Ask(t, "POST", "/v1/sandboxes", `{"template": "far"}`)
	if p := a.Problem(t, 503, "unavailable", "template"); !strings.Contains(p.Detail, "is not ready") ||
		!strings.Contains(p.Detail, "py") {
		t.Errorf("detail %q, want that the template is not ready, and py as another one", p.Detail)
	}
	if got := runInTemplate(t, s, "py", "echo $V"); got != "4" {
		t.Errorf("the template with a broken file printed %q, want 4", got)
	}
}

// versionCalls are calls in template py that run until stop, and the versions that they ran in.
type versionCalls struct {
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu       sync.Mutex
	versions map[string]int
}

// startVersionCalls starts two clients. Every call must succeed.
func startVersionCalls(t *testing.T, s *harness.Server) *versionCalls {
	t.Helper()
	ctx := within(t)
	stop, cancel := context.WithCancel(ctx)
	c := &versionCalls{cancel: cancel, versions: map[string]int{}}
	for range 2 {
		c.work.Go(func() {
			for stop.Err() == nil {
				r, err := s.Client.Run(ctx, v1.Run{Template: "py", Exec: v1.Exec{Command: "echo $V"}})
				if err != nil || r.Ending != "exited" {
					t.Errorf("Run while templates change = %+v, %v; want exited", r, err)
					return
				}
				c.mu.Lock()
				c.versions[strings.TrimSpace(r.Stdout)]++
				c.mu.Unlock()
			}
		})
	}
	return c
}

// seen reports whether a call has run in the version.
func (c *versionCalls) seen(version string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.versions[version] > 0
}

// stop waits for the running calls and starts no more.
func (c *versionCalls) stop() {
	c.cancel()
	c.work.Wait()
}

// TestWarmUpSurvivesRestart checks that warm sandboxes are kept over a restart with the result of
// their warm-up, and that the next lease gets its background command.
func TestWarmUpSurvivesRestart(t *testing.T) {
	t.Parallel()
	withTemplatesDir(t, map[string]string{"py.yaml": templateFile(1, `
env: {V: '1'}
warmup:
  - {argv: [sh, -c, 'head -c16 /dev/urandom | od -An -tx1 > /tmp/id']}
  - {argv: [sleep, '1000000'], background: true}
`)}, func(t *testing.T, s *harness.Server, _ string) {
		awaitWarm(t, s, 1)
		s.Term()
		s.Start()
		_, p := templateState(t, s, "py")
		l := lease(t, s, v1.SandboxRequest{Template: "py"})
		if !l.Warm || p.Created != 0 {
			t.Errorf("leased %+v from pool %+v, want the warm sandbox from before the restart", l, p)
		}
		shells, err := s.Client.Shells(within(t), l.ID)
		if err != nil || len(shells) != 1 || shells[0].State != "running" {
			t.Errorf("Shells = %+v, %v; want the running background command", shells, err)
		}
		r, err := s.Client.Exec(within(t), l.ID, v1.Exec{Command: "echo $V; test -s /tmp/id"})
		if err != nil || r.Stdout != "1\n" || r.ExitCode != 0 {
			t.Errorf("Exec = %+v, %v; want variable 1 and the file of the warm-up", r, err)
		}
	})
}

// TestAdaptivePoolServesMoreWarm leases three sandboxes at a time in several rounds, each when the
// pool is full. A fixed pool of one is too small; an adaptive one must know after the first round.
func TestAdaptivePoolServesMoreWarm(t *testing.T) {
	withTemplatesDir(t, map[string]string{
		"fixed.yaml":    templateFile(1, ""),
		"adaptive.yaml": strings.Replace(templateFile(1, ""), "max: 6", "max: 6, adaptive: true", 1),
	}, func(t *testing.T, s *harness.Server, _ string) {
		ctx := within(t)
		const rounds, each = 5, 3
		warm := map[string]int{}
		for round := range rounds {
			for _, template := range []string{"fixed", "adaptive"} {
				harness.Eventually(t, harness.Short, template+" is full", func() bool {
					_, p := templateState(t, s, template)
					return p.Creating == 0 && p.Warm >= p.Target && p.Leased == 0
				})
				var mu sync.Mutex
				var calls sync.WaitGroup
				for range each {
					calls.Go(func() {
						request := v1.SandboxRequest{Template: template, WaitMS: harness.Long.Milliseconds()}
						l, err := s.Client.CreateSandbox(ctx, request)
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
		_, p := templateState(t, s, "adaptive")
		if all := (rounds - 1) * each; warm["adaptive"] != all || warm["fixed"] > all/2 || p.Target < each {
			t.Errorf("warm of %d leases = %v, adaptive pool %+v; want all of the adaptive and at most half of the fixed",
				all, warm, p)
		}
	})
}
