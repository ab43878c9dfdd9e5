package netpolicy

import (
	"fmt"
	"net/netip"
)

// Private is an operator's exception: hosts that may be reached at addresses that are not public.
// Metadata services are excluded unless a range is exactly their address.
type Private struct {
	// Hosts lists names, all names below one ("*.example.com") or addresses. "*" is invalid: any
	// domain owner could point a name at the range.
	Hosts []string `json:"hosts"`
	// Ranges lists the addresses that these hosts may have, such as "10.1.0.0/16".
	Ranges []netip.Prefix `json:"ranges"`
}

// Guard refuses addresses that are not public. The zero value has no exceptions. It is safe for
// concurrent use.
type Guard struct {
	private []exception
}

type exception struct {
	hosts  []pattern
	ranges []netip.Prefix
}

// NewGuard returns a Guard with exceptions. An error is an *InvalidError that names the field.
func NewGuard(private []Private) (*Guard, error) {
	g := &Guard{}
	for i, p := range private {
		field := fmt.Sprintf("egress.private[%d]", i)
		if len(p.Hosts) == 0 {
			return nil, invalid(field+".hosts", "is empty: name the hosts that are reached there")
		}
		if len(p.Ranges) == 0 {
			return nil, invalid(field+".ranges", "is empty: name the addresses that the hosts have, as in \"10.1.0.0/16\"")
		}
		var e exception
		for j, h := range p.Hosts {
			one, err := parsePattern(h)
			switch {
			case err != nil:
				return nil, invalid(fmt.Sprintf("%s.hosts[%d]", field, j), "%v", err)
			case one.kind == every:
				return nil, invalid(fmt.Sprintf("%s.hosts[%d]", field, j), "is \"*\": name the hosts, for whoever has a name could lead it there")
			}
			e.hosts = append(e.hosts, one)
		}
		for j, r := range p.Ranges {
			one, err := canonicalRange(r)
			if err != nil {
				return nil, invalid(fmt.Sprintf("%s.ranges[%d]", field, j), "%v", err)
			}
			e.ranges = append(e.ranges, one)
		}
		g.private = append(g.private, e)
	}
	return g, nil
}

// Check returns nil if a connection for a host, in canonical form, may go to an address. The error
// is one line for the client. Call it for each address of each connection, also after a redirect.
func (g *Guard) Check(host string, a netip.Addr) error {
	if a.Zone() != "" || !a.IsValid() {
		return fmt.Errorf("%s has no address without a zone", host)
	}
	a = a.Unmap()
	why, metadata := notPublic(a)
	if why == "" || g.excepted(host, a, metadata) {
		return nil
	}
	if metadata {
		return fmt.Errorf("%s is at %s, %s: an operator can allow it in egress.private with the host and the range %s/%d alone", host, a, why, a, a.BitLen())
	}
	return fmt.Errorf("%s is at %s, %s: an operator can allow it in egress.private with the host and a range", host, a, why)
}

// excepted reports whether an exception covers a host and an address. For an address that embeds an
// IPv4 address, it must cover that one too.
func (g *Guard) excepted(host string, a netip.Addr, metadata bool) bool {
	if g == nil || !g.holds(host, a, metadata) {
		return false
	}
	inner, ok := carried(a)
	if !ok {
		return true
	}
	why, metadata := notPublic(inner)
	return why == "" || g.holds(host, inner, metadata)
}

func (g *Guard) holds(host string, a netip.Addr, metadata bool) bool {
	for i := range g.private {
		e := &g.private[i]
		if !matchesAny(e.hosts, host) {
			continue
		}
		for _, r := range e.ranges {
			if r.Contains(a) && (!metadata || r.IsSingleIP()) {
				return true
			}
		}
	}
	return false
}
