package netpolicy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// ownTime is how long the list of this machine's addresses is cached.
const ownTime = 5 * time.Second

// checkAddress refuses what the guard refuses, and the public addresses of this machine.
// Connections to those would reach services that a firewall hides from others.
func (g *Gateway) checkAddress(host string, a netip.Addr) error {
	if err := g.guard.Check(host, a); err != nil {
		return err
	}
	if g.isOwn(a) && !g.guard.hasException(host, a, false) {
		return fmt.Errorf("%s is at %s, an address of this machine: an operator can allow it in egress.private with the "+
			"host and a range", host, a)
	}
	return nil
}

func (g *Gateway) isOwn(a netip.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if time.Since(g.ownAt) > ownTime {
		g.own = map[netip.Addr]bool{}
		all, err := net.InterfaceAddrs()
		if err != nil {
			g.log.Warn("failed to list this machine's addresses", "error", err)
		}
		for _, one := range all {
			if n, ok := one.(*net.IPNet); ok {
				if have, ok := netip.AddrFromSlice(n.IP); ok {
					g.own[have.Unmap()] = true
				}
			}
		}
		g.ownAt = time.Now()
	}
	return g.own[a]
}

// dial connects to the host of a decision. It resolves the name each time and tries the checked
// addresses in order. Errors are of type *refusal.
func (s *Session) dial(ctx context.Context, d Decision) (*net.TCPConn, error) {
	addrs, err := s.g.resolve(ctx, d.Host, func(a netip.Addr) error { return s.checkResolved(d, a) })
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(s.g.o.Limits.DialTime)
	var first error
	for i, a := range addrs {
		// The remaining addresses share the remaining time.
		share := time.Until(end) / time.Duration(len(addrs)-i)
		nc, err := s.g.dialOne(ctx, netip.AddrPortFrom(a, uint16(d.Port)), share)
		if err == nil {
			return nc, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, unreached("connect to "+net.JoinHostPort(d.Host, strconv.Itoa(d.Port)), first)
}

func (g *Gateway) dialOne(ctx context.Context, to netip.AddrPort, most time.Duration) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	nc, err := g.dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return nc.(*net.TCPConn), nil
}
