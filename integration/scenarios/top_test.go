//go:build integration

package scenarios

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestTopReportsSandboxUsage checks that "top" shows what sandboxes use, as the host measures it.
func TestTopReportsSandboxUsage(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, onDemand, func(t *testing.T, s *harness.Server) {
		ws := workspace(t, s)
		busy := lease(t, s, v1.SandboxRequest{Workspace: ws})
		big := lease(t, s, v1.SandboxRequest{})
		spin := v1.Exec{Command: "while :; do :; done"}
		spins, err := s.Client.StartShell(within(t), busy.ID, v1.ShellRequest{Exec: spin})
		if err != nil {
			t.Fatal(err)
		}
		sh(t, s, big.ID, "dd if=/dev/zero of=/tmp/held bs=1M count=50 2>/dev/null")
		// Other tests use the processors at varying times, so compare with the CPU time of the sandbox's
		// processes.
		harness.Eventually(t, harness.Long, "the busy sandbox's CPU use is what the host measures", func() bool {
			began, before := time.Now(), cpuTime(s.Inside(busy.ID))
			l, ok := topRow(t, s, busy.ID)
			used := 100 * float64(cpuTime(s.Inside(busy.ID))-before) / float64(time.Since(began))
			return ok && l.CPUPercent != nil && *l.CPUPercent > max(1, used/2)
		})
		assertTopRows(t, s, busy.ID, big.ID, ws)
		for by, first := range map[string]string{"cpu": busy.ID, "memory": big.ID} {
			got := s.CLI(t, "top", "--sort", by)
			got.Is(t, 0, "")
			lines := strings.Split(got.Stdout, "\n")
			if len(lines) != 4 || !strings.HasPrefix(lines[0], "ID ") {
				t.Fatalf("top --sort %s printed, want a heading and two rows:\n%s", by, got.Stdout)
			}
			if id, _, _ := strings.Cut(lines[1], " "); !strings.HasPrefix(first, id) { // the beginning of the id
				t.Errorf("top --sort %s printed, want %s first:\n%s", by, first, got.Stdout)
			}
		}
		if _, err := s.Client.KillShell(within(t), spins.ID, 0, true); err != nil {
			t.Fatal(err)
		}
		if err := s.Client.RemoveSandbox(within(t), big.ID); err != nil {
			t.Fatal(err)
		}
		if _, ok := topRow(t, s, big.ID); ok {
			t.Error("top shows a removed sandbox, want no row")
		}
		r := s.Launch(t, nil, "top", "--interval", "100ms", "-o", "json")
		harness.Eventually(t, harness.Long, "top prints several times", func() bool {
			return strings.Count(r.Output(), "\n") > 2
		})
		r.Signal(syscall.SIGINT)
		r.Wait().Is(t, 130, "")
		for _, args := range [][]string{{"--interval", "1ms"}, {"--sort", "size"}, {"x"}} {
			s.CLI(t, append([]string{"top"}, args...)...).Is(t, 64, "top --help")
		}
	})
}

// assertTopRows checks the rows of a busy sandbox with the workspace and of one that uses much
// memory.
func assertTopRows(t *testing.T, s *harness.Server, busy, big, ws string) {
	t.Helper()
	l, ok := topRow(t, s, busy)
	if !ok || l.Caller != "local" || l.Template != "default" || l.Workspace != ws {
		t.Errorf("row of the busy sandbox = %+v, want caller local, template default and workspace %s", l, ws)
	}
	if l.Pids < 2 || l.PidsLimit == 0 || l.PidsLimit > 1000 {
		t.Errorf("row of the busy sandbox = %+v, want at least 2 processes and a limit up to 1000", l)
	}
	if l.WorkspaceQuotaBytes == 0 || l.WorkspaceUsedBytes > l.WorkspaceQuotaBytes {
		t.Errorf("row of the busy sandbox = %+v, want a workspace within its quota", l)
	}
	l, ok = topRow(t, s, big)
	if !ok || l.MemoryBytes < 50<<20 || l.MemoryBytes > l.MemoryLimitBytes || l.MemoryLimitBytes > 512<<20 {
		t.Errorf("row of the large sandbox = %+v, want at least 50 MiB of at most 512 MiB", l)
	}
	if l.CPUPercent == nil || *l.CPUPercent > 50 {
		t.Errorf("row of the large sandbox = %+v, want at most 50 %% CPU", l)
	}
}

// cpuTime returns the CPU time that processes have used, in steps of 10 ms.
func cpuTime(pids []int) (sum time.Duration) {
	for _, pid := range pids {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, after, _ := strings.Cut(string(stat), ") ")
		if f := strings.Fields(after); len(f) > 12 {
			user, _ := strconv.Atoi(f[11])
			system, _ := strconv.Atoi(f[12])
			sum += time.Duration(user+system) * 10 * time.Millisecond
		}
	}
	return sum
}

// topLine is a row of "top" in JSON.
type topLine struct {
	v1.Figures
	CPUPercent *float64 `json:"cpu_percent"`
}

// topRow returns the row of a sandbox, and whether it exists.
func topRow(t *testing.T, s *harness.Server, id string) (topLine, bool) {
	t.Helper()
	got := s.CLI(t, "top", "--once", "-o", "json")
	got.Is(t, 0, "")
	var list v1.List[topLine]
	if err := json.Unmarshal([]byte(got.Stdout), &list); err != nil {
		t.Fatalf("top -o json: %v in %q", err, got.Stdout)
	}
	i := slices.IndexFunc(list.Items, func(l topLine) bool { return l.ID == id })
	if i < 0 {
		return topLine{}, false
	}
	return list.Items[i], true
}
