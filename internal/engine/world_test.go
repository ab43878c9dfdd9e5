package engine

import (
	"context"
	"encoding/json"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}

var me = caller.Principal{Caller: caller.LocalCaller}

// world is a state directory and an engine that outlive services.
type world struct {
	dir  string
	host *fake.Host

	mu     sync.Mutex
	guests map[string]*guestOfShells
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	return &world{dir: tb.TempDir(), host: &fake.Host{}, guests: map[string]*guestOfShells{}}
}

// service is one process that uses a world.
type service struct {
	*Engine
	store      *store.Store
	volumes    *volumes.Manager
	governance *governed.Config // nil without tools
	stop       func()
}

func (w *world) open(tb testing.TB) *store.Store {
	tb.Helper()
	st, err := store.Open(tb.Context(), w.dir)
	if err != nil {
		tb.Fatal(err)
	}
	return st
}

func (w *world) start(tb testing.TB) *service {
	tb.Helper()
	return w.startBoth(tb, nil, nil)
}

// startOptions is start with other options.
func (w *world) startOptions(tb testing.TB, change func(*Options)) *service {
	tb.Helper()
	return w.startBoth(tb, nil, change)
}

// startBoth is start with other options and the governance that govern returns.
func (w *world) startBoth(tb testing.TB, govern func(*store.Store) *governed.Config, change func(*Options)) *service {
	tb.Helper()
	st := w.open(tb)
	var g *governed.Config
	if govern != nil {
		g = govern(st)
	}
	v, err := volumes.Open(filepath.Join(w.dir, "workspaces"), volumes.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	o := Options{
		Driver: fake.New(
			fake.Options{Host: w.host, Serve: w.serve},
		), Store: st, Images: testenv.Images(tb, filepath.Join(w.dir, "images")), Volumes: v, DefaultTemplate: "default",
		Templates: []scheduler.Template{{
			Name: "default", Spec: runtime.Spec{Image: runtime.Image{Ref: "test/image:latest"}},
			Pool: pool.Settings{Min: 1, Max: 10, Rate: 1000, Parallel: 2, MaxAge: time.Hour},
		}},
		Limits: Limits{
			TTL: time.Hour, MaxTTL: 2 * time.Hour, Idle: time.Hour, Timeout: time.Minute, MaxTimeout: time.Hour,
			MaxOutput: 1 << 20, OutputCap: 2 << 20, Wait: 30 * time.Second,
			MaxSandboxes: 20, MaxMemory: 1 << 40, Queue: 100,
		},
		Program: Program{Build: "b"}, Governance: g,
	}
	if change != nil {
		change(&o)
	}
	e, err := Open(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Serve(ctx) }()
	s := &service{Engine: e, store: st, volumes: v, governance: g}
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			tb.Error(err)
		}
		st.Close()
	})
	tb.Cleanup(s.stop)
	return s
}

func (s *service) lease(tb testing.TB) string {
	tb.Helper()
	got, err := s.Lease(tb.Context(), me, v1.SandboxRequest{})
	if err != nil {
		tb.Fatal(err)
	}
	return got.ID
}

var eventually = testenv.Eventually

// startX starts a background command of the caller me.
func (s *service) startX(tb testing.TB, sandbox string) v1.Shell {
	tb.Helper()
	sh, err := s.StartShell(tb.Context(), me, sandbox, v1.ShellRequest{Exec: v1.Exec{Argv: []string{"x"}}})
	if err != nil {
		tb.Fatal(err)
	}
	return sh
}

// guestOfShells is a fake guest. Its shells end only on request, and its commands report when they
// are killed.
type guestOfShells struct {
	*fake.Guest
	// refuse, if set, can reject an operation on shells.
	refuse func(wire.Op) *wire.Failure
	// lose, if set, selects requests whose streams end without an answer.
	lose func(wire.Op) bool

	mu     sync.Mutex
	shells map[string]wire.Shell
	execs  map[string]net.Conn
}

func (w *world) guest(id string) *guestOfShells {
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.guests[id]
	if g == nil {
		g = &guestOfShells{Guest: &fake.Guest{}, shells: map[string]wire.Shell{}, execs: map[string]net.Conn{}}
		w.guests[id] = g
	}
	return g
}

func (w *world) serve(ctx context.Context, id string, conn net.Conn) { w.guest(id).serve(ctx, conn) }

func (g *guestOfShells) serve(ctx context.Context, conn net.Conn) {
	c := wire.NewConn(conn)
	_, payload, err := c.ReadFrame()
	if err != nil {
		return
	}
	var q struct {
		Op   wire.Op
		Body struct{ ID string }
	}
	if json.Unmarshal(payload, &q) != nil {
		return
	}
	g.mu.Lock()
	lose := g.lose
	g.mu.Unlock()
	if lose != nil && lose(q.Op) {
		return
	}
	switch q.Op {
	case wire.OpStart, wire.OpShell, wire.OpShells, wire.OpKill, wire.OpSignal, wire.OpForget:
		g.shell(c, q.Op, q.Body.ID)
	default:
		if q.Op == wire.OpExec {
			g.mu.Lock()
			g.execs[q.Body.ID] = conn
			g.mu.Unlock()
		}
		g.Answer(ctx, conn, payload)
	}
}

func (g *guestOfShells) shell(c *wire.Conn, op wire.Op, id string) {
	g.mu.Lock()
	refuse := g.refuse
	g.mu.Unlock()
	if refuse != nil {
		if f := refuse(op); f != nil {
			g.answer(c, wire.KindFailure, f)
			return
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	sh, found := g.shells[id]
	if exec := g.execs[id]; exec != nil && op == wire.OpSignal {
		g.answer(c, wire.KindReply, struct{}{})
		g.answer(wire.NewConn(exec), wire.KindReply, runtime.Result{Ending: runtime.Signalled, Signal: 9, ExitCode: -1})
		_ = exec.Close()
		return
	}
	switch {
	case op == wire.OpShells:
		items := []wire.Shell{}
		for _, s := range g.shells {
			items = append(items, s)
		}
		g.answer(c, wire.KindReply, items)
		return
	case op == wire.OpStart && !found:
		sh = wire.Shell{ID: id, Argv: []string{"x"}, StartedAt: time.Now()}
		g.shells[id] = sh
	case !found:
		g.answer(c, wire.KindFailure, &wire.Failure{Code: wire.NotFound, Message: "no such shell"})
		return
	case op == wire.OpKill || op == wire.OpSignal:
		sh.Result = &runtime.Result{Ending: runtime.Cancelled, ExitCode: -1}
		g.shells[id] = sh
	case op == wire.OpForget:
		delete(g.shells, id)
	}
	if op == wire.OpSignal || op == wire.OpForget {
		g.answer(c, wire.KindReply, struct{}{})
		return
	}
	g.answer(c, wire.KindReply, sh)
}

func (g *guestOfShells) answer(c *wire.Conn, kind wire.Kind, v any) {
	b, _ := json.Marshal(v)
	_ = c.WriteFrame(kind, b) // a failure means that the host is gone
}

func (g *guestOfShells) refuses(f func(wire.Op) *wire.Failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refuse = f
}

func (g *guestOfShells) running() (n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.shells {
		if s.Result == nil {
			n++
		}
	}
	return n
}
