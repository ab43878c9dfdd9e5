// Package server is the guest's side of the protocol in internal/guest/wire: it
// runs commands and shells, keeps their output, kills everything of them, and
// hands file operations on.
//
// What a host asks for is carried out only within the limits of the wire
// package and of this one. A command's ending is reported after everything that
// it started is dead; where that could not be seen, the result says so. The
// package makes no cgroups of its own above the delegated ones, mounts nothing,
// and trusts no file of the image.
//
// Goroutines: the reaper and the one that parks leaders ([Server.Run]); two per
// stream at most, and two per running command for its output; two per carried
// connection, and one for each that waits for the host and for the proxy's
// listener; short ones that remove the groups of ended commands. [Server.Close]
// waits for the commands and the connections.
// What is refused is answered with a [wire.Failure] that names the field.
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
	// MaxStreams is how many streams are served at once; a few more are kept
	// for those that look, kill and end.
	MaxStreams     = 192
	reserveStreams = 32
	// fullStreams may have as much under way to the host as the kernel lets
	// them, the others writeBuffer: what a host does not take is charged to the
	// guest, whose memory is what is reserved for it.
	fullStreams = 16
	writeBuffer = 16 << 10
)

// Files serves the operations on files. It writes its reply itself; an error
// is sent as a Failure unless the stream was answered already.
type Files interface {
	Handle(ctx context.Context, op wire.Op, body json.RawMessage, c *wire.Conn) error
	// Alias makes further names of folders, all or none: see wire.Claim.
	Alias(ctx context.Context, names map[string]string) error
	// As runs f, which looks at files, as the commands' user. An error means that
	// it did not run.
	As(ctx context.Context, f func()) error
}

// Options of a server. The zero value is that of a sandbox without cgroups and
// without files.
type Options struct {
	// Tree holds the delegated cgroups. Nil: commands are found by their tag.
	Tree *cgroup.Tree
	// Files serves files. Nil: there are none.
	Files Files
	// Log is for what no caller is told. Nil: nothing is logged.
	Log *slog.Logger
	// Root is where the image's /etc/passwd is looked for. Empty: "/".
	Root string
	// Workspace is where commands start. Empty: wire.Workspace.
	Workspace string
	// Sessions is where sessions have their pipes. Empty: SessionDir.
	Sessions string
	// Ulimits are limits of every command's processes; see runtime.Spec.
	Ulimits map[string]int64
	// Programs are where the guest's own programs are, by their names.
	Programs map[string]string
	// UID and GID are the user of commands that name none. Zero: those of the
	// runtime package.
	UID, GID uint32
}

// Server serves streams. Make it with New; all methods may be called
// concurrently.
type Server struct {
	Options

	started time.Time
	reaper  *prefork.Reaper
	yard    *yard
	spools  *spool.Set
	large   *largeBuffers
	null    *os.File
	users   func() []user
	places  func() []string // where commands can write
	streams atomic.Int64
	ctx     context.Context // ends with Close
	cancel  context.CancelCauseFunc
	ended   chan struct{}
	end     func()
	work    sync.WaitGroup // commands and what cleans up behind them
	buffers relay.Pool     // of proxy and dials
	proxy   proxy
	dials   *carrier

	claiming sync.Mutex // held by a claim, before mu
	mu       sync.Mutex
	lease    string
	env      map[string]string
	base     wire.Base // of all commands; replaced, never changed
	running  map[string]*run
	starts   int64 // commands begun so far
	shells   map[string]*shell
	sessions map[string]*session
	turns    map[string]*turn // commands in sessions, by their ids
	nextName int64
	closed   bool
}

// New makes a server. It serves once Run runs.
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
		Options: o, started: time.Now(), reaper: prefork.NewReaper(), spools: spool.New(wire.SpoolTotal), large: newLargeBuffers(),
		null: null, ended: make(chan struct{}), running: make(map[string]*run), shells: make(map[string]*shell),
		sessions: make(map[string]*session), turns: make(map[string]*turn),
	}
	s.places = sync.OnceValue(s.findPlaces)
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
	s.yard = newYard(forker, maker, o.Log)
	return s, nil
}

// Run reaps and parks leaders until ctx ends. It has to run while the server
// serves, and for Close.
func (s *Server) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { s.reaper.Run(ctx) })
	group.Go(func() { s.watchTracers(ctx) })
	s.yard.run(ctx)
	group.Wait()
}

// Ended is closed when a host asked for the end of this sandbox.
func (s *Server) Ended() <-chan struct{} { return s.ended }

// Streams is how many streams are being served.
func (s *Server) Streams() int { return int(s.streams.Load()) }

// Close kills every command, waits for their ends until ctx ends, and refuses
// new ones. Idempotent.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for _, r := range s.running {
		r.stop(runtime.SandboxLost)
	}
	s.mu.Unlock()
	s.cancel(errors.New("guest is ending"))
	s.proxy.stop()
	s.dials.close()
	done := make(chan struct{})
	go func() { s.work.Wait(); s.proxy.conns.wait(); s.dials.wait(); close(done) }()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("end the commands: %w", context.Cause(ctx))
	}
	s.yard.close()
	return nil
}

// Serve answers the one request of a stream and closes it, unless it carries a
// connection from then on: then it is kept, and closed with that.
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
		_ = b.SetWriteBuffer(writeBuffer) // it only saves memory
	}
	defer func() {
		if p := recover(); p != nil {
			s.Log.Error("serving a stream panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		}
	}()
	if n > MaxStreams+reserveStreams {
		s.answer(c, tooManyStreams())
		return false
	}
	req, err := c.ReadRequest()
	if err == nil {
		if n > MaxStreams && !light(req.Op) {
			err = tooManyStreams()
		} else {
			err = s.dispatch(c, req)
		}
	} else if _, ours := errors.AsType[*wire.Failure](err); !ours {
		return false // nobody is there
	}
	if err != nil && err != errCarried {
		s.answer(c, err)
	}
	return err == errCarried
}

func tooManyStreams() error {
	return wire.Failf(wire.ResourceExhausted, "", "more than %d streams are open", MaxStreams)
}

// answer sends an error, and does not wait for ever for a host to take it.
func (s *Server) answer(c *wire.Conn, err error) {
	if dErr := c.SetWriteDeadline(time.Now().Add(wire.HeaderTime)); dErr != nil {
		return
	}
	if wErr := c.FailWith(err); wErr != nil && !errors.Is(wErr, wire.ErrEnded) {
		s.Log.Debug("could not answer", "error", wErr)
	}
}

// light says whether an operation is short and needed when everything is full.
func light(op wire.Op) bool {
	switch op {
	case wire.OpPing, wire.OpEgress, wire.OpKill, wire.OpSignal, wire.OpForget, wire.OpEnd, wire.OpShell, wire.OpShells, wire.OpSessions, wire.OpSessionEnd, wire.OpResize:
		return true
	}
	return false
}

func (s *Server) dispatch(c *wire.Conn, req wire.Request) error {
	switch req.Op {
	case wire.OpPing:
		return c.Reply(s.ping())
	case wire.OpClaim:
		return handle(c, req.Body, s.claim)
	case wire.OpBase:
		return handle(c, req.Body, s.setBase)
	case wire.OpExec:
		return s.exec(c, req.Body)
	case wire.OpStart:
		return handle(c, req.Body, s.startShell)
	case wire.OpShells:
		return c.Reply(s.listShells())
	case wire.OpShell:
		return handle(c, req.Body, s.showShell)
	case wire.OpOutput:
		return s.output(c, req.Body)
	case wire.OpInput:
		return s.input(c, req.Body)
	case wire.OpSignal:
		return handle(c, req.Body, s.signal)
	case wire.OpResize:
		return handle(c, req.Body, s.resize)
	case wire.OpKill:
		return handle(c, req.Body, s.kill)
	case wire.OpForget:
		return handle(c, req.Body, s.forget)
	case wire.OpSessionStart:
		return handle(c, req.Body, s.startSession)
	case wire.OpSessions:
		return c.Reply(s.listSessions())
	case wire.OpSessionExec:
		return s.execSession(c, req.Body)
	case wire.OpSessionEnd:
		return handle(c, req.Body, s.endSession)
	case wire.OpEgress:
		return handle(c, req.Body, s.egress)
	case wire.OpAccept:
		return s.accept(c)
	case wire.OpDial:
		return s.dial(c, req.Body)
	case wire.OpEnd:
		err := c.Reply(nil)
		s.end()
		return err
	case wire.OpRead, wire.OpWrite, wire.OpList, wire.OpStat, wire.OpMkdir, wire.OpMove, wire.OpRemove, wire.OpEdit, wire.OpGlob, wire.OpSearch, wire.OpPack, wire.OpUnpack:
		if s.Files == nil {
			return wire.Failf(wire.FailedPrecondition, "", "this guest serves no files")
		}
		return s.Files.Handle(s.ctx, req.Op, req.Body, c)
	}
	return wire.Failf(wire.InvalidArgument, "op", "there is no operation %.32q", string(req.Op))
}

// handle decodes a body, calls do and sends what it returned.
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
