package service

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// printChecks prints one row for each check. On a terminal, long texts are broken into lines, and
// the fix is below what was found.
func printChecks(a *cli.App, checks []check) error {
	const names, gap = 18, 2
	columns := a.Columns()
	width := columns - names - len(checkWarn) - 2*gap
	if a.Flags.Output == "json" || a.Flags.NoTrunc || width < names {
		t := &cli.Table{Head: []string{"CHECK", "STATUS", "FOUND", "FIX"}}
		for _, k := range checks {
			t.Add(k.Name, k.Status, cli.OneLine(k.Found), cli.OneLine(k.Fix))
		}
		return a.Print(struct {
			Items []check `json:"items"`
			OK    bool    `json:"ok"`
		}{checks, !slices.ContainsFunc(checks, failed)}, t)
	}
	var b strings.Builder
	for _, k := range checks {
		lines := cli.Wrap(cli.OneLine(k.Found), width)
		if k.Fix != "" {
			lines = append(lines, cli.Wrap("→ "+cli.OneLine(k.Fix), width)...)
		}
		name, status := k.Name, k.Status
		for _, line := range lines {
			fmt.Fprintf(&b, "%-*s  %-*s  %s\n", names, name, len(checkWarn), status, line)
			name, status = "", ""
		}
	}
	_, err := io.WriteString(a.Stdout, b.String())
	return err
}
