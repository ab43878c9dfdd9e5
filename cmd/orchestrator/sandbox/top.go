package sandbox

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

const (
	// firstInterval is the longest time between the first two measurements. CPU shares need two.
	firstInterval = time.Second
	// Limits of the interval.
	minInterval = 100 * time.Millisecond
	maxInterval = time.Hour
)

type topOptions struct {
	once     bool
	interval time.Duration
	sort     string
}

// NewTopCommand returns "orchestrator top".
func NewTopCommand(a *cli.App) *cobra.Command {
	var o topOptions
	c := &cobra.Command{
		Use:   "top",
		Short: "Show the resource usage of sandboxes",
		Long: `Show what your leased sandboxes use now, or those of all callers for operators: CPU
(100 is one processor), memory and processes with their limits, and the size of the
workspace if it has a quota. On a terminal, it is redrawn at each interval until
Ctrl-C. Otherwise it is printed once, or repeatedly with --interval. With -o json,
it prints one object on a line each time.`,
		Example: `  orchestrator top
  orchestrator top --sort memory --interval 5s
  orchestrator top --once -o json | jq '.items[] | select(.cpu_percent > 90).id'`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.interval < minInterval || o.interval > maxInterval {
				return cli.Usage(cmd, "--interval is %s: from %s to %s", o.interval, minInterval, maxInterval)
			}
			switch o.sort {
			case "", "cpu", "memory":
			default:
				return cli.Usage(cmd, "--sort is %q: use cpu or memory", o.sort)
			}
			o.once = o.once || !cli.IsTerminal(a.Stdout) && !cmd.Flags().Changed("interval")
			cl, err := a.Client(cmd.Context())
			if err != nil {
				return err
			}
			return runTop(cmd.Context(), a, cl, o)
		},
	}
	f := c.Flags()
	f.BoolVar(&o.once, "once", false, "measure once, for a second, and exit")
	f.DurationVar(&o.interval, "interval", 2*time.Second, "`DURATION` between measurements, from 100ms to 1h")
	f.StringVar(&o.sort, "sort", "", "sort by `FIGURE`, largest first: cpu or memory (default: newest sandbox first)")
	return c
}

// runTop measures until ctx ends, or twice with --once: CPU shares need two measurements.
func runTop(ctx context.Context, a *cli.App, cl *client.Client, o topOptions) error {
	show := newTopView(a, o)
	defer show.end()
	last, err := cl.Figures(ctx)
	if err != nil {
		return err
	}
	for pause := min(o.interval, firstInterval); ; pause = o.interval {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
		now, err := cl.Figures(ctx)
		if err != nil {
			return err
		}
		if err := show.draw(topLines(last, now, o.sort)); err != nil || o.once {
			return err
		}
		last = now
	}
}

// topView shows one measurement after the other.
type topView struct {
	draw func([]topLine) error
	end  func() // restores the terminal
}

func newTopView(a *cli.App, o topOptions) topView {
	s := topView{end: func() {}}
	switch term, _ := a.Lookup("TERM"); {
	case a.Flags.Output == "json" && o.once:
		s.draw = func(l []topLine) error { return a.PrintJSON(v1.List[topLine]{Items: l}) }
	case a.Flags.Output == "json":
		s.draw = func(l []topLine) error { return a.PrintJSONLine(v1.List[topLine]{Items: l}) }
	case o.once:
		s.draw = func(l []topLine) error { return a.PrintTable(topTable(l)) }
	case cli.IsTerminal(a.Stdout) && term != "dumb":
		w := newFullScreen(a.Stdout)
		s.end = w.close
		s.draw = func(l []topLine) error {
			var b bytes.Buffer
			fmt.Fprintf(&b, "%s   sandboxes: %d   every %s   Ctrl-C ends\n\n", time.Now().Format("15:04:05"), len(l), o.interval)
			cols, _ := w.size()
			if err := topTable(l).WriteFitted(&b, cols); err != nil {
				return err
			}
			return w.draw(b.String())
		}
	default:
		first := true
		s.draw = func(l []topLine) error {
			if !first {
				fmt.Fprintln(a.Stdout)
			}
			first = false
			return a.PrintTable(topTable(l))
		}
	}
	return s
}
