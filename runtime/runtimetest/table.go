package runtimetest

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

//go:embed capabilities.txt
var table string

// Table returns the committed capability table by driver. A cell is "yes" or "no: " with the
// reason. It fails if a cell is missing.
func Table() (map[string]runtime.Capabilities, error) { return parseTable(table) }

// parseTable parses lines of cells separated by "|": a header, then one line per capability in the
// order of runtime.AllCapabilities. Lines that start with "#" are comments.
func parseTable(text string) (map[string]runtime.Capabilities, error) {
	var drivers []string
	out := map[string]runtime.Capabilities{}
	want := runtime.AllCapabilities()
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if drivers == nil {
			drivers = cells[1:]
			for _, d := range drivers {
				if d == "" || out[d] != nil {
					return nil, fmt.Errorf("capability table: driver %q in the header is empty or listed twice", d)
				}
				out[d] = runtime.Capabilities{}
			}
			continue
		}
		if len(want) == 0 || cells[0] != string(want[0]) {
			return nil, fmt.Errorf("capability table: found line %q, want %q", cells[0],
				slices.Concat(want, []runtime.Capability{"the end"})[0])
		}
		if len(cells) != len(drivers)+1 {
			return nil, fmt.Errorf("capability table: %s has %d cells for %d drivers", want[0], len(cells)-1, len(drivers))
		}
		for i, d := range drivers {
			cell := cells[i+1]
			if cell != runtime.Yes && !strings.HasPrefix(cell, "no: ") {
				return nil, fmt.Errorf("capability table: %s of %s is %q: use %q or \"no: REASON\"", want[0], d, cell, runtime.Yes)
			}
			out[d][want[0]] = cell
		}
		want = want[1:]
	}
	if len(want) > 0 || len(drivers) == 0 {
		return nil, fmt.Errorf("capability table: no line for %q", want)
	}
	return out, nil
}
