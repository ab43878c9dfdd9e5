//go:build integration

// Package scenarios tests the real program on real containers: endings, isolation between leases,
// crash recovery, and invalid input. Each scenario runs on the embedded runtime and on Docker.
// Scenarios about drivers or their streams run on containerd, too.
package scenarios

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtime"
)

// seed is the image store that all servers of this process start with.
var seed harness.Seed

func TestMain(m *testing.M) {
	code := m.Run()
	if err := seed.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// roomy keeps two warm sandboxes that are large enough for the scenarios' commands.
const roomy = `
templates:
  default:
    limits: {memory: 768MiB, pids: 384, scratch: 32MiB, tmp: 32MiB}
    pool: {min: 2, max: 16, rate: 10, parallel: 2}
`

// onDemand keeps no warm sandboxes, so every sandbox was requested.
const onDemand = `
templates:
  default:
    limits: {memory: 256MiB, pids: 160}
    pool: {min: 0, max: 8, rate: 10, parallel: 2}
`

// onRuntimes runs a scenario on Runtimes, in parallel.
func onRuntimes(t *testing.T, run func(t *testing.T, runtime string)) {
	t.Helper()
	on(t, harness.Runtimes(), run)
}

// onAllRuntimes runs a scenario about drivers on AllRuntimes, in parallel.
func onAllRuntimes(t *testing.T, run func(t *testing.T, runtime string)) {
	t.Helper()
	on(t, harness.AllRuntimes(), run)
}

// on runs a scenario on the given runtimes, in parallel.
func on(t *testing.T, runtimes []string, run func(t *testing.T, runtime string)) {
	t.Helper()
	for _, name := range runtimes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, name)
		})
	}
}

// onServer runs a scenario on every runtime with a separate server.
func onServer(t *testing.T, config string, run func(t *testing.T, s *harness.Server)) {
	t.Helper()
	onRuntimes(t, func(t *testing.T, name string) {
		run(t, harness.Run(t, harness.Options{Runtime: name, Config: config, Seed: &seed}))
	})
}

// onServerAllRuntimes is onServer on AllRuntimes.
func onServerAllRuntimes(t *testing.T, config string, run func(t *testing.T, s *harness.Server)) {
	t.Helper()
	onAllRuntimes(t, func(t *testing.T, name string) {
		run(t, harness.Run(t, harness.Options{Runtime: name, Config: config, Seed: &seed}))
	})
}

// kernel is the kernel of a server's sandboxes: the host's, or gVisor's, which has its own sockets
// and pipes.
type kernel struct {
	runtime string
	gvisor  bool
}

// config returns a configuration whose default template uses the kernel.
func (k kernel) config(config string) string {
	if !k.gvisor {
		return config
	}
	return strings.ReplaceAll(config, "  default:\n", "  default:\n    class: gvisor\n")
}

// onAllKernels runs a scenario about streams of a sandbox on all runtimes, and under gVisor.
func onAllKernels(t *testing.T, run func(t *testing.T, k kernel)) {
	t.Helper()
	const gvisor = "oci-gvisor"
	on(t, append(harness.AllRuntimes(), gvisor), func(t *testing.T, name string) {
		if name == gvisor {
			needGVisor(t)
			run(t, kernel{"oci", true})
			return
		}
		run(t, kernel{runtime: name})
	})
}

// interfaces lists network interfaces, one per line. gVisor does not list them in /sys.
const interfaces = "{ ls /sys/class/net 2>/dev/null || tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '; }"

// TestOnOneServer runs the scenarios that can share a server: each releases what it leased.
func TestOnOneServer(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, roomy, func(t *testing.T, s *harness.Server) {
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server)
		}{
			{"endings", testEndings},
			{"cancelled by the lease's end", testCancelledByRemoval},
			{"cancelled by the client", testCancelledByClient},
			{"nothing of an exec outlives it", testNothingOutlives},
			{"one lease sees nothing of another", testLeasesAreApart},
			{"a read-only workspace is read-only", testReadOnlyWorkspace},
			{"a released workspace gets no further byte", testReleasedWorkspace},
			{"a workspace outlives sandboxes", testWorkspaceOutlives},
			{"one writer for a workspace", testOneWriter},
			{"the network is none", testNoNetwork},
			{"output as it is", testRawOutput},
			{"standard input", testStandardInput},
			{"programs of the image", testProgramsOfTheImage},
			{"bad input", testBadInput},
			{"bad files", testBadFiles},
			{"a killed container", testKilledContainer},
			{"lists", testLists},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s)
			})
		}
	})
}

// within returns the context of all calls of a scenario.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testtime.Scale(10*time.Minute))
	t.Cleanup(cancel)
	return ctx
}

// lease leases a sandbox for the test.
func lease(t *testing.T, s *harness.Server, r v1.SandboxRequest) v1.Sandbox {
	t.Helper()
	if r.WaitMS == 0 {
		r.WaitMS = harness.Long.Milliseconds()
	}
	got, err := s.Client.CreateSandbox(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { release(t, s, got.ID) })
	return got
}

// release destroys a sandbox and succeeds if it is gone. If no server runs, the harness's cleanup
// removes everything.
func release(t *testing.T, s *harness.Server, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Long)
	defer cancel()
	if err := s.Client.RemoveSandbox(ctx, id); err != nil && !errors.Is(err, client.ErrNoServer) {
		t.Errorf("remove sandbox %s: %v", id, err)
	}
}

// awaitNoLease waits until no lease exists, including leases that are ending.
func awaitNoLease(t *testing.T, s *harness.Server) {
	t.Helper()
	harness.Eventually(t, harness.Short, "no lease exists", func() bool {
		list, err := s.Client.Sandboxes(within(t), false)
		return err == nil && len(list) == 0
	})
}

// sh runs a shell command in a sandbox, which must exit with 0.
func sh(t *testing.T, s *harness.Server, id, command string) string {
	t.Helper()
	r := exec(t, s, id, v1.Exec{Command: command})
	if r.Ending != "exited" || r.ExitCode != 0 {
		t.Fatalf("%s: ending %s, exit code %d; want exited with 0: %s%s%s",
			command, r.Ending, r.ExitCode, r.Detail, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// exec runs a command in a sandbox.
func exec(t *testing.T, s *harness.Server, id string, x v1.Exec) v1.ExecResult {
	t.Helper()
	r, err := s.Client.Exec(within(t), id, x)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// runOnce makes a one-shot call.
func runOnce(t *testing.T, s *harness.Server, command string) v1.ExecResult {
	t.Helper()
	r, err := s.Client.Run(within(t), v1.Run{Exec: v1.Exec{Command: command}, WaitMS: harness.Long.Milliseconds()})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// uniqueNumber numbers the words and names that must be unique.
var uniqueNumber atomic.Int64

// uniqueWord returns a word that no other process of this machine has in its command line.
func uniqueWord() string { return fmt.Sprintf("mark-%d-%d-end", os.Getpid(), uniqueNumber.Add(1)) }

// assertNoProcess checks that no host process has the word in its command line now.
func assertNoProcess(t *testing.T, word string) {
	t.Helper()
	if left := harness.Marked(word); len(left) > 0 {
		t.Errorf("%d processes have %s in their command line, want none: %v", len(left), word, left)
	}
}

// awaitProcesses waits until n host processes have the word in their command line.
func awaitProcesses(t *testing.T, word string, n int) {
	t.Helper()
	harness.Eventually(t, harness.Short, fmt.Sprintf("%d processes with %s", n, word), func() bool {
		return len(harness.Marked(word)) >= n
	})
}

// workspace creates a workspace for the test.
func workspace(t *testing.T, s *harness.Server) string {
	t.Helper()
	name := fmt.Sprintf("w%d", uniqueNumber.Add(1))
	if _, err := s.Client.Workspaces.Create(within(t), name); err != nil {
		t.Fatal(err)
	}
	return name
}

// assertContains checks that a text contains a part.
func assertContains(t *testing.T, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("text = %q, want it to contain %q", text, part)
	}
}
