package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"
)

// Resolver finds a name's addresses. [net.Resolver] is one; it is called
// concurrently. A name ends with a dot, so that no search list is used.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// serverTime bounds one name server, where there is another one to ask.
const serverTime = 2 * time.Second

// NewResolver asks name servers, the first that answers; without any it is the
// host's own way, its file of hosts first. A server is an address with or without a port (53).
func NewResolver(servers []string) (Resolver, error) {
	if len(servers) == 0 {
		return hostsFirst{path: hostsFile, next: serverResolver(netip.AddrPort{})}, nil
	}
	all := &nameServers{each: serverTime}
	for i, s := range servers {
		at, err := netip.ParseAddrPort(s)
		if err != nil {
			var a netip.Addr
			if a, err = netip.ParseAddr(s); err == nil {
				at = netip.AddrPortFrom(a, 53)
			}
		}
		if err != nil || at.Port() == 0 {
			return nil, invalid(fmt.Sprintf("egress.resolver[%d]", i), "is no address of a name server: write 192.0.2.53 or 192.0.2.53:53")
		}
		all.list = append(all.list, serverResolver(at))
	}
	return all, nil
}

// serverResolver asks one server, or those of the host. A question that nobody
// waits for any more is not waited for by the resolver either, which it would
// be.
func serverResolver(at netip.AddrPort) *net.Resolver {
	var d net.Dialer
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		if at.IsValid() {
			address = at.String()
		}
		nc, err := d.DialContext(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { nc.Close() })
		}
		return nc, err
	}}
}

// nameServers are asked one after the other, first the one that answered last.
// That a name does not exist is an answer.
type nameServers struct {
	list []*net.Resolver
	each time.Duration // for one, where there is another one to ask
	good atomic.Int32  // index of the one that answered last
}

// LookupNetIP implements Resolver.
func (s *nameServers) LookupNetIP(ctx context.Context, network, host string) (found []netip.Addr, err error) {
	good := int(s.good.Load())
	for i := range s.list {
		at := (good + i) % len(s.list)
		one, cancel := ctx, context.CancelFunc(func() {})
		if i < len(s.list)-1 {
			one, cancel = context.WithTimeout(ctx, s.each)
		}
		found, err = s.list[at].LookupNetIP(one, network, host)
		cancel()
		if no, ok := errors.AsType[*net.DNSError](err); err == nil || ok && no.IsNotFound {
			s.good.Store(int32(at))
			return found, err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return found, err
}

// resolve finds the addresses of a host that may be connected to, the others
// left out: those that are not public, and those that check refuses. Where none
// is left, the refusal is about the first.
func (g *Gateway) resolve(ctx context.Context, host string, check func(netip.Addr) error) ([]netip.Addr, error) {
	found, err := g.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	var first error
	good := found[:0]
	for _, a := range found {
		err := g.checkAddress(host, a)
		if err == nil {
			err = check(a)
		}
		if err == nil {
			good = append(good, a)
		} else if first == nil {
			first = err
		}
	}
	if len(good) == 0 {
		return nil, denied(first.Error())
	}
	return good, nil
}

// lookup gives at least one address. An address is its own.
func (g *Gateway) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	answers, err := g.o.Resolver.LookupNetIP(ctx, "ip", host+".")
	var no *net.DNSError
	switch {
	case errors.As(err, &no) && no.IsNotFound, err == nil && len(answers) == 0:
		return nil, &refusal{http.StatusBadGateway, socksUnreachable, oneLine(host + " has no address: the name servers know none")}
	case err != nil && isTimeout(err):
		return nil, unreached("resolve "+host, context.DeadlineExceeded)
	case err != nil:
		// The error names the servers, which are not the sandbox's to know.
		g.log.DebugContext(ctx, "resolve", "host", host, "error", err)
		return nil, &refusal{http.StatusBadGateway, socksUnreachable, oneLine("resolve " + host + ": no usable answer from the name servers")}
	}
	found := make([]netip.Addr, 0, min(len(answers), maxAddresses))
	for _, a := range answers[:min(len(answers), maxAddresses)] {
		found = append(found, a.Unmap())
	}
	return found, nil
}
