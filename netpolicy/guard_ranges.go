package netpolicy

import "net/netip"

// special is a range that is no part of the public internet.
type special struct {
	prefix netip.Prefix
	what   string
}

// specials are those of IANA's special-purpose address registries
// (iana-ipv4-special-registry, iana-ipv6-special-registry: RFC 6890 and what
// changed it), of the multicast registries and of RFCs that withdrew a range.
// Some that are reachable (AS112, 6to4's relays, NAT64) stand here because they
// lead to whatever the nearest network says.
var specials = []special{
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

// global is all that IANA has given out of IPv6; the rest is reserved.
var global = netip.MustParsePrefix("2000::/3")

// metadataServices are where clouds tell a machine its credentials. Most lie in
// ranges above; that does not matter, since no range of an exception covers them.
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

// notPublic says what an address is that is not public, and whether it, or the
// IPv4 address that it carries, is one of a metadata service.
func notPublic(a netip.Addr) (what string, metadata bool) {
	if inner, ok := carried(a); ok && metadataServices[inner] || metadataServices[a] {
		return "an address of a cloud's metadata service", true
	}
	for i := range specials {
		if specials[i].prefix.Contains(a) {
			return specials[i].what, false
		}
	}
	if a.Is6() && !global.Contains(a) {
		return "a reserved address", false
	}
	return "", false
}

// carried is the IPv4 address that an IPv6 address leads to: NAT64 (RFC 6052,
// RFC 8215), 6to4 (RFC 3056), IPv4-translated (RFC 2765) and -compatible ones.
// The client's address in Teredo (RFC 4380) stands there inverted.
func carried(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() || a.IsLoopback() || a.IsUnspecified() {
		return netip.Addr{}, false
	}
	b := a.As16()
	for _, c := range carriers {
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

var carriers = []struct {
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
