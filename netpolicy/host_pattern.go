package netpolicy

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// kind says what a pattern is about.
type kind uint8

const (
	exact   kind = iota // one name
	below               // all names below one
	every               // all names
	single              // one address
	network             // a range of addresses
)

// pattern is a Host of a rule, or of an exception or a secret, in canonical form.
type pattern struct {
	kind  kind
	name  string // of exact; of below without "*."
	addr  netip.Addr
	block netip.Prefix
}

func parsePattern(s string) (pattern, error) {
	switch {
	case s == "":
		return pattern{}, errors.New(`is empty: write a name, "*.example.com", "*", an address or a range`)
	case s == "*":
		return pattern{kind: every}, nil
	case strings.Contains(s, "/"):
		return parseRange(s)
	case strings.Contains(s, "://"):
		return pattern{}, fmt.Errorf("%s is a URL: write its host alone", quoted(s))
	}
	rest, isBelow := strings.CutPrefix(s, "*.")
	if strings.Contains(rest, "*") {
		return pattern{}, fmt.Errorf(`%s has a * that is not its first part: write "*.example.com"`, quoted(s))
	}
	host, addr, err := CanonicalHost(rest)
	switch {
	case err != nil:
		return pattern{}, err
	case isBelow && addr.IsValid():
		return pattern{}, fmt.Errorf(`%s is about an address: write a range ("203.0.113.0/24")`, quoted(s))
	case isBelow:
		return pattern{kind: below, name: host}, nil
	case addr.IsValid():
		return pattern{kind: single, addr: addr}, nil
	}
	return pattern{kind: exact, name: host}, nil
}

func parseRange(s string) (pattern, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if strings.Contains(s, "://") {
			return pattern{}, fmt.Errorf("%s is a URL: write its host alone", quoted(s))
		}
		return pattern{}, fmt.Errorf(`%s is no range of addresses: write it as in "203.0.113.0/24"`, quoted(s))
	}
	p, err = canonicalRange(p)
	return pattern{kind: network, block: p}, err
}

// canonicalRange refuses bits behind the prefix: they are a typing error in the
// address or in the length, and nobody can tell in which.
func canonicalRange(p netip.Prefix) (netip.Prefix, error) {
	switch {
	case !p.IsValid():
		return p, errors.New("is no range of addresses")
	case p.Addr().Is4In6() && p.Bits() < 96:
		return p, fmt.Errorf("%s is about mapped IPv4 addresses: write them as IPv4", p)
	case p.Addr().Is4In6():
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if p != p.Masked() {
		return p, fmt.Errorf("%s has bits behind its prefix: write %s", p, p.Masked())
	}
	return p, nil
}

// matches compares with a canonical host. every is about names alone.
func (p *pattern) matches(host string, addr netip.Addr) bool {
	switch p.kind {
	case exact:
		return host == p.name
	case below:
		return !addr.IsValid() && isBelow(host, p.name)
	case every:
		return !addr.IsValid()
	case single:
		return addr == p.addr
	}
	return addr.IsValid() && p.block.Contains(addr)
}

// isBelow allocates nothing.
func isBelow(host, name string) bool {
	n := len(host) - len(name)
	return n > 1 && host[n-1] == '.' && host[n:] == name
}

func matchesAny(patterns []pattern, host string) bool {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		addr = netip.Addr{}
	}
	for i := range patterns {
		if patterns[i].matches(host, addr) {
			return true
		}
	}
	return false
}

// String is the pattern as a rule writes it.
func (p *pattern) String() string {
	switch p.kind {
	case exact:
		return p.name
	case below:
		return "*." + p.name
	case every:
		return "*"
	case single:
		return p.addr.String()
	}
	return p.block.String()
}
