// Package server is the guest's side of the protocol in internal/guest/wire. It runs commands and
// shells, keeps their output, kills all their processes, and forwards file operations.
//
// It serves requests only within the limits of the wire package and of this one. A command's ending
// is reported after all its processes are dead; if that could not be observed, the result says so.
// The package makes cgroups only below the delegated ones, mounts nothing, and trusts no file of
// the image.
//
// Goroutines: the reaper and the one that refills spare processes ([Server.Run]); at most two per
// stream; two per running command for its output; two per carried connection; one per connection
// that waits for the host; one for the proxy's listener; short-lived ones that remove the groups of
// ended commands. [Server.Close] waits for the commands and the connections.
//
// Errors: a rejected request is answered with a [wire.Failure] that names the field.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/server/spool"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn/relay"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Limits of a guest.
const (
	// MaxCommands is how many commands run at once, shells included.
	MaxCommands = 128
	// MaxStreams is how many streams are served at once. reserveStreams more are reserved for
	// status, kill and end requests.
	MaxStreams     = 192
	reserveStreams = 32
	// fullStreams is how many streams keep the kernel's default send buffer; the others get
	// writeBuffer. Unread data counts as the guest's memory, which is limited to its reserve.
	fullStreams = 16
	writeBuffer = 16 << 10
)

// Files serves file operations. It writes the reply itself. An error is sent as a Failure unless
// the stream was already answered.
type Files interface {
	Handle(ctx context.Context, op wire.Op, body json.RawMessage, c *wire.Conn) error
	// Alias creates additional names of directories, all or none; see wire.Claim.
	Alias(ctx context.Context, names map[string]string) error
	// As runs f, which reads files, as the commands' user. If it returns an error, f did not run.
	As(ctx context.Context, f func()) error
}

// Options configures a Server. The zero value is for a sandbox without cgroups and file operations.
type Options struct {
	// Tree holds the delegated cgroups. If nil, commands are tracked by group ids.
	Tree *cgroup.Tree
	// Files serves file operations. If nil, they are rejected.
	Files Files
	// Log receives what no caller is told. If nil, nothing is logged.
	Log *slog.Logger
	// Root is the directory of the image's /etc/passwd. Empty means "/".
	Root string
	// Workspace is the initial working directory of commands. Empty means wire.Workspace.
	Workspace string
	// Sessions is the directory for the FIFOs of sessions. Empty means SessionDir.
	Sessions string
	// Ulimits are resource limits for every process of a command; see runtime.Spec.
	Ulimits map[string]int64
	// Programs maps the names of the guest's own programs to their paths.
	Programs map[string]string
	// UID and GID are used for commands without a user. Zero means those of the runtime package.
	UID, GID uint32
}

// Server serves streams. Create it with New. Its methods are safe for concurrent use.
type Server struct {
	Options

	started time.Time
	reaper  *prefork.Reaper
	spares  *sparePool
	spools  *spool.Set
	large   *largeBuffers
	null    *os.File
	users   func() []user
	places  func() []string // directories that commands can write to
	streams atomic.Int64
	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	ended   chan struct{}
	end     func()
	work    sync.WaitGroup // commands and their cleanup
	buffers relay.Pool     // of proxy and dials
	proxy   proxy
	dials   *carrier
	fence   fence

	claiming        sync.Mutex // held during a claim; acquired before mu
	mu              sync.Mutex
	lease           string
	env             map[string]string
	base            wire.Base // of all commands; replaced, never changed
	running         map[string]*commandRun
	startCount      int64 // number of commands started so far
	shells          map[string]*shell
	sessions        map[string]*session
	sessionCommands map[string]*sessionCommand // commands in sessions by their ids
	nextName        int64
	closed          bool
}

// New returns a server. It serves requests once Run runs.
func New(o Options) (*Server, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Workspace == "" {
		o.Workspace = wire.Workspace
	}
	if o.Sessions == "" {
		o.Sessions = SessionDir
	}
	if o.UID == 0 {
		o.UID = runtime.CommandUID
	}
	if o.GID == 0 {
		o.GID = runtime.CommandGID
	}
	if err := checkUlimits(o.Ulimits); err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("open input of commands: %w", err)
	}
	s := &Server{
		Options: o, started: time.Now(), reaper: prefork.NewReaper(), spools: spool.New(wire.SpoolTotal),
		large: newLargeBuffers(), fence: fence{log: o.Log},
		null: null, ended: make(chan struct{}), running: make(map[string]*commandRun), shells: make(map[string]*shell),
		sessions: make(map[string]*session), sessionCommands: make(map[string]*sessionCommand),
	}
	s.places = sync.OnceValue(s.findWritablePlaces)
	s.users = sync.OnceValue(func() []user { return readUsers(o.Root) })
	s.end = sync.OnceFunc(func() { close(s.ended) })
	files := openFiles()
	s.proxy.conns = newCarrier(&s.buffers, min(wire.MaxEgress, files/filesPerProxied))
	s.dials = newCarrier(&s.buffers, min(wire.MaxDials, files/filesPerDial))
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	forker, err := prefork.NewForker(s.reaper)
	if err != nil {
		return nil, err
	}
	maker, err := newGroupMaker(o.Tree)
	if err != nil {
		return nil, err
	}
	s.spares = newSparePool(forker, maker, o.Log)
	return s, nil
}

// Run reaps children and refills the spare processes until ctx ends. It must run while the server
// serves requests and during Close.
func (s *Server) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { s.reaper.Run(ctx) })
	group.Go(func() { s.watchTracers(ctx) })
	s.spares.keepFull(ctx)
	group.Wait()
}

// Ended returns a channel that is closed when a host asks for the end of this sandbox.
func (s *Server) Ended() <-chan struct{} { return s.ended }

// Close rejects new commands, kills the running ones and waits for them until ctx ends. It is
// idempotent.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for _, r := range s.running {
		r.stop(runtime.SandboxLost)
	}
	s.mu.Unlock()
	s.cancel(errors.New("guest is shutting down"))
	s.proxy.stop()
	s.dials.close()
	done := make(chan struct{})
	go func() { s.work.Wait(); s.proxy.conns.wait(); s.dials.wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("end the commands: %w", context.Cause(ctx))
	}
	s.spares.close()
	return nil
}

// Serve answers the one request of a stream and closes it. If the stream carries a connection from
// then on, Serve returns kept, and the stream is closed with that connection.
func (s *Server) Serve(nc net.Conn) (kept bool) {
	defer func() {
		if !kept {
			nc.Close()
		}
	}()
	c := wire.NewConn(nc)
	n := s.streams.Add(1)
	defer s.streams.Add(-1)
	if b, ok := nc.(interface{ SetWriteBuffer(int) error }); ok && n > fullStreams {
		_ = b.SetWriteBuffer(writeBuffer) // only saves memory
	}
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("panic while serving a stream", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	if n > MaxStreams+reserveStreams {
		s.answer(c, tooManyStreams())
		return false
	}
	req, err := c.ReadRequest(requestTime)
	if err == nil {
		if n > MaxStreams && !isEssential(req.Op) {
			err = tooManyStreams()
		} else {
			err = s.admit(nc, c, req)
		}
	} else if _, ours := errors.AsType[*wire.Failure](err); !ours {
		return false // the host is gone
	}
	if err != nil && err != errCarried {
		s.answer(c, err)
	}
	return err == errCarried
}

// admit serves a request of the newest host.
func (s *Server) admit(nc net.Conn, c *wire.Conn, req wire.Request) error {
	ctx := s.ctx
	if req.Op == wire.OpKill || req.Op == wire.OpSessionEnd {
		ctx = context.WithoutCancel(ctx) // they report the deaths that Close causes
	}
	ctx, leave, err := s.fence.enter(ctx, req, nc, func() {
		s.dials.cut()
		s.proxy.conns.cut()
	})
	if err != nil {
		return err
	}
	defer leave()
	return s.dispatch(ctx, c, req)
}

func tooManyStreams() error {
	return wire.Failf(wire.ResourceExhausted, "", "more than %d streams are open", MaxStreams)
}

// answer sends an error. It waits at most wire.HeaderTime for the host to read it.
func (s *Server) answer(c *wire.Conn, err error) {
	if dErr := c.SetWriteDeadline(time.Now().Add(wire.HeaderTime)); dErr != nil {
		return
	}
	if wErr := c.FailWith(err); wErr != nil && !errors.Is(wErr, wire.ErrEnded) {
		s.Log.Debug("failed to answer", "error", wErr)
	}
}

// isEssential reports whether an operation is short and must work even when all other streams are
// in use.
func isEssential(op wire.Op) bool {
	switch op {
	case wire.OpPing, wire.OpEgress, wire.OpKill, wire.OpSignal, wire.OpForget, wire.OpEnd, wire.OpShell, wire.OpShells,
		wire.OpSessions, wire.OpSessionEnd, wire.OpResize:
		return true
	default:
		return false
	}
}

func (s *Server) dispatch(ctx context.Context, c *wire.Conn, req wire.Request) error {
	switch req.Op {
	case wire.OpPing:
		return c.Reply(s.ping())
	case wire.OpClaim:
		return handle(c, req.Body, with(ctx, s.claim))
	case wire.OpBase:
		return handle(c, req.Body, s.setBase)
	case wire.OpExec:
		return s.serveExec(ctx, c, req.Body)
	case wire.OpStart:
		return handle(c, req.Body, with(ctx, s.startShell))
	case wire.OpShells:
		return c.Reply(s.listShells())
	case wire.OpShell:
		return handle(c, req.Body, s.showShell)
	case wire.OpOutput:
		return s.serveOutput(ctx, c, req.Body)
	case wire.OpInput:
		return s.serveInput(ctx, c, req.Body)
	case wire.OpSignal:
		return handle(c, req.Body, s.signalCommand)
	case wire.OpResize:
		return handle(c, req.Body, s.resizeShell)
	case wire.OpKill:
		return handle(c, req.Body, with(ctx, s.killShell))
	case wire.OpForget:
		return handle(c, req.Body, s.forgetShell)
	case wire.OpSessionStart:
		return handle(c, req.Body, with(ctx, s.startSession))
	case wire.OpSessions:
		return c.Reply(s.listSessions())
	case wire.OpSessionExec:
		return s.execSession(ctx, c, req.Body)
	case wire.OpSessionEnd:
		return handle(c, req.Body, with(ctx, s.endSession))
	case wire.OpEgress:
		return handle(c, req.Body, s.setEgress)
	case wire.OpAccept:
		return s.serveAccept(ctx, c)
	case wire.OpDial:
		return s.serveDial(ctx, c, req.Body)
	case wire.OpEnd:
		err := c.Reply(nil)
		s.end()
		return err
	case wire.OpRead, wire.OpWrite, wire.OpList, wire.OpStat, wire.OpMkdir, wire.OpMove, wire.OpRemove, wire.OpEdit,
		wire.OpGlob, wire.OpSearch, wire.OpPack, wire.OpUnpack:
		if s.Files == nil {
			return wire.Failf(wire.FailedPrecondition, "", "this guest does not serve files")
		}
		return s.Files.Handle(ctx, req.Op, req.Body, c)
	}
	return wire.Failf(wire.InvalidArgument, "op", "unknown operation %.32q", string(req.Op))
}

// handle decodes a body, calls do and sends its result.
func handle[In, Out any](c *wire.Conn, body json.RawMessage, do func(In) (Out, error)) error {
	var in In
	if err := wire.Decode(body, &in); err != nil {
		return err
	}
	out, err := do(in)
	if err != nil {
		return err
	}
	return c.Reply(out)
}

// with binds a request's context to do.
func with[In, Out any](ctx context.Context, do func(context.Context, In) (Out, error)) func(In) (Out, error) {
	return func(in In) (Out, error) { return do(ctx, in) }
}
