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

// Resolver finds a name's addresses. [net.Resolver] implements it. Calls are concurrent. The name
// ends with a dot, so that no search list applies.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// serverTime limits one name server if there are others to try.
const serverTime = 2 * time.Second

// NewResolver returns a resolver that asks name servers until one answers. A server is an address,
// with an optional port (default: 53). Without servers, the resolver uses the host's hosts file and
// name servers.
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
			return nil, invalid(fmt.Sprintf("egress.resolver[%d]", i),
				"must be a name server's address, such as 192.0.2.53 or 192.0.2.53:53")
		}
		all.list = append(all.list, serverResolver(at))
	}
	return all, nil
}

// serverResolver returns a resolver for one name server, or for the host's if at is invalid. It
// closes the connection when the context ends, because net.Resolver would otherwise wait for the
// answer.
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

// nameServers asks name servers in turn, starting with the one that answered last. "No such name"
// is an answer.
type nameServers struct {
	list []*net.Resolver
	each time.Duration // time for one, if there are others to try
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

// resolve returns the addresses of a host that may be connected to. It omits addresses that are not
// public and those that check refuses. If none remains, the error is the refusal of the first.
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

// lookup returns at least one address of a host. The host may be an address.
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
		return nil, &refusal{http.StatusBadGateway, socksUnreachable,
			oneLine(host + " has no address according to the name servers")}
	case err != nil && isTimeout(err):
		return nil, unreached("resolve "+host, context.DeadlineExceeded)
	case err != nil:
		// Do not return the error: it contains the name servers' addresses.
		g.log.DebugContext(ctx, "failed to resolve", "host", host, "error", err)
		return nil, &refusal{http.StatusBadGateway, socksUnreachable,
			oneLine("resolve " + host + ": no usable answer from the name servers")}
	}
	found := make([]netip.Addr, 0, min(len(answers), maxAddresses))
	for _, a := range answers[:min(len(answers), maxAddresses)] {
		found = append(found, a.Unmap())
	}
	return found, nil
}
