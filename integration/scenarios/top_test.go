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

// What sandboxes use is told while they use it, by the host and not by them.
func TestTopReportsSandboxUsage(t *testing.T) {
	t.Parallel()
	onServerOfAll(t, onDemand, func(t *testing.T, s *harness.Server) {
		ws := workspace(t, s)
		busy := lease(t, s, v1.SandboxRequest{Workspace: ws})
		big := lease(t, s, v1.SandboxRequest{})
		spins, err := s.Client.StartShell(within(t), busy.ID, v1.ShellRequest{Exec: v1.Exec{Command: "while :; do :; done"}})
		if err != nil {
			t.Fatal(err)
		}
		sh(t, s, big.ID, "dd if=/dev/zero of=/tmp/held bs=1M count=50 2>/dev/null")
		// Others may want the processors meanwhile, and less of them at another time:
		// what it is told to use is held to what the host's processes show.
		harness.Eventually(t, harness.Long, "the one that spins uses what the host sees", func() bool {
			began, before := time.Now(), cpuOf(s.Inside(busy.ID))
			l, there := topOf(t, s, busy.ID)
			used := 100 * float64(cpuOf(s.Inside(busy.ID))-before) / float64(time.Since(began))
			return there && l.CPUPercent != nil && *l.CPUPercent > max(1, used/2)
		})
		l, there := topOf(t, s, busy.ID)
		if !there || l.Caller != "local" || l.Template != "default" || l.Workspace != ws || l.Pids < 2 || l.PidsLimit == 0 || l.PidsLimit > 1000 {
			t.Errorf("busy: %+v", l)
		}
		if l.WorkspaceQuotaBytes == 0 || l.WorkspaceUsedBytes > l.WorkspaceQuotaBytes {
			t.Errorf("its workspace: %+v", l)
		}
		l, there = topOf(t, s, big.ID)
		if !there || l.MemoryBytes < 50<<20 || l.MemoryBytes > l.MemoryLimitBytes || l.MemoryLimitBytes > 512<<20 || l.CPUPercent == nil || *l.CPUPercent > 50 {
			t.Errorf("big: %+v", l)
		}
		for by, first := range map[string]string{"cpu": busy.ID, "memory": big.ID} {
			got := s.CLI(t, "top", "--sort", by)
			got.Is(t, 0, "")
			lines := strings.Split(got.Stdout, "\n")
			if len(lines) != 4 || !strings.HasPrefix(lines[0], "ID ") || !strings.HasPrefix(lines[1], first) {
				t.Errorf("by %s:\n%s", by, got.Stdout)
			}
		}
		if _, err := s.Client.KillShell(within(t), spins.ID, 0, true); err != nil {
			t.Fatal(err)
		}
		if err := s.Client.RemoveSandbox(within(t), big.ID); err != nil {
			t.Fatal(err)
		}
		if _, there := topOf(t, s, big.ID); there {
			t.Error("one that is gone is told of")
		}
		r := s.Launch(t, nil, "top", "--interval", "100ms", "-o", "json")
		harness.Eventually(t, harness.Long, "it goes on looking", func() bool { return strings.Count(r.Output(), "\n") > 2 })
		r.Signal(syscall.SIGINT)
		r.Wait().Is(t, 130, "")
		for _, args := range [][]string{{"--interval", "1ms"}, {"--sort", "size"}, {"x"}} {
			s.CLI(t, append([]string{"top"}, args...)...).Is(t, 64, "top --help")
		}
	})
}

// cpuOf is the time that processes have had of the processors, as the host
// counts it: in hundredths of a second.
func cpuOf(pids []int) (sum time.Duration) {
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

type topLine struct {
	v1.Figures
	CPUPercent *float64 `json:"cpu_percent"`
}

func topOf(t *testing.T, s *harness.Server, id string) (topLine, bool) {
	t.Helper()
	got := s.CLI(t, "top", "--once", "-o", "json")
	got.Is(t, 0, "")
	var list v1.List[topLine]
	if err := json.Unmarshal([]byte(got.Stdout), &list); err != nil {
		t.Fatalf("%v in %q", err, got.Stdout)
	}
	i := slices.IndexFunc(list.Items, func(l topLine) bool { return l.ID == id })
	if i < 0 {
		return topLine{}, false
	}
	return list.Items[i], true
}
