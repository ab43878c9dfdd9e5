package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
)

func named(name string, n int) Template {
	return Template{
		Name: name, Spec: runtime.Spec{Image: runtime.Image{ID: "sha256:1"}, Limits: runtime.Limits{}.WithDefaults()},
		Pool: pool.Settings{Min: n, Max: 10, Rate: 1000, Parallel: 2, MaxAge: time.Hour},
	}
}

func (s *service) stats(name string) pool.Stats {
	for _, p := range s.Pools() {
		if p.Template == name {
			return p.Stats
		}
	}
	return pool.Stats{}
}

// wantPut puts the template and reports an error if that is not the wanted change.
func wantPut(t *testing.T, s *service, put Template, want Change) {
	t.Helper()
	if got := s.Put(put); got != want {
		t.Errorf("Put(%s) = %q, want %q", put.Name, got, want)
	}
}

func TestPutAndDropTemplates(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	kept := s.acquire(t)
	wantPut(t, s, named("extra", 2), Added)
	eventually(t, "two of the new template are warm", func() bool { return s.stats("extra").Warm == 2 })
	wantPut(t, s, named("extra", 2), Same)
	wantPut(t, s, named("extra", 3), Resized)
	eventually(t, "a third is warm", func() bool { return s.stats("extra").Warm == 3 })
	if n := s.stats("extra").Created; n != 3 {
		t.Errorf("%d sandboxes were created, want 3", n)
	}
	changed := named("extra", 3)
	changed.Env = map[string]string{"A": "b"}
	changed.Warmup = []Hook{{Argv: []string{"false"}, Timeout: time.Minute}}
	wantPut(t, s, changed, Changed)
	eventually(t, "the failed warm-up is reported", func() bool {
		st := s.stats("extra")
		return st.Warm == 0 && strings.Contains(st.LastError, "extra")
	})
	if !s.Drop("default") || s.Drop("default") || s.Drop("nobody") {
		t.Error("Drop of default, default again and nobody: want true, false, false")
	}
	_, err := s.tryAcquire(t.Context())
	if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "use one of extra") {
		t.Errorf("Acquire from a dropped template: %v, want NotFound that names extra", err)
	}
	if kept.Ended() != "" {
		t.Errorf("the lease of a dropped template ended as %q, want it live", kept.Ended())
	}
	if err := s.End(t.Context(), kept, Removed, true); err != nil {
		t.Fatal(err)
	}
	eventually(
		t,
		"the removed template is forgotten",
		func() bool { s.forgetRemovedTemplates(); return s.templates.find("default") == nil },
	)
	wantPut(t, s, named("default", 1), Added)
	again := s.acquire(t)
	if err := s.End(t.Context(), again, Removed, true); err != nil {
		t.Fatal(err)
	}
}

// With concurrent changes, each sandbox is destroyed once and nothing leaks.
func TestTemplatesChangeDuringLeases(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.start(t, func(o *Options) { o.MaxSandboxes = 12 })
	stop, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var work sync.WaitGroup
	for i := range 6 {
		work.Go(func() {
			for stop.Err() == nil {
				name := fmt.Sprint("t", i%3)
				l, err := s.tryAcquire(t.Context(), func(r *Request) { r.Template, r.Wait = name, 300*time.Millisecond })
				if err != nil {
					if !errdefs.IsNotFound(err) && !errdefs.IsUnavailable(err) &&
						!strings.Contains(err.Error(), "capacity for another sandbox") {
						t.Errorf("Acquire(%s): %v, want NotFound, Unavailable or no capacity", name, err)
					}
					time.Sleep(time.Millisecond)
					continue
				}
				if err := s.End(t.Context(), l, Removed, i%2 == 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range 3 {
		work.Go(func() {
			for n := 0; stop.Err() == nil; n++ {
				tm := named(fmt.Sprint("t", i), n%3)
				tm.Spec.Limits.Pids += int64(n / 2 % 3)
				tm.Spec.Limits.MemoryBytes += int64(n/4%2) << 20
				if s.Put(tm); n%7 == 6 {
					s.Drop(tm.Name)
				}
				s.forgetRemovedTemplates()
				time.Sleep(3 * time.Millisecond)
			}
		})
	}
	work.Wait()
	for i := range 3 {
		s.Drop(fmt.Sprint("t", i))
	}
	s.Drop("default")
	eventually(t, "the capacity is free", func() bool {
		s.forgetRemovedTemplates()
		s.capacity.mu.Lock()
		used, bytes := s.capacity.used, s.capacity.bytes
		s.capacity.mu.Unlock()
		return used == 0 && bytes == 0 && len(s.templates.all()) == 0
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.usage) != 0 || len(s.leases) != 0 || s.waiting != 0 {
		t.Errorf("usage = %v, %d leases, %d waiting; want none", s.usage, len(s.leases), s.waiting)
	}
}

// hookGuest is a fake guest with a shell for each started hook.
type hookGuest struct {
	*fake.Guest
	mu     sync.Mutex
	base   wire.Base
	shells []wire.Shell
}

func (g *hookGuest) serve(conn net.Conn, op wire.Op, body json.RawMessage) bool {
	c := wire.NewConn(conn)
	g.mu.Lock()
	defer g.mu.Unlock()
	switch op {
	case wire.OpBase:
		_ = json.Unmarshal(body, &g.base)
		_ = c.Reply(nil)
	case wire.OpStart:
		var cmd wire.Command
		_ = json.Unmarshal(body, &cmd)
		sh := wire.Shell{ID: cmd.ID, Argv: cmd.Argv, StartedAt: time.Now()}
		g.shells = append(g.shells, sh)
		_ = c.Reply(sh)
	case wire.OpShells:
		_ = c.Reply(g.shells)
	case wire.OpPing:
		_ = c.Reply(wire.Pong{Version: wire.Version, Kill: "tag", Commands: len(g.shells)})
	default:
		return false
	}
	return true
}

func TestBackgroundHooksBecomeLeaseShells(t *testing.T) {
	w := newWorld(t)
	guests := map[string]*hookGuest{}
	var mu sync.Mutex
	serve := func(ctx context.Context, id string, conn net.Conn) {
		mu.Lock()
		g := guests[id]
		if g == nil {
			g = &hookGuest{Guest: &fake.Guest{}}
			guests[id] = g
		}
		mu.Unlock()
		c := &recorded{Conn: conn}
		req, err := wire.NewConn(c).ReadRequest(wire.HeaderTime)
		if err == nil && !g.serve(conn, req.Op, req.Body) {
			g.Serve(ctx, &recorded{Conn: conn, first: c.read, replay: true})
		}
	}
	s := w.start(t, func(o *Options) {
		o.Driver = fake.New(fake.Options{Host: w.host, Serve: serve})
		o.Templates[0].Env, o.Templates[0].User = map[string]string{"A": "b"}, "77"
		o.Templates[0].Warmup = []Hook{
			{Argv: []string{"true"}, Timeout: time.Minute},
			{Argv: []string{"server", "x"}, Background: true},
		}
	})
	l := s.acquire(t)
	rows, err := s.store.Shells(t.Context(), l.ID)
	if err != nil || len(rows) != 1 || rows[0].Argv[0] != "server" || rows[0].Caller != "me" {
		t.Fatalf("Shells = %+v, %v; want one that runs server for me", rows, err)
	}
	mu.Lock()
	base := guests[l.ID].base
	mu.Unlock()
	if base.Env["A"] != "b" || base.User != "77" {
		t.Errorf("base of the guest = %+v, want A=b and user 77", base)
	}
	if err := s.End(t.Context(), l, Removed, true); err != nil {
		t.Fatal(err)
	}
}

// recorded stores the bytes read from a stream, or replays them.
type recorded struct {
	net.Conn
	read, first []byte
	replay      bool
}

func (r *recorded) Read(p []byte) (int, error) {
	if r.replay && len(r.first) > 0 {
		n := copy(p, r.first)
		r.first = r.first[n:]
		return n, nil
	}
	n, err := r.Conn.Read(p)
	if !r.replay {
		r.read = append(r.read, p[:n]...)
	}
	return n, err
}

func TestFailedHookReportsOutput(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, func(o *Options) {
		o.Templates[0].Warmup = []Hook{{Argv: []string{"exit", "7"}, Timeout: time.Minute}}
	})
	eventually(t, "the failed warm-up is reported", func() bool {
		st := s.stats("default")
		return st.Failed > 0 && strings.Contains(st.LastError, "warm-up 1 (exit): exited with 7")
	})
	_, err := s.tryAcquire(t.Context())
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "warm-up") {
		t.Errorf("Acquire: %v, want Unavailable because of the warm-up", err)
	}
}
