package sandbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// endPause is the interval of requests for the ending of a command.
const endPause = 20 * time.Millisecond

type attachOptions struct {
	look   bool
	keys   string
	offset int64
}

func newShellAttach(a *cli.App) *cobra.Command {
	var o attachOptions
	c := &cobra.Command{
		Use:   "attach [flags] SHELL",
		Short: "Attach to a terminal, or follow a background command",
		Long: `Attach to a background command. If it has a terminal, show its kept output and then
the terminal; several clients can be attached. Ctrl-P Ctrl-Q detaches and leaves it
running. Otherwise, show its output until its end, and send standard input line by
line; its input stays open.

The exit code is the command's.`,
		Example: `  orchestrator shell attach $sh
  orchestrator shell attach --read-only $sh`,
		Args: cli.ExactArgs("SHELL"),
		RunE: func(cmd *cobra.Command, args []string) error { return runAttach(cmd.Context(), a, cmd, o, args[0]) },
	}
	f := c.Flags()
	f.BoolVar(&o.look, "read-only", false, "send no input and do not resize")
	f.StringVar(&o.keys, "detach-keys", defaultDetachKeys, "`KEYS` that detach, or none")
	f.Int64Var(&o.offset, "offset", 0, "offset of the first `BYTE` to show (0: the oldest one kept)")
	return c
}

func runAttach(ctx context.Context, a *cli.App, cmd *cobra.Command, o attachOptions, id string) error {
	keys, err := parseDetachKeys(cmd, o.keys)
	if err != nil {
		return err
	}
	if o.offset < 0 {
		return cli.Usage(cmd, "--offset is negative")
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	sh, err := cl.Shell(ctx, id)
	if err != nil {
		return err
	}
	if !sh.TTY {
		return attachPlain(ctx, a, cl, sh, o)
	}
	s := &terminalSession{
		app:             a,
		screen:          newScreen(a),
		keys:            keys,
		viewOnly:        o.look,
		reattachCommand: "orchestrator shell attach " + id,
	}
	opts := s.options()
	opts.Offset = o.offset
	t, err := cl.AttachTerminal(ctx, id, opts)
	if err != nil {
		return err
	}
	return finishTerminal(ctx, cl, s, t, false)
}

// attachPlain follows both streams of a command without a terminal, and sends standard input to it.
func attachPlain(ctx context.Context, a *cli.App, cl *client.Client, sh v1.Shell, o attachOptions) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if !o.look && sh.Result == nil {
		go func() { // a Read of standard input ends with the process
			err := cl.Input(ctx, sh.ID, a.Input(ctx), false)
			if err != nil && !errdefs.IsFailedPrecondition(err) && !errdefs.IsUnavailable(err) {
				cancel(err)
			}
		}()
	}
	gap := func(from, to int64) {
		fmt.Fprintf(
			a.Stderr,
			"orchestrator: %d bytes are no longer kept: %d to %d\n",
			to-from,
			from,
			to-1,
		)
	}
	var both sync.WaitGroup
	errs := make([]error, 2)
	both.Go(func() {
		_, errs[0] = cl.Follow(ctx, sh.ID, client.FollowRequest{Stream: "stdout", Offset: o.offset, Gap: gap}, a.Stdout)
	})
	both.Go(func() {
		_, errs[1] = cl.Follow(ctx, sh.ID, client.FollowRequest{Stream: "stderr", Gap: gap}, a.Stderr)
	})
	both.Wait()
	for _, err := range errs {
		if errdefs.IsNotFound(err) {
			return err // the sandbox has ended, and the command with it
		}
		if err != nil {
			fmt.Fprintf(
				a.Stderr,
				"orchestrator: the command may still be running: attach again with `orchestrator shell attach %s`\n",
				sh.ID,
			)
			return err
		}
	}
	for { // the ending is known shortly after the streams end
		end, err := cl.Shell(ctx, sh.ID)
		if err != nil {
			return err
		}
		if end.Result != nil {
			return cli.ResultError(*end.Result)
		}
		select {
		case <-time.After(endPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
