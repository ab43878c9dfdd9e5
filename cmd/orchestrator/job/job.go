// Package job has the commands of "orchestrator job". They need a server, which keeps jobs across
// its restarts.
package job

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// NewCommand returns "orchestrator job" with its commands.
func NewCommand(a *cli.App) *cobra.Command {
	return cli.Group("job", "Run many commands, each in a sandbox of its own, and keep their results",
		`  orchestrator job run --matrix PY=3.11,3.12 --parallel 4 -c 'run-tests "$PY"'
  orchestrator job run --list commands.txt --parallel 8 --wait
  orchestrator job ls
  orchestrator job logs JOB 0`,
		newRun(a), newList(a), newShow(a), newLogs(a), newWait(a), newCancel(a), newRemove(a), newArtifacts(a))
}

// head has first what fits in 80 columns.
func head() []string { return []string{"JOB", "STATE", "COMMANDS", "AGE", "NAME", "DETAIL"} }

func row(j v1.Job) []string {
	state := j.State
	if j.Ending != "" {
		state = j.Ending
	}
	if j.QueuedBy != "" && j.Commands.Running == 0 {
		state += " by " + j.QueuedBy
	}
	return []string{j.ID, state, counts(j.Commands), cli.Age(j.CreatedAt), cli.Truncate(j.Name, 40), cli.OneLine(j.Detail)}
}

// counts formats the counts that are not zero: "7 of 10 succeeded, 1 failed, 2 running".
func counts(c v1.JobCounts) string {
	text := fmt.Sprintf("%d of %d succeeded", c.Succeeded, c.Total)
	for _, n := range []struct {
		n    int
		what string
	}{
		{c.Failed, "failed"}, {c.Cancelled, "cancelled"}, {c.Unknown, "unknown"}, {c.Running, "running"},
		{c.Queued, "queued"},
	} {
		if n.n > 0 {
			text += fmt.Sprintf(", %d %s", n.n, n.what)
		}
	}
	return text
}

func printJob(a *cli.App, j v1.Job) error {
	t := &cli.Table{Head: head()}
	t.Add(row(j)...)
	return a.Print(j, t)
}

func newList(a *cli.App) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List jobs, newest first",
		Example: "  orchestrator job ls\n  orchestrator job ls -o json | jq '.items[] | select(.state != \"ended\")'",
		Args:    cli.ExactArgs(),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, _ []string) error {
			list, err := cl.Jobs.List(cmd.Context(), all)
			if err != nil {
				return err
			}
			return cli.PrintList(a, list, head(), row)
		}),
	}
	c.Flags().BoolVar(&all, "all", false, "list the jobs of all callers (operators only)")
	return c
}

func newShow(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "show JOB",
		Short:   "List the commands of a job with their results",
		Example: "  orchestrator job show JOB\n  orchestrator job show JOB -o json | jq '.items[] | select(.outcome == \"failed\")'",
		Args:    cli.ExactArgs("JOB"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			list, err := results(cmd.Context(), cl.Jobs, args[0])
			if err != nil {
				return err
			}
			return cli.PrintList(a, list, []string{"COMMAND", "NAME", "STATE", "ATTEMPT", "ENDING", "DETAIL"}, resultRow)
		}),
	}
}

// results returns all commands of a job.
func results(ctx context.Context, jobs client.Jobs, id string) (all []v1.JobResult, err error) {
	for {
		list, err := jobs.Results(ctx, id, len(all), 0)
		if err != nil || len(list) == 0 {
			return all, err
		}
		all = append(all, list...)
	}
}

func resultRow(r v1.JobResult) []string {
	state, ending, detail := r.State, "", ""
	if r.Outcome != "" {
		state = r.Outcome
	}
	if r.QueuedBy != "" {
		state += " by " + r.QueuedBy
	}
	if n := len(r.Attempts); n > 0 {
		last := r.Attempts[n-1].Result
		if ending, detail = last.Ending, last.Detail; last.Ending == "exited" {
			ending += " " + strconv.Itoa(last.ExitCode)
		}
	}
	return []string{strconv.Itoa(r.Index), cli.Truncate(r.Name, 60), state, strconv.Itoa(r.Attempt), ending, cli.OneLine(detail)}
}

func newCancel(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "cancel JOB",
		Short:   "End the queued commands of a job and kill the running ones",
		Example: "  orchestrator job cancel JOB",
		Args:    cli.ExactArgs("JOB"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			j, err := cl.Jobs.Cancel(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return printJob(a, j)
		}),
	}
}

func newRemove(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "rm JOB...",
		Short:   "Remove ended jobs with their results, output and artifacts",
		Example: "  orchestrator job rm JOB",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usage(cmd, "JOB is missing")
			}
			return nil
		},
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			for _, id := range args {
				if err := cl.Jobs.Remove(cmd.Context(), id); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}

func newWait(a *cli.App) *cobra.Command {
	var junit string
	c := &cobra.Command{
		Use:   "wait JOB",
		Short: "Wait for a job's end",
		Long: `Wait for a job's end, also across restarts of the server. The exit code is 0 if
every command exited with 0. docs/exit-codes.md lists the others.`,
		Example: "  orchestrator job wait JOB --junit report.xml",
		Args:    cli.ExactArgs("JOB"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			return wait(cmd.Context(), a, cl.Jobs, args[0], junit)
		}),
	}
	c.Flags().StringVar(&junit, "junit", "", "write the results as JUnit XML to `FILE`")
	return c
}

// wait waits for a job, prints it and returns the error of its ending.
func wait(ctx context.Context, a *cli.App, jobs client.Jobs, id, junit string) error {
	j, err := jobs.Wait(ctx, id)
	if err != nil {
		if _, stopped := errors.AsType[*cli.Interrupted](context.Cause(ctx)); stopped {
			a.Note(`job %s goes on: "orchestrator job cancel %s" ends it`, id, id)
		}
		return err
	}
	if junit != "" {
		body, err := jobs.JUnit(ctx, id)
		if err != nil {
			return err
		}
		defer body.Close()
		if err := cli.SaveFile(junit, 0o644, body); err != nil {
			return err
		}
	}
	if err := printJob(a, j); err != nil {
		return err
	}
	return cli.JobError(j)
}

func newLogs(a *cli.App) *cobra.Command {
	var follow, stderr bool
	var attempt int
	c := &cobra.Command{
		Use:   "logs JOB [COMMAND]",
		Short: "Print the kept output of a job's command, or of all",
		Long: `Print the kept output of a job's command, by its number in "job show". Without
one, print the output of all commands in order, each after a line with its name.`,
		Example: "  orchestrator job logs JOB\n  orchestrator job logs -f JOB 3",
		Args:    cli.ExactArgs("JOB", "[COMMAND]"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			r := client.JobOutputRequest{Attempt: attempt}
			if stderr {
				r.Stream = "stderr"
			}
			if len(args) == 2 {
				n, err := strconv.Atoi(args[1])
				if err != nil || n < 0 {
					return cli.Usage(cmd, "COMMAND %q is not a number from 0", args[1])
				}
				r.Index = n
				return cl.Jobs.CopyOutput(cmd.Context(), args[0], r, follow, a.Stdout)
			}
			list, err := results(cmd.Context(), cl.Jobs, args[0])
			if err != nil {
				return err
			}
			for _, c := range list {
				if _, err := fmt.Fprintf(a.Stdout, "==> %d %s\n", c.Index, cli.Escape(c.Name)); err != nil {
					return err
				}
				r.Index = c.Index
				if err := cl.Jobs.CopyOutput(cmd.Context(), args[0], r, follow, a.Stdout); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the command has ended")
	c.Flags().BoolVar(&stderr, "stderr", false, "print standard error instead of standard output")
	c.Flags().IntVar(&attempt, "attempt", 0, "`NUMBER` of the attempt (0: the last one)")
	return c
}

func newArtifacts(a *cli.App) *cobra.Command {
	var to string
	c := &cobra.Command{
		Use:   "artifacts JOB",
		Short: "List the files that a job's commands left, or save them",
		Long: `List the files that a job's commands left and that match the job's patterns.
With --to, save them as DIR/COMMAND/PATH.`,
		Example: "  orchestrator job artifacts JOB\n  orchestrator job artifacts JOB --to reports",
		Args:    cli.ExactArgs("JOB"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			list, err := cl.Jobs.Artifacts(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			for _, f := range list {
				if to == "" {
					break
				}
				if err := saveArtifact(cmd.Context(), cl.Jobs, args[0], f, to); err != nil {
					return err
				}
			}
			return cli.PrintList(a, list, []string{"COMMAND", "PATH", "SIZE"}, func(f v1.JobArtifact) []string {
				return []string{strconv.Itoa(f.Index), f.Path, cli.Size(f.Size)}
			})
		}),
	}
	c.Flags().StringVar(&to, "to", "", "save the files below `DIR`")
	return c
}

// saveArtifact saves one file. Its path is untrusted and stays below the directory.
func saveArtifact(ctx context.Context, jobs client.Jobs, id string, f v1.JobArtifact, to string) error {
	name := filepath.FromSlash(f.Path)
	if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return cli.Refuse(errdefs.ErrInvalidArgument, "artifact %q has a path outside of its directory", f.Path)
	}
	body, err := jobs.Artifact(ctx, id, f.Index, f.Path)
	if err != nil {
		return err
	}
	defer body.Close()
	path := filepath.Join(to, strconv.Itoa(f.Index), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return cli.SaveFile(path, 0o644, body)
}
