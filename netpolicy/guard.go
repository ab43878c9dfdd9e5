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
			return nil, invalid(field+".hosts", "is empty: list the hosts with these addresses")
		}
		if len(p.Ranges) == 0 {
			return nil, invalid(field+".ranges", "is empty: list the addresses of the hosts, as in \"10.1.0.0/16\"")
		}
		var e exception
		for j, h := range p.Hosts {
			one, err := parsePattern(h)
			switch {
			case err != nil:
				return nil, invalid(fmt.Sprintf("%s.hosts[%d]", field, j), "%v", err)
			case one.kind == anyName:
				return nil, invalid(fmt.Sprintf("%s.hosts[%d]", field, j),
					"is \"*\": name the hosts, because any domain owner could point a name at the range")
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
	if why == "" || g.hasException(host, a, metadata) {
		return nil
	}
	if metadata {
		return fmt.Errorf("%s is at %s, %s: an operator can allow it in egress.private with the host and exactly the "+
			"range %s/%d", host, a, why, a, a.BitLen())
	}
	return fmt.Errorf("%s is at %s, %s: an operator can allow it in egress.private with the host and a range", host, a,
		why)
}

// hasException reports whether an exception covers a host and an address. For an address that
// embeds an IPv4 address, it must cover that one too.
func (g *Guard) hasException(host string, a netip.Addr, metadata bool) bool {
	if g == nil || !g.matchesException(host, a, metadata) {
		return false
	}
	inner, ok := embeddedIPv4(a)
	if !ok {
		return true
	}
	why, metadata := notPublic(inner)
	return why == "" || g.matchesException(host, inner, metadata)
}

func (g *Guard) matchesException(host string, a netip.Addr, metadata bool) bool {
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

// specialRange is a range outside the public internet.
type specialRange struct {
	prefix netip.Prefix
	what   string
}

// specialRanges are the ranges of IANA's special-purpose address registries
// (iana-ipv4-special-registry, iana-ipv6-special-registry: RFC 6890 and its updates), the multicast
// registries, and RFCs that withdrew a range. Some reachable ranges (AS112, 6to4 relays, NAT64) are
// included, because the nearest network decides where they lead.
var specialRanges = []specialRange{
	{netip.MustParsePrefix("0.0.0.0/8"), "this host's own network"},
	{netip.MustParsePrefix("10.0.0.0/8"), "a private address"},
	{netip.MustParsePrefix("100.64.0.0/10"), "an address shared behind a carrier's NAT"},
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("172.16.0.0/12"), "a private address"},
	{netip.MustParsePrefix("192.0.0.0/24"), "an address of IETF protocols"},
	{netip.MustParsePrefix("192.0.2.0/24"), "an address for documentation"},
	{netip.MustParsePrefix("192.31.196.0/24"), "an anycast address of AS112"},
	{netip.MustParsePrefix("192.52.193.0/24"), "an address of AMT relays"},
	{netip.MustParsePrefix("192.88.99.0/24"), "an address of 6to4 relays"},
	{netip.MustParsePrefix("192.168.0.0/16"), "a private address"},
	{netip.MustParsePrefix("192.175.48.0/24"), "an anycast address of AS112"},
	{netip.MustParsePrefix("198.18.0.0/15"), "an address for benchmarks"},
	{netip.MustParsePrefix("198.51.100.0/24"), "an address for documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "an address for documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved or broadcast address"},

	{netip.MustParsePrefix("::1/128"), "a loopback address"},
	{netip.MustParsePrefix("::/96"), "an IPv4-compatible or unspecified address"},
	{netip.MustParsePrefix("::ffff:0:0:0/96"), "an IPv4-translated address"},
	{netip.MustParsePrefix("64:ff9b::/96"), "an IPv4 address behind NAT64"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "an IPv4 address behind NAT64"},
	{netip.MustParsePrefix("100::/64"), "an address that discards"},
	{netip.MustParsePrefix("100:0:0:1::/64"), "a dummy prefix"},
	{netip.MustParsePrefix("2001::/32"), "a Teredo address"},
	{netip.MustParsePrefix("2001::/23"), "an address of IETF protocols"},
	{netip.MustParsePrefix("2001:db8::/32"), "an address for documentation"},
	{netip.MustParsePrefix("2002::/16"), "an IPv4 address in 6to4"},
	{netip.MustParsePrefix("2620:4f:8000::/48"), "an anycast address of AS112"},
	{netip.MustParsePrefix("3fff::/20"), "an address for documentation"},
	{netip.MustParsePrefix("5f00::/16"), "a segment routing address"},
	{netip.MustParsePrefix("fc00::/7"), "a unique local address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("fec0::/10"), "a site-local address"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},
}

// global is the allocated part of IPv6. The rest is reserved.
var global = netip.MustParsePrefix("2000::/3")

// metadataServices are addresses at which clouds give a machine its credentials. Most are also in
// the ranges above, which has no effect: a range of an exception does not cover them.
var metadataServices = map[netip.Addr]bool{
	netip.MustParseAddr("169.254.169.254"):    true, // EC2, GCE, Azure, OpenStack and most others
	netip.MustParseAddr("169.254.169.253"):    true, // EC2's resolver
	netip.MustParseAddr("169.254.169.123"):    true, // EC2's clock
	netip.MustParseAddr("169.254.170.2"):      true, // ECS: credentials of a task
	netip.MustParseAddr("169.254.170.23"):     true, // EKS: credentials of a pod
	netip.MustParseAddr("169.254.42.42"):      true, // Scaleway
	netip.MustParseAddr("169.254.0.23"):       true, // Tencent
	netip.MustParseAddr("100.100.100.200"):    true, // Alibaba
	netip.MustParseAddr("168.63.129.16"):      true, // Azure's wire server
	netip.MustParseAddr("192.0.0.192"):        true, // Oracle, the old one
	netip.MustParseAddr("fd00:ec2::254"):      true, // EC2
	netip.MustParseAddr("fd00:ec2::253"):      true, // EC2's resolver
	netip.MustParseAddr("fd00:ec2::123"):      true, // EC2's clock
	netip.MustParseAddr("fd00:ec2::23"):       true, // EKS
	netip.MustParseAddr("fd20:ce::254"):       true, // GCE
	netip.MustParseAddr("fd00:42::42"):        true, // Scaleway
	netip.MustParseAddr("fe80::a9fe:a9fe"):    true, // OpenStack
	netip.MustParseAddr("fd00:c1::a9fe:a9fe"): true, // Oracle
}

// notPublic describes why an address is not public, or returns "". metadata reports whether the
// address, or the IPv4 address embedded in it, is one of a metadata service.
func notPublic(a netip.Addr) (what string, metadata bool) {
	if inner, ok := embeddedIPv4(a); ok && metadataServices[inner] || metadataServices[a] {
		return "an address of a cloud's metadata service", true
	}
	for i := range specialRanges {
		if specialRanges[i].prefix.Contains(a) {
			return specialRanges[i].what, false
		}
	}
	if a.Is6() && !global.Contains(a) {
		return "a reserved address", false
	}
	return "", false
}

// embeddedIPv4 returns the IPv4 address that an IPv6 address leads to: NAT64 (RFC 6052, RFC 8215),
// 6to4 (RFC 3056), IPv4-translated (RFC 2765) and IPv4-compatible addresses. Teredo addresses (RFC
// 4380) contain the client's address inverted.
func embeddedIPv4(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() || a.IsLoopback() || a.IsUnspecified() {
		return netip.Addr{}, false
	}
	b := a.As16()
	for _, c := range embeddings {
		if c.prefix.Contains(a) {
			v4 := [4]byte(b[c.at : c.at+4])
			for i := range v4 {
				v4[i] ^= c.mask
			}
			return netip.AddrFrom4(v4), true
		}
	}
	return netip.Addr{}, false
}

var embeddings = []struct {
	prefix netip.Prefix
	at     int
	mask   byte
}{
	{netip.MustParsePrefix("::/96"), 12, 0},
	{netip.MustParsePrefix("::ffff:0:0:0/96"), 12, 0},
	{netip.MustParsePrefix("64:ff9b::/96"), 12, 0},
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12, 0},
	{netip.MustParsePrefix("2001::/32"), 12, 0xff},
	{netip.MustParsePrefix("2002::/16"), 2, 0},
}
