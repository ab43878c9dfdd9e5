package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/files"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/server"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

const (
	// parked is how many streams wait for the host.
	parked = 4
	// endTime limits how long the guest may take to kill its commands. The kernel kills the
	// remaining ones with PID 1.
	endTime = 10 * time.Second
	// heapLimit keeps the Go heap, including spools, below the guest's reserve
	// (runtime.GuestReserveBytes). The kernel uses a third of the reserve for sockets, pipes and
	// cgroups when the maximum number of commands runs.
	heapLimit = 24 << 20
	gcPercent = 50
	maxProcs  = 2
	// muxLimit is added to heapLimit where bridges carry all streams: the guest then buffers what
	// commands do not read.
	muxLimit = 64 << 20
	// bridgeEndTime limits how long the guest waits at its end until hosts have read their answers.
	bridgeEndTime = 3 * time.Second
)

func bridgeSocket() string { return filepath.Join(wire.PrivateDir, "bridge.sock") }

// guest is a sandbox's PID 1. It creates its server at the first stream, because the host has
// mounted the commands' cgroups by then.
type guest struct {
	log  *slog.Logger
	ctx  context.Context
	stop context.CancelCauseFunc
	// ulimits apply to every process of commands.
	ulimits map[string]int64
	seen    atomic.Int64 // changes while a host is present

	server func() (*server.Server, error)
	made   atomic.Pointer[server.Server]
	// background is not waited for: its goroutines end with the process, which ends after its
	// commands.
	background sync.WaitGroup
}

var (
	errEnd      = errors.New("a host requested the end")
	errOrphaned = errors.New("no host was present for too long")
)

// runInit serves until a host requests the end, or no host was present for o.alone.
func runInit(ctx context.Context, o initOptions, log *slog.Logger) error {
	debug.SetGCPercent(gcPercent)
	debug.SetMemoryLimit(heapLimit)
	if o.stdio {
		debug.SetMemoryLimit(heapLimit + muxLimit)
	}
	goruntime.GOMAXPROCS(min(maxProcs, goruntime.NumCPU()))
	ignoreSignals()
	if o.stdio {
		keepThreads(guestThreads)
	}
	// Some runtimes give a tmpfs the mode of the directory below it, whatever mode was requested.
	for _, path := range o.shared {
		if err := os.Chmod(path, 0o777|os.ModeSticky); err != nil {
			return fmt.Errorf("make a directory writable for all users: %w", err)
		}
	}
	g := &guest{log: log, ulimits: o.ulimits}
	g.ctx, g.stop = context.WithCancelCause(ctx)
	g.server = sync.OnceValues(g.makeServer)
	defer g.stop(nil)

	l, err := listen()
	if err != nil {
		if o.stdio {
			return err
		}
		log.Warn("failed to listen for bridges; bridges cannot connect", "error", err)
	} else {
		defer g.serveBridges(l)()
	}
	if !o.stdio {
		g.background.Go(func() {
			err := guestconn.Park(g.ctx, wire.HostSocket, parked, g.serve, g.hostSeen)
			if g.ctx.Err() == nil {
				g.stop(fmt.Errorf("park streams: %w", err))
			}
		})
	}
	debug.FreeOSMemory()
	g.watch(o.alone, o.pooled)
	return g.end() //nolint:contextcheck // commands are ended after g.ctx
}

// watch returns when the guest must end. A pooled guest waits for its first host.
func (g *guest) watch(alone time.Duration, pooled bool) {
	if alone == 0 {
		<-g.ctx.Done()
		return
	}
	period := max(alone/16, 10*time.Millisecond)
	tick := time.NewTicker(period)
	defer tick.Stop()
	var quiet time.Duration
	last, seen := time.Now(), g.seen.Load()
	for {
		select {
		case <-g.ctx.Done():
			return
		case <-tick.C:
		}
		// After the machine was suspended, the pause says nothing about the host: count at most two
		// periods.
		quiet += min(time.Since(last), 2*period)
		last = time.Now()
		if now := g.seen.Load(); now != seen || pooled && now == 0 {
			quiet, seen = 0, now
		}
		if quiet > alone {
			g.stop(errOrphaned)
			return
		}
	}
}

// end kills the commands. A requested end and a missing host are not errors.
func (g *guest) end() error {
	cause := context.Cause(g.ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.ctx), endTime)
	defer cancel()
	if s := g.made.Load(); s != nil {
		if err := s.Close(ctx); err != nil {
			g.log.Warn("failed to end commands", "error", err)
		}
	}
	if errors.Is(cause, errEnd) || errors.Is(cause, errOrphaned) {
		return nil
	}
	return cause
}

// hostSeen records that a host is present.
func (g *guest) hostSeen() { g.seen.Add(1) }

func (g *guest) makeServer() (*server.Server, error) {
	tree, err := cgroup.OpenTree(wire.CgroupDir)
	if err != nil {
		if !errors.Is(err, cgroup.ErrNone) {
			g.log.Warn("cgroups are not usable; commands run without them", "error", err)
		}
		tree = nil
	}
	programs := map[string]string{}
	for _, name := range wire.Programs() {
		programs[name] = wire.ProgramPath(wire.GuestPath, name)
	}
	s, err := server.New(server.Options{Tree: tree, Files: files.New(files.Options{}), Programs: programs,
		Ulimits: g.ulimits, Log: g.log})
	if err != nil {
		return nil, err
	}
	g.made.Store(s)
	// Not ended by g.ctx: Close needs the server's goroutines, and the process ends after it.
	g.background.Go(func() { s.Run(context.WithoutCancel(g.ctx)) })
	g.background.Go(func() {
		select {
		case <-s.Ended():
			g.stop(errEnd)
		case <-g.ctx.Done():
		}
	})
	return s, nil
}

// answer answers one stream. The stream is then closed, unless the server keeps it.
func (g *guest) answer(nc net.Conn) (kept bool) {
	s, err := g.server()
	if err != nil {
		nc.Close()
		g.stop(fmt.Errorf("start the server: %w", err))
		return false
	}
	return s.Serve(nc)
}

// serve is like answer, and counts the host as present during the answer.
func (g *guest) serve(nc net.Conn) (kept bool) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	done := make(chan struct{})
	go func() { defer close(done); kept = g.answer(nc) }()
	for {
		g.hostSeen()
		select {
		case <-done:
			g.hostSeen()
			return kept
		case <-tick.C:
		}
	}
}

// listen opens the socket for bridges in a directory that only root can enter.
func listen() (*net.UnixListener, error) {
	if err := os.MkdirAll(wire.PrivateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the guest's directory: %w", err)
	}
	if err := os.Chmod(wire.PrivateDir, 0o700); err != nil {
		return nil, fmt.Errorf("make the guest's directory: %w", err)
	}
	if err := os.Remove(bridgeSocket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("listen for bridges: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: bridgeSocket(), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for bridges: %w", err)
	}
	return l, nil
}

// serveBridges serves the streams of bridges until the returned function is called, which waits
// until hosts have read the answers under way. A stream alone does not show that a host is present,
// because it survives the host's connection.
func (g *guest) serveBridges(l *net.UnixListener) (end func()) {
	// Not ended by g.ctx: hosts get the endings of the commands that end with the guest.
	ctx, cancel := context.WithCancel(context.WithoutCancel(g.ctx))
	done := make(chan struct{})
	g.background.Go(func() {
		defer close(done)
		guestconn.ServeBridges(ctx, l, g.answer, g.hostSeen)
	})
	return func() {
		cancel()
		select {
		case <-done:
		case <-time.After(bridgeEndTime):
		}
	}
}
