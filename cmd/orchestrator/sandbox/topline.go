package sandbox

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// topLine holds a sandbox's figures and its CPU share since the last measurement, or nil if it had
// none.
type topLine struct {
	v1.Figures
	CPUPercent *float64 `json:"cpu_percent"`
}

// topLines computes the lines from two measurements, and sorts them.
func topLines(last, now []v1.Figures, by string) []topLine {
	before := map[string]v1.Figures{}
	for _, f := range last {
		before[f.ID] = f
	}
	lines := make([]topLine, 0, len(now))
	for _, f := range now {
		l := topLine{Figures: f}
		if was, ok := before[f.ID]; ok {
			l.CPUPercent = cpuShare(was, f)
		}
		lines = append(lines, l)
	}
	switch by {
	case "cpu":
		slices.SortStableFunc(lines, func(a, b topLine) int { return cmp.Compare(b.cpu(), a.cpu()) })
	case "memory":
		slices.SortStableFunc(lines, func(a, b topLine) int { return cmp.Compare(b.MemoryBytes, a.MemoryBytes) })
	}
	return lines
}

// cpuShare returns the CPU time between two measurements in percent of the elapsed time: 100 is one
// processor.
func cpuShare(was, is v1.Figures) *float64 {
	between := is.At.Sub(was.At)
	if was.Missing != "" || is.Missing != "" || between <= 0 {
		return nil
	}
	p := max(0, 100*(is.CPUMS-was.CPUMS)/(float64(between)/float64(time.Millisecond)))
	return &p
}

// cpu returns the share, or a negative number without one, so that it sorts last.
func (l topLine) cpu() float64 {
	if l.CPUPercent == nil {
		return -1
	}
	return *l.CPUPercent
}

func topTable(lines []topLine) *cli.Table {
	t := &cli.Table{
		Head:     []string{"ID", "TEMPLATE", "CALLER", "CPU%", "MEM/LIMIT", "PIDS/LIMIT", "WORKSPACE", "USED"},
		Optional: []string{"CALLER", "WORKSPACE", "TEMPLATE"},
	}
	for _, l := range lines {
		cpu, memory, pids, used := "", "", "", ""
		if l.CPUPercent != nil {
			cpu = strconv.FormatFloat(*l.CPUPercent, 'f', 1, 64)
		}
		if l.Missing == "" {
			memory = withLimit(cli.Size(l.MemoryBytes), cli.Size(l.MemoryLimitBytes), l.MemoryLimitBytes)
			pids = withLimit(fmt.Sprint(l.Pids), fmt.Sprint(l.PidsLimit), l.PidsLimit)
		}
		if l.WorkspaceQuotaBytes > 0 {
			used = withLimit(cli.Size(l.WorkspaceUsedBytes), cli.Size(l.WorkspaceQuotaBytes), l.WorkspaceQuotaBytes)
		}
		t.Add(l.ID, l.Template, l.Caller, cpu, memory, pids, l.Workspace, used)
	}
	return t
}

// withLimit formats a figure with its limit, if it has one.
func withLimit(figure, limit string, n int64) string {
	if n == 0 {
		return figure
	}
	return figure + "/" + limit
}
