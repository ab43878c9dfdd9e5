package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// maxForwarded bounds the connections of one listener. A sandbox allows fewer.
const maxForwarded = 256

// NewForwardCommand returns "orchestrator forward".
func NewForwardCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "forward SANDBOX [LOCAL:]PORT...",
		Short: "Forward local ports to servers in a sandbox",
		Long: `Listen on 127.0.0.1 and forward each connection to a server on the sandbox's
loopback, until Ctrl-C. LOCAL is the port on this host, by default the same one; 0
takes a free port. The address is printed. Every user of this host can connect to
it. The sandbox is not idle while a connection is open.`,
		Example: `  orchestrator forward $id 8080
  orchestrator forward $id 18080:8080 0:5432
  orchestrator forward $id 8080 & curl http://127.0.0.1:8080/`,
		Args: cli.FirstArgs("SANDBOX", "PORT"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runForward(cmd.Context(), a, cmd, args[0], args[1:])
		},
	}
}

// forwarded is one forwarded port.
type forwarded struct {
	app     *cli.App
	client  *client.Client
	sandbox string
	local   int
	port    int
	conns   sync.WaitGroup
	slots   chan struct{}

	listener net.Listener
}

func runForward(ctx context.Context, a *cli.App, cmd *cobra.Command, sandbox string, ports []string) error {
	var all []*forwarded
	for _, p := range ports {
		local, port, err := parsePorts(p)
		if err != nil {
			return cli.Usage(cmd, "%s", err)
		}
		all = append(
			all,
			&forwarded{app: a, sandbox: sandbox, local: local, port: port, slots: make(chan struct{}, maxForwarded)},
		)
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	s, err := cl.Sandbox(ctx, sandbox)
	if err == nil && s.EndedAt != nil {
		err = cli.Refuse(errdefs.ErrNotFound, "sandbox %s is gone: %s", s.ID, s.Reason)
	}
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range all {
			f.close()
		}
	}()
	for _, f := range all {
		f.client = cl
		if err := f.listen(ctx); err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, f := range all {
		g.Go(func() error { return f.serve(gctx, f.listener) })
	}
	err = g.Wait()
	if _, asked := errors.AsType[*cli.Interrupted](context.Cause(ctx)); asked {
		return nil // cancellation is the normal end
	}
	return err
}

// parsePorts reads [LOCAL:]PORT.
func parsePorts(s string) (local, port int, err error) {
	left, right, two := strings.Cut(s, ":")
	if !two {
		left, right = s, s
	}
	l, lerr := strconv.ParseUint(left, 10, 16)
	p, perr := strconv.ParseUint(right, 10, 16)
	if lerr != nil || perr != nil || p == 0 || !two && l == 0 {
		return 0, 0, fmt.Errorf("invalid port %q: use PORT or LOCAL:PORT, such as 8080 or 18080:8080", s)
	}
	return int(l), int(p), nil
}

// listen opens the listener and prints its address.
func (f *forwarded) listen(ctx context.Context) (err error) {
	f.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(f.local)))
	if err != nil {
		return cli.Refuse(
			errdefs.ErrUnavailable,
			"listen for port %d: %w; give another one as LOCAL:%d, or 0:%d for a free one",
			f.port,
			err,
			f.port,
			f.port,
		)
	}
	_, err = fmt.Fprintf(f.app.Stdout, "%s -> %s port %d\n", f.listener.Addr(), f.sandbox, f.port)
	return err
}

func (f *forwarded) close() {
	if f.listener != nil {
		_ = f.listener.Close() // it may be closed already
	}
}

// serve accepts connections until ctx ends or the sandbox is gone, and waits for all of them.
func (f *forwarded) serve(ctx context.Context, l net.Listener) error {
	defer f.conns.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			f.app.Note("port %d: %s", f.port, err)
			select { // probably no file descriptors: wait until some are closed
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case f.slots <- struct{}{}:
		default:
			f.app.Note("port %d: refused a connection: %d are open", f.port, maxForwarded)
			conn.Close()
			continue
		}
		f.conns.Go(func() {
			defer func() { <-f.slots }()
			defer conn.Close() // after the problem was reported
			if err := f.relay(ctx, conn); errdefs.IsNotFound(err) {
				cancel(err) // the sandbox is gone, so end the command
			} else if err != nil && ctx.Err() == nil {
				f.app.Note("port %d: %s", f.port, cli.WithoutClass(err.Error()))
			}
		})
	}
}

// relay copies both directions of a connection until both have ended, or ctx has. It does not close
// the connection.
func (f *forwarded) relay(ctx context.Context, outside net.Conn) error {
	inside, err := f.client.Dial(ctx, f.sandbox, f.port)
	if err != nil {
		return err
	}
	defer inside.Close()
	defer context.AfterFunc(ctx, func() { inside.Close(); outside.Close() })()
	var both sync.WaitGroup
	pass := func(to, from net.Conn) {
		_, err := io.Copy(to, from)
		half, ok := to.(interface{ CloseWrite() error })
		if err != nil || !ok || half.CloseWrite() != nil {
			inside.Close()
			outside.Close()
		}
	}
	both.Go(func() { pass(inside, outside) })
	both.Go(func() { pass(outside, inside) })
	both.Wait()
	return nil
}
