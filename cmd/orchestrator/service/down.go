package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestbin"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// NewDownCommand returns "orchestrator down".
func NewDownCommand(a *cli.App) *cobra.Command {
	var name string
	c := &cobra.Command{
		Use:   "down",
		Short: "Destroy every sandbox and stop the server",
		Long: `Destroy every sandbox with its background commands, and stop the server. Workspaces
and images stay. Without a server, destroy what a stopped one left in the state
directory.`,
		Example: "  orchestrator down\n  orchestrator down --state-dir /var/lib/orchestrator",
		Args:    cli.ExactArgs(),
	}
	bound := cli.WaitFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := bound(cmd.Context())
		defer cancel()
		return runDown(ctx, a, name)
	}
	c.Flags().
		StringVar(&name, "runtime", "", "without a server, runtime `NAME`: auto, docker, containerd, oci or kubernetes")
	return c
}

func runDown(ctx context.Context, a *cli.App, name string) error {
	c, err := a.Settings()
	if err != nil {
		return err
	}
	cli.SetIfGiven(&c.Runtime, name)
	if err := c.Validate(); err != nil {
		return err
	}
	cl, err := a.FindServer(ctx, c)
	if err != nil && !errors.Is(err, client.ErrLost) { // another down was faster
		return err
	}
	if cl != nil {
		progress := a.StartProgress("destroying the sandboxes of "+cl.Address(), 0)
		ours, err := cli.DownServer(ctx, cl, c)
		progress.Stop()
		if err != nil || !ours {
			return err
		}
	}
	// Do this after a server, too: retry or report what it could not destroy.
	return downLocally(ctx, a, c)
}

// lockState locks a state directory when a stopping server or another down releases it.
func lockState(ctx context.Context, a *cli.App, dir string) (*store.Lock, error) {
	for first := true; ; first = false {
		lock, err := store.LockDir(dir)
		if err == nil || !errdefs.IsUnavailable(err) {
			return lock, err
		}
		if first {
			fmt.Fprintf(
				a.Stderr,
				"orchestrator: waiting for the end of process %s, which holds %s\n",
				cli.ServerPID(dir),
				dir,
			)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// downLocally destroys what a stopped server and killed runs left.
func downLocally(ctx context.Context, a *cli.App, c config.Config) (err error) {
	dir := c.StateDir
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := lockState(ctx, a, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	c.Log.Level = "warn"
	log := standalone.Logger(a.Stderr, c.Log)
	if err := standalone.SweepRuns(ctx, dir, log); err != nil {
		return err
	}
	defer func() {
		if err == nil { // else a process may still write
			err = standalone.DownWorkspaces(ctx, c, log)
		}
	}()
	d := standalone.Drivers{Config: c, StateDir: dir, Log: log}
	if !store.HasState(dir) && len(d.UsedRuntimes(standalone.RuntimeAuto)) == 0 {
		return nil // never used by a server
	}
	x, err := store.Examine(ctx, dir)
	if err != nil {
		return err
	}
	if d.Guest, _, err = guestbin.Write(engine.DirsOf(dir).Guest); err != nil {
		return err
	}
	if x.Condition == store.Whole {
		return d.DownRecorded(ctx, x)
	}
	return d.DownRemains(ctx, x)
}
