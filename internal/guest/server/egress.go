package server

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

const (
	// acceptTimeout is how long a connection waits for a host to take it.
	acceptTimeout = 10 * time.Second
	// backlog is how many connections may wait in the kernel. The kernel drops any further one and
	// the client retries after a second, so the backlog must hold everything that a command opens
	// at once.
	backlog = wire.MaxEgress
)

// proxy is the commands' way to the network while the host enables it: a listener on loopback whose
// connections are handed to streams of OpAccept. The host interprets the data on them.
type proxy struct {
	conns *carrier

	switching sync.Mutex // held while the proxy is switched
	mu        sync.Mutex
	listener  *proxyListener // nil: off
	env       map[string]string
}

// proxyListener is the listener between two switches.
type proxyListener struct {
	conns   *carrier
	ln      net.Listener
	done    chan struct{}
	pending chan net.Conn // from connections that wait for a host to streams that wait for a connection
	group   sync.WaitGroup
}

// setEgress switches the proxy on or off.
func (s *Server) setEgress(e wire.Egress) (struct{}, error) {
	if f := checkEnv(e.Env); f != nil {
		return struct{}{}, f
	}
	if s.ctx.Err() != nil {
		return struct{}{}, errShutDown()
	}
	return struct{}{}, s.proxy.apply(e)
}

func (p *proxy) apply(e wire.Egress) error {
	p.switching.Lock()
	defer p.switching.Unlock()
	g := p.activeListener()
	if !e.On {
		p.store(nil, nil)
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
		g = &proxyListener{conns: p.conns, ln: ln, done: make(chan struct{}), pending: make(chan net.Conn)}
		g.group.Go(g.accept)
	}
	env := proxyEnv()
	maps.Copy(env, e.Env)
	p.store(g, env)
	return nil
}

func (p *proxy) store(g *proxyListener, env map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener, p.env = g, env
}

// activeListener returns nil while the proxy is off.
func (p *proxy) activeListener() *proxyListener {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.listener
}

// environment returns the variables that tell commands about the proxy. The caller must not modify
// the map.
func (p *proxy) environment() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.env
}

// proxyEnv returns the variables that name the proxy. curl reads only the lower-case http_proxy,
// other programs only the upper-case one. all_proxy is for protocols without their own variable. It
// names the same HTTP proxy although the port speaks SOCKS too: Python's httpx refuses to start if
// all_proxy is a SOCKS URL and no SOCKS library is installed; curl, git, pip, npm, apt and go do
// not need SOCKS. Node's fetch uses the proxy only with NODE_USE_ENV_PROXY.
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
		return nil, wire.Failf(wire.FailedPrecondition, "",
			"a command listens on port %s, which the sandbox's proxy needs: end that command first", proxyPort)
	}
	if err != nil {
		return nil, wire.Failf(wire.Internal, "", "listen for the sandbox's proxy: %v", err)
	}
	if raw, err := ln.(*net.TCPListener).SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Listen(int(fd), backlog) }) // on failure the shorter backlog stays
	}
	return ln, nil
}

// accept takes connections while there are free slots. The others wait in the kernel.
func (g *proxyListener) accept() {
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
			case <-time.After(10 * time.Millisecond): // out of descriptors: try again
			}
			continue
		}
		if g.conns.add(conn) {
			g.group.Go(func() { g.awaitStream(context.Background(), conn) })
		}
	}
}

// awaitStream holds a connection until a stream takes it. It drops the connection when ctx ends.
func (g *proxyListener) awaitStream(ctx context.Context, conn net.Conn) {
	late := time.NewTimer(acceptTimeout)
	defer late.Stop()
	select {
	case g.pending <- conn:
		return
	case <-late.C:
	case <-g.done:
	case <-ctx.Done():
	}
	g.conns.drop(conn)
}

// close ends the listener and every connection that came from it.
func (g *proxyListener) close() {
	close(g.done)
	g.ln.Close()
	g.group.Wait()
	g.conns.closeAll()
}

// stop switches the proxy off for good.
func (p *proxy) stop() {
	p.conns.close()
	_ = p.apply(wire.Egress{}) // switching off cannot fail
}

// serveAccept waits for a connection of the proxy and carries it on the stream. A stream that the
// host has closed gets none.
func (s *Server) serveAccept(ctx context.Context, c *wire.Conn) error {
	g := s.proxy.activeListener()
	if g == nil {
		return errProxyOff()
	}
	heard := make(chan error, 1)
	go func() { heard <- c.AwaitPeer() }()
	var conn net.Conn
	select {
	case conn = <-g.pending:
	case err := <-heard:
		heard <- err
	case <-g.done:
	case <-ctx.Done():
	}
	c.SetReadDeadline(time.Unix(1, 0)) //nolint:errcheck // closed: that is heard as well
	err := <-heard
	there := errors.Is(err, os.ErrDeadlineExceeded)
	if there {
		err = c.SetReadDeadline(time.Time{})
	}
	switch {
	case conn == nil && !there && err == nil:
		return wire.Failf(wire.InvalidArgument, "", "unexpected data on a stream that waits for a connection")
	case conn == nil && !there:
		return nil // the host has closed the stream
	case conn == nil:
		return errProxyOff()
	case !there || err != nil:
		g.awaitStream(ctx, conn)
		return nil //nolint:nilerr // the next stream gets the connection
	}
	if err = g.conns.carry(c, conn); err != errCarried {
		g.awaitStream(ctx, conn)
	}
	return err
}

func errProxyOff() error {
	return wire.Failf(wire.FailedPrecondition, "", "the sandbox's proxy is disabled")
}
