package cli

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// WaitFlag adds the flag --wait of "orchestrator down" and returns a function that bounds a context
// by its value.
func WaitFlag(c *cobra.Command) func(context.Context) (context.Context, context.CancelFunc) {
	wait := c.Flags().Duration("wait", 2*time.Minute, "maximum wait")
	return func(ctx context.Context) (context.Context, context.CancelFunc) {
		late := Refuse(errdefs.ErrUnavailable, "not down after %s", *wait)
		return context.WithTimeoutCause(ctx, *wait, late)
	}
}

// DownServer asks a server to take everything down and waits until it is gone. ours says whether it
// has the local state directory, whose lock it then waits for.
func DownServer(ctx context.Context, cl *client.Client, c config.Config) (ours bool, err error) {
	pid := ServerPID(c.StateDir)
	// If it is gone, another down was faster.
	if err := cl.Down(ctx); err != nil && !errors.Is(err, client.ErrLost) && !errors.Is(err, client.ErrNoServer) {
		return false, err
	}
	for {
		_, err := cl.Version(ctx)
		cl.Close() // an idle connection would delay its end
		if errors.Is(err, client.ErrNoServer) && (pid == "" || ServerPID(c.StateDir) != pid) {
			return pid != "", nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}
