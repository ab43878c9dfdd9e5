package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestbin"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// takeDown destroys everything that a driver has of a state directory, and
// what it keeps in an engine beside sandboxes.
func takeDown(ctx context.Context, d runtime.Driver, st *store.Store, log *slog.Logger) error {
	err := engine.Down(ctx, d, st, log)
	if p, ok := d.(interface{ Purge(context.Context) error }); ok && err == nil {
		err = p.Purge(ctx)
	}
	return err
}

func (a *app) newDownCommand() *cobra.Command {
	var name string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "down",
		Short: "Destroy every sandbox and stop the server",
		Long: `Destroy every sandbox, with the background commands in them, and stop the
server. Workspaces and images stay. Without a server, what a stopped one has
left in the state directory is destroyed.`,
		Example: "  orchestrator down\n  orchestrator down --state-dir /var/lib/orchestrator",
		Args:    exactArgs(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.runDown(cmd.Context(), name, wait) },
	}
	c.Flags().StringVar(&name, "runtime", "", "without a server, `NAME` of the runtime to ask: auto, docker, containerd or oci")
	c.Flags().DurationVar(&wait, "wait", 2*time.Minute, "how long to wait for the end of it")
	return c
}

func (a *app) runDown(ctx context.Context, name string, wait time.Duration) error {
	c, err := a.settings()
	if err != nil {
		return err
	}
	setIfGiven(&c.Runtime, name)
	if err := c.Validate(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, refuse(errdefs.ErrUnavailable, "not down after %s", wait))
	defer cancel()
	cl, err := a.server(ctx, c)
	if err != nil && !errors.Is(err, client.ErrLost) { // cut by its end: another down was quicker
		return err
	}
	if cl != nil {
		ours, err := downServer(ctx, cl, c)
		if err != nil || !ours {
			return err
		}
	}
	// After a server too: what it could not destroy is tried again, or told.
	return a.downHere(ctx, c)
}

// downServer asks a server and waits until it is gone, with its hold on the
// state directory where that is ours to see; ours says whether it is.
func downServer(ctx context.Context, cl *client.Client, c config.Config) (ours bool, err error) {
	pid := serverOf(c.StateDir)
	// Not there any more: another down was quicker.
	if err := cl.Down(ctx); err != nil && !errors.Is(err, client.ErrLost) && !errors.Is(err, client.ErrNoServer) {
		return false, err
	}
	for {
		_, err := cl.Version(ctx)
		cl.Close() // a kept connection would hold its end up
		if errors.Is(err, client.ErrNoServer) && (pid == "" || serverOf(c.StateDir) != pid) {
			return pid != "", nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// lockState takes the lock of a state directory when a server that ends, or
// another down, lets go of it.
func (a *app) lockState(ctx context.Context, dir string) (*store.Lock, error) {
	for first := true; ; first = false {
		lock, err := store.LockDir(dir)
		if err == nil || !errdefs.IsUnavailable(err) {
			return lock, err
		}
		if first {
			fmt.Fprintf(a.stderr, "orchestrator: waiting for the end of process %s, which holds %s\n", serverOf(dir), dir) //nolint:errcheck // it is waited for anyway
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// downHere destroys what a stopped server and killed runs have left.
func (a *app) downHere(ctx context.Context, c config.Config) (err error) {
	dir := c.StateDir
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := a.lockState(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Unlock()) }()
	c.Log.Level = "warn"
	log := logger(a.stderr, c.Log)
	if err := sweepRuns(ctx, dir, log); err != nil {
		return err
	}
	defer func() {
		if err == nil { // else something may still write
			err = downWorkspaces(ctx, c, log)
		}
	}()
	d := drivers{config: c, stateDir: dir, log: log}
	if !store.HasState(dir) && len(d.used(runtimeAuto)) == 0 {
		return nil // no server was ever here
	}
	x, err := store.Examine(ctx, dir)
	if err != nil {
		return err
	}
	if d.guest, _, err = guestbin.Write(engine.DirsOf(dir).Guest); err != nil {
		return err
	}
	if x.Condition == store.Whole {
		return d.downRecorded(ctx, x)
	}
	return d.downRemains(ctx, x)
}

// downRecorded takes down what the database and the driver know of.
func (d drivers) downRecorded(ctx context.Context, x *store.Examined) (err error) {
	st, err := x.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	live, err := st.Live(ctx)
	if err != nil {
		return err
	}
	driver, err := d.toTakeDown(ctx, live)
	if err != nil || driver == nil {
		return err
	}
	return errors.Join(takeDown(ctx, driver, st, d.log), driver.Close())
}

// downRemains takes down what belongs to a state directory whose database cannot
// be used.
func (d drivers) downRemains(ctx context.Context, x *store.Examined) error {
	finder := d.finder(d.config.Runtime)
	found, err := finder.Find(ctx, x.Owner())
	if err != nil {
		return err
	}
	if len(found.Sandboxes) > 0 {
		d.log.Warn("taking sandboxes down without state.db", "found", found.String(), "problem", x.Problem())
	}
	if err := finder.Destroy(ctx, found); err != nil {
		return err
	}
	return finder.Purge(ctx, found)
}

// toTakeDown is the driver of what is recorded; with --runtime that one even
// if others are recorded too. Where nothing is recorded, it is the one that
// has left a folder, since it may know of more than the records do.
func (d drivers) toTakeDown(ctx context.Context, live []store.Sandbox) (runtime.Driver, error) {
	name := d.config.Runtime
	if name == runtimeAuto {
		var err error
		if name, err = runtimeOf(live); err != nil {
			return nil, err
		}
	}
	if name == "" {
		used := d.used(runtimeAuto)
		if len(used) == 0 {
			return nil, nil
		}
		name = used[0]
	}
	got, _, err := d.open(ctx, name)
	return got, err
}
