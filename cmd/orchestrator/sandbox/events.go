package sandbox

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// NewEventsCommand returns "orchestrator events".
func NewEventsCommand(a *cli.App) *cobra.Command {
	q := client.EventQuery{}
	c := &cobra.Command{
		Use:   "events",
		Short: "Show events",
		Long: `Show events of sandboxes, shells, workspaces, templates, images and jobs: your own,
or those of all callers for operators. The server keeps the latest 4096 events. With -f
it waits for more, also over restarts of the server; a line "gap" means that some
were missed. With -o json, it prints one object on each line.`,
		Example: `  orchestrator events --since 10m
  orchestrator events -f
  orchestrator events -f --job JOB
  orchestrator events -f -o json | jq 'select(.type == "sandbox.gone")'`,
		Args: cli.ExactArgs(),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, _ []string) error {
			colour := a.NewPalette()
			return cl.Events(cmd.Context(), q, func(e v1.ServiceEvent) error {
				if a.Flags.Output == "json" {
					return a.PrintJSONLine(e)
				}
				_, err := fmt.Fprintln(a.Stdout, eventLine(e, colour))
				return err
			})
		}),
	}
	f := c.Flags()
	f.BoolVarP(&q.Follow, "follow", "f", false, "wait for new events")
	f.StringVar(&q.Job, "job", "", "only events of `JOB`")
	f.StringVar(&q.Since, "since", "", "omit events before `TIME`, such as 10m (ago) or 2026-01-02T15:04:05Z")
	return c
}

// eventLine formats an event on one line: time, type and what it concerns.
func eventLine(e v1.ServiceEvent, p cli.Palette) string {
	line := []string{e.At.Local().Format("2006-01-02T15:04:05.000"), p.Event(e.Type)}
	for _, part := range []struct{ name, value string }{
		{"sandbox", e.Sandbox}, {"shell", e.Shell}, {"template", e.Template}, {"workspace", e.Workspace},
		{"image", e.Image}, {"job", e.Job}, {"caller", e.Caller}, {"reason", e.Reason},
	} {
		if part.value != "" {
			line = append(line, part.name+"="+quoteIfNeeded(cli.OneLine(part.value)))
		}
	}
	return strings.Join(line, " ")
}

// quoteIfNeeded quotes a value that has spaces.
func quoteIfNeeded(s string) string {
	if strings.ContainsAny(s, " \"") {
		return fmt.Sprintf("%q", s)
	}
	return s
}
