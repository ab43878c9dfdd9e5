package server

import (
	"context"
	"errors"
	"maps"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

const (
	// hostTime is how long a connection waits for a host to take it.
	hostTime = 10 * time.Second
	// backlog is how many wait in the kernel: to one more than that nobody answers
	// for a second, so it has to hold all that a command opens at once.
	backlog = wire.MaxEgress
)

// proxy is where commands find the world, while the host wants that: a listener
// on loopback whose connections wait for streams of OpAccept. What is said on
// them is the host's business.
type proxy struct {
	conns *carrier

	switching sync.Mutex // held over a switch
	mu        sync.Mutex
	gate      *gate // nil: off
	env       map[string]string
}

// gate is the listener from one switch to the next.
type gate struct {
	conns *carrier
	ln    net.Listener
	done  chan struct{}
	hand  chan net.Conn // from those that wait for a host to those that wait for them
	group sync.WaitGroup
}

// egress switches the proxy.
func (s *Server) egress(e wire.Egress) (struct{}, error) {
	if f := checkEnv(e.Env); f != nil {
		return struct{}{}, f
	}
	if s.ctx.Err() != nil {
		return struct{}{}, wire.Failf(wire.Unavailable, "", "the sandbox is ending")
	}
	return struct{}{}, s.proxy.turn(e)
}

func (p *proxy) turn(e wire.Egress) error {
	p.switching.Lock()
	defer p.switching.Unlock()
	g := p.current()
	if !e.On {
		p.set(nil, nil)
		if g != nil {
			g.close()
		}
		return nil
	}
	if g == nil {
		ln, err := listenProxy()
		if err != nil {
			return err
		}
		g = &gate{conns: p.conns, ln: ln, done: make(chan struct{}), hand: make(chan net.Conn)}
		g.group.Go(g.accept)
	}
	env := proxyEnv()
	maps.Copy(env, e.Env)
	p.set(g, env)
	return nil
}

func (p *proxy) set(g *gate, env map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gate, p.env = g, env
}

// current is nil while the proxy is off.
func (p *proxy) current() *gate {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gate
}

// variables are what commands get to know of the proxy; not to be changed.
func (p *proxy) variables() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.env
}

// proxyEnv names the proxy to programs. curl reads http_proxy in small letters
// only, others either. all_proxy is for protocols without a variable of their
// own and names the same HTTP proxy, by CONNECT, though SOCKS is spoken on the
// port as well: Python's clients refuse to start at all with a socks proxy in
// the environment and no library for it (httpx), and curl, git, pip, npm, apt and
// go need none. Node's own fetch looks at them only if told to.
func proxyEnv() map[string]string {
	url := "http://127.0.0.1:" + proxyPort
	const direct = "localhost,127.0.0.1,::1"
	return map[string]string{
		"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": direct,
		"HTTP_PROXY": url, "HTTPS_PROXY": url, "ALL_PROXY": url, "NO_PROXY": direct,
		"NODE_USE_ENV_PROXY": "1",
	}
}

var proxyPort = strconv.Itoa(wire.ProxyPort)

func listenProxy() (net.Listener, error) {
	lc := net.ListenConfig{KeepAlive: -1}
	ln, err := lc.Listen(context.Background(), "tcp4", net.JoinHostPort("127.0.0.1", proxyPort))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, wire.Failf(wire.FailedPrecondition, "", "a command of the sandbox listens on port %s, where its proxy is to be: end that command first", proxyPort)
	}
	if err != nil {
		return nil, wire.Failf(wire.Internal, "", "listen for the sandbox's proxy: %v", err)
	}
	if raw, err := ln.(*net.TCPListener).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), backlog) }) // it only saves memory
	}
	return ln, nil
}

// accept takes connections while there is room for them. The others wait in the
// kernel.
func (g *gate) accept() {
	for {
		select {
		case g.conns.slots <- struct{}{}:
		case <-g.done:
			return
		}
		conn, err := g.ln.Accept()
		if err != nil {
			<-g.conns.slots
			select {
			case <-g.done:
				return
			case <-time.After(10 * time.Millisecond): // no descriptors: they come back
			}
			continue
		}
		if g.conns.add(conn) {
			g.group.Go(func() { g.offer(conn) })
		}
	}
}

// offer keeps a connection until a stream takes it.
func (g *gate) offer(conn net.Conn) {
	late := time.NewTimer(hostTime)
	defer late.Stop()
	select {
	case g.hand <- conn:
		return
	case <-late.C:
	case <-g.done:
	}
	g.conns.drop(conn)
}

// close ends the listener and every connection that came from it.
func (g *gate) close() {
	close(g.done)
	g.ln.Close()
	g.group.Wait()
	g.conns.end()
}

// stop switches the proxy off for good.
func (p *proxy) stop() {
	p.conns.close()
	_ = p.turn(wire.Egress{}) // off cannot fail
}
