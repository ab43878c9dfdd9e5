//go:build integration

package scenarios

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestLeaseDeadlines checks that a lease ends at its TTL in any case, and at its idle time unless a
// call or a shell is running.
func TestLeaseDeadlines(t *testing.T) {
	t.Parallel()
	onServer(t, roomy, func(t *testing.T, s *harness.Server) {
		ctx := within(t)
		word := uniqueWord()
		keepBusy := func(r v1.SandboxRequest) v1.Sandbox {
			sb := lease(t, s, r)
			sleep := v1.Exec{Command: "exec -a " + word + sb.ID + " sleep 3000"}
			if _, err := s.Client.StartShell(ctx, sb.ID, v1.ShellRequest{Exec: sleep}); err != nil {
				t.Fatal(err)
			}
			return sb
		}
		// Long enough to start a shell on a busy machine.
		busy := keepBusy(v1.SandboxRequest{IdleMS: 10_000})
		idle := lease(t, s, v1.SandboxRequest{IdleMS: 10_000})
		short := keepBusy(v1.SandboxRequest{TTLMS: 15_000})
		for id, want := range map[string]string{short.ID: "expired", idle.ID: "idle"} {
			harness.Eventually(t, harness.Short, want, func() bool {
				sb, err := s.Client.Sandbox(ctx, id)
				return err == nil && sb.State == "gone" && sb.Reason == want
			})
		}
		assertNoProcess(t, word+short.ID)
		p := s.Ask(t, "POST", "/v1/sandboxes/"+short.ID+"/exec", `{"command":"true"}`).Problem(t, 404, "not_found", "")
		assertContains(t, p.Detail, "expired")
		// The lease is far beyond its idle time, but the shell keeps it.
		if sb, err := s.Client.Sandbox(ctx, busy.ID); err != nil || sb.State != "leased" {
			t.Errorf("Sandbox with a running shell = %+v, %v; want it leased", sb, err)
		}
		awaitProcesses(t, word+busy.ID, 1)
	})
}

// TestEmptyPoolRefusesCreatesOrQueues checks that a call on an empty pool is refused with a retry
// time, created cold, or queued, and that the queue is bounded.
func TestEmptyPoolRefusesCreatesOrQueues(t *testing.T) {
	t.Parallel()
	const small = `
admission: {queue: 2}
templates:
  default:
    limits: {memory: 192MiB, pids: 160}
    pool: {min: 0, max: 1, rate: 10, parallel: 1}
`
	onServer(t, small, func(t *testing.T, s *harness.Server) {
		a := s.Ask(t, "POST", "/v1/sandboxes", `{"when_empty":"refuse"}`)
		if p := a.Problem(t, 429, "resource_exhausted", ""); p.RetryAfterMS <= 0 || a.Header.Get("Retry-After") == "" {
			t.Errorf("problem %+v, header %v; want a time to retry", p, a.Header)
		}
		first := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"})
		if first.Warm {
			t.Error("Warm = true for a sandbox that was created cold, want false")
		}
		s.Ask(t, "POST", "/v1/sandboxes", `{"when_empty":"cold"}`).Problem(t, 429, "resource_exhausted", "")
		// An expired wait returns an error and creates no lease.
		s.Ask(t, "POST", "/v1/sandboxes", `{"wait_ms":300}`).Problem(t, 503, "unavailable", "")
		waiting(t, s, first.ID)
		awaitNoLease(t, s)
	})
}

// waiting fills the queue, checks that the next call is refused, and that both queued calls are
// served in order when the sandbox is released.
func waiting(t *testing.T, s *harness.Server, held string) {
	t.Helper()
	ctx := within(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for range 2 {
		wg.Go(func() {
			sb, err := s.Client.CreateSandbox(ctx, v1.SandboxRequest{WaitMS: harness.Long.Milliseconds()})
			if err == nil {
				err = s.Client.RemoveSandbox(ctx, sb.ID)
			}
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	harness.Eventually(t, harness.Short, "two calls wait", func() bool {
		pools, err := s.Client.Pools(ctx)
		return err == nil && pools[0].Waiting == 2
	})
	s.Ask(t, "POST", "/v1/sandboxes", `{}`).Problem(t, 429, "resource_exhausted", "")
	release(t, s, held)
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Errorf("a waiting call: %v, want a sandbox", err)
	}
}

// TestFiftyConcurrentCalls makes fifty calls, each with a separate sandbox. All must succeed and
// leave nothing.
func TestFiftyConcurrentCalls(t *testing.T) {
	t.Parallel()
	onServer(t, roomy, func(t *testing.T, s *harness.Server) {
		ctx := within(t)
		var wg sync.WaitGroup
		began := time.Now()
		for i := range 50 {
			wg.Go(func() {
				word := fmt.Sprintf("call-%d", i)
				r, err := s.Client.Run(ctx, v1.Run{
					Exec:   v1.Exec{Command: "ls -A /workspace /tmp; echo " + word + " | tee /workspace/left /tmp/left"},
					WaitMS: (2 * harness.Long).Milliseconds(),
				})
				clean := "/tmp:\n\n/workspace:\n" + word + "\n"
				if err != nil || r.Ending != "exited" || r.ExitCode != 0 || r.Stdout != clean {
					t.Errorf("call %d = %+v, %v; want stdout %q", i, r, err, clean)
				}
			})
		}
		wg.Wait()
		t.Logf("50 calls in %s", time.Since(began).Round(time.Millisecond))
		harness.Eventually(t, harness.Long, "no lease is left and the pool is full", func() bool {
			list, err := s.Client.Sandboxes(ctx, false)
			pools, perr := s.Client.Pools(ctx)
			full := perr == nil && pools[0].Leased == 0 && pools[0].Warm == 2 && pools[0].Creating == 0
			return err == nil && len(list) == 0 && full
		})
		if cells := s.Cells(); len(cells) != 2 {
			t.Errorf("sandboxes on disk: %v, want the two warm ones", cells)
		}
	})
}

// TestChangedTemplateReplacesWarmSandboxes checks that warm sandboxes of a changed template are
// replaced at the next start and that leases are kept.
func TestChangedTemplateReplacesWarmSandboxes(t *testing.T) {
	t.Parallel()
	onServer(t, roomy, func(t *testing.T, s *harness.Server) {
		id := lease(t, s, v1.SandboxRequest{}).ID
		sh(t, s, id, "echo mine > /workspace/file")
		before := s.Cells()
		s.Term()
		s.Configure(strings.ReplaceAll(roomy, "768MiB", "704MiB"))
		s.Start()
		if got := sh(t, s, id, "cat /workspace/file"); got != "mine\n" {
			t.Errorf("the leased sandbox's file is %q, want %q", got, "mine\n")
		}
		harness.Eventually(t, harness.Long, "the warm sandboxes are replaced", func() bool {
			pools, err := s.Client.Pools(within(t))
			if err != nil || pools[0].Warm != 2 {
				return false
			}
			old := 0
			for _, c := range s.Cells() {
				for _, b := range before {
					if c == b && c != id {
						old++
					}
				}
			}
			return old == 0
		})
	})
}
