package sandbox

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestTopComputesCPUShares(t *testing.T) {
	at := time.Unix(1000, 0)
	last := []v1.Figures{
		{ID: "busy", At: at, CPUMS: 100},
		{ID: "calm", At: at, CPUMS: 100},
		{ID: "untold", At: at, Missing: "no"},
	}
	later := at.Add(2 * time.Second)
	now := []v1.Figures{
		{ID: "new", At: later, CPUMS: 9000, MemoryBytes: 5 << 20},
		{ID: "untold", At: later, Missing: "no", Workspace: "w", WorkspaceUsedBytes: 1 << 20, WorkspaceQuotaBytes: 64 << 20},
		{ID: "calm", At: later, CPUMS: 110, MemoryBytes: 50 << 20, MemoryLimitBytes: 256 << 20, Pids: 3, PidsLimit: 160},
		{ID: "busy", At: later, CPUMS: 3100, MemoryBytes: 1 << 20, Pids: 7},
	}
	order := func(by string) string {
		var ids []string
		for _, l := range topLines(last, now, by) {
			ids = append(ids, l.ID)
		}
		return strings.Join(ids, " ")
	}
	for by, want := range map[string]string{"": "new untold calm busy", "cpu": "busy calm new untold", "memory": "calm new busy untold"} {
		if got := order(by); got != want {
			t.Errorf("sorted by %q: %s, want %s", by, got, want)
		}
	}
	var b strings.Builder
	if err := topTable(topLines(last, now, "cpu")).Write(&b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(b.String(), "\n")
	for i, want := range []string{
		"ID CPU% MEM/LIMIT PIDS/LIMIT WORKSPACE USED", "busy 150.0 1MiB 7", "calm 0.5 50MiB/256MiB 3/160",
		"new - 5MiB", "untold - - - w 1MiB/64MiB",
	} {
		fields := strings.Fields(lines[i])
		for _, w := range strings.Fields(want) {
			found := false
			for _, f := range fields {
				found = found || f == w
			}
			if !found {
				t.Errorf("line %d is %q, want it to contain %s", i, lines[i], w)
			}
		}
	}
}

func TestFullScreenCutsAndRestores(t *testing.T) {
	var b strings.Builder
	s := &fullScreen{w: &b, size: func() (int, int) { return 4, 2 }}
	if err := s.draw("longer\nb\nc\n"); err != nil {
		t.Fatal(err)
	}
	s.close()
	s.close()
	want := "\x1b[?1049h\x1b[?25l\x1b[Hlong\x1b[K\r\nb\x1b[K\x1b[J\x1b[?25h\x1b[?1049l"
	if b.String() != want {
		t.Errorf("screen = %q, want %q", b.String(), want)
	}
}
