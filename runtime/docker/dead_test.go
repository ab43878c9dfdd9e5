//go:build integration

package docker

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// proxy forwards between a driver and the engine. While it is stopped, the engine is dead for
// this driver and alive for all others.
type proxy struct {
	path, engine string

	mu    sync.Mutex
	ln    net.Listener
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// behindProxy returns a host whose engine is reached through a proxy that can stop.
func behindProxy(t *testing.T) (host, *proxy) {
	t.Helper()
	h := newHost(t)
	engine, ok := strings.CutPrefix(h.engine, "unix://")
	if !ok {
		t.Fatalf("%s is %s, want a unix socket", envEngine, h.engine)
	}
	p := &proxy{path: filepath.Join(h.dir, "engine.sock"), engine: engine}
	h.engine = "unix://" + p.path
	p.start(t)
	t.Cleanup(p.stop)
	return h, p
}

func (p *proxy) start(t *testing.T) {
	t.Helper()
	ln, err := net.Listen("unix", p.path)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ln, p.conns = ln, map[net.Conn]bool{}
	p.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.join(c) })
		}
	})
}

// join copies in both directions and closes both connections when one copy ends.
func (p *proxy) join(c net.Conn) {
	defer func() { _ = c.Close() }()
	e, err := net.Dial("unix", p.engine)
	if err != nil {
		return
	}
	defer func() { _ = e.Close() }()
	p.mu.Lock()
	if p.ln == nil {
		p.mu.Unlock()
		return
	}
	p.conns[c], p.conns[e] = true, true
	p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = io.Copy(e, c); _ = e.Close() })
	_, _ = io.Copy(c, e)
	_ = c.Close()
	wg.Wait()
}

func (p *proxy) stop() {
	p.mu.Lock()
	if p.ln != nil {
		_ = p.ln.Close()
		for c := range p.conns {
			_ = c.Close()
		}
	}
	p.ln = nil
	p.mu.Unlock()
	p.wg.Wait()
}

func TestDeadEngineIsUnavailable(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			h, p := behindProxy(t)
			d := h.open(t, mode)
			s := h.spec(t)
			box := create(t, d, s)
			ask(t, box, "/proc/self/status")
			p.stop()
			_, listErr := d.List(t.Context(), s.Owner)
			_, adoptErr := d.Adopt(t.Context(), s.ID)
			other := h.spec(t)
			other.Owner = s.Owner
			_, createErr := d.Create(t.Context(), other)
			for what, err := range map[string]error{
				"list": listErr, "adopt": adoptErr, "create": createErr,
				"remove":         d.Remove(t.Context(), "t-some-other-id"),
				"destroy":        box.Destroy(t.Context()),
				"destroy, again": box.Destroy(t.Context()),
			} {
				if !errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) {
					t.Errorf("%s: %v; want Unavailable and not NotFound", what, err)
				}
			}
			if mode == ModeLocal {
				ended(t, box) // killed without the engine
			} else {
				select {
				case <-box.Done():
					t.Error("a sandbox ended because its engine did not answer, want it running")
				default:
				}
			}
			p.start(t)
			if got := ids(t, d, s.Owner); !slices.Equal(got, []string{s.ID}) {
				t.Errorf("listed afterwards: %q, want %s alone", got, s.ID)
			}
			if err := box.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
			ended(t, box)
			nothingLeft(t, d, s)
		})
	}
}

func TestSandboxOutlivesEngineButStreamsDoNot(t *testing.T) {
	h, p := behindProxy(t)
	d := h.open(t, ModeStdio)
	s := h.spec(t)
	box := create(t, d, s)
	conn, err := box.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.stop()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) ||
		errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read from a stream that was cut: %v; want an error other than EOF and timeout", err)
	}
	_ = conn.Close()
	p.start(t)
	if got := ask(t, box, "/proc/self/status"); !strings.Contains(got, "Pid:") {
		t.Errorf("answer after the engine came back = %q, want it to contain %q", got, "Pid:")
	}
	if _, err := d.api.ContainerKill(t.Context(), containerName(s.ID), client.ContainerKillOptions{}); err != nil {
		t.Fatal(err)
	}
	ended(t, box)
}

func TestStreamSurvivesEngineOutage(t *testing.T) {
	h, p := behindProxy(t)
	d := h.open(t, ModeStdio)
	box := create(t, d, h.spec(t))
	conn, err := box.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	const path = "/proc/self/status"
	for _, piece := range []string{path[:3], path[3:] + "\n"} {
		if _, err := io.WriteString(conn, piece); err != nil {
			t.Fatal(err)
		}
		p.stop()
		p.start(t)
	}
	got, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(got), "Pid:") {
		t.Errorf("answer over a stream that was cut twice = %q, %v; want %q in it and no error", got, err, "Pid:")
	}
}

func TestManySandboxesAtOnce(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeAuto)
	if err := d.Prepare(t.Context(), h.image(t)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	specs := make([]runtime.Spec, 0, 8)
	for range 8 {
		s := h.spec(t)
		specs = append(specs, s)
		wg.Go(func() {
			box, err := d.Create(t.Context(), s)
			if err != nil {
				t.Error(err)
				return
			}
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					if err := box.Destroy(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
		})
	}
	wg.Wait()
	for _, s := range specs {
		nothingLeft(t, d, s)
	}
}
