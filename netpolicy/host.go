package netpolicy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Limits of names in bytes (RFC 1035, without the root's dot), and of unchecked input.
const (
	maxName  = 253
	maxLabel = 63
	maxHost  = 1024
)

// CanonicalHost returns the form of a host in which rules are compared: a name in lower-case ASCII
// without a final dot, or an address, which is then valid. An IPv6 address may be in brackets. An
// IPv4 address mapped into IPv6 becomes that IPv4 address.
//
// It returns an error for input that another program could read differently: a user before the
// host, a port after it, percent signs, zones, spaces, and all numeric forms of an address
// ("2130706433", "0177.0.0.1", "127.1").
func CanonicalHost(s string) (string, netip.Addr, error) {
	host, addr, err := canonicalize(s)
	if err != nil {
		return "", netip.Addr{}, fmt.Errorf("invalid host %s: %w", quoted(s), err)
	}
	return host, addr, nil
}

func canonicalize(s string) (string, netip.Addr, error) {
	var none netip.Addr
	if s == "" {
		return "", none, errors.New("it is empty")
	}
	if len(s) > maxHost {
		return "", none, errors.New("it is too long")
	}
	if inner, ok := strings.CutPrefix(s, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		if !ok || !strings.Contains(inner, ":") {
			return "", none, errors.New("it has brackets but is not an IPv6 address")
		}
		return parseAddress(inner)
	}
	ascii, err := checkCharacters(s)
	if err != nil {
		return "", none, err
	}
	if strings.Contains(s, ":") {
		return parseAddress(s)
	}
	s = strings.ToLower(s)
	if !ascii || strings.Contains(s, "xn--") {
		if s, err = idna.Lookup.ToASCII(s); err != nil {
			return "", none, errors.New("it is not a valid internationalised name")
		}
	}
	s = strings.TrimSuffix(s, ".")
	if endsInNumber(s) {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return "", none, errors.New("it ends in a number but is not a four-part IPv4 address")
		}
		return a.String(), a, nil
	}
	return s, none, checkName(s)
}

// parseAddress parses an IPv6 address.
func parseAddress(s string) (string, netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return "", netip.Addr{}, errors.New("it is not an IP address: remove the port, if any")
	case a.Zone() != "":
		return "", netip.Addr{}, errors.New("it has a zone")
	}
	a = a.Unmap()
	return a.String(), a, nil
}

// checkCharacters refuses characters that have a meaning in a URL. It reports whether s is ASCII.
func checkCharacters(s string) (bool, error) {
	ascii := true
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 0x80:
			ascii = false
		case c <= ' ' || c == 0x7f:
			return false, errors.New("it contains spaces or control characters")
		case c == '@':
			return false, errors.New("it contains a user: remove it")
		case c == '%':
			return false, errors.New("it contains a percent sign or a zone")
		case !isNameByte(c) && c != '.' && c != ':':
			return false, fmt.Errorf("it contains the invalid character %q", rune(c))
		}
	}
	return ascii, nil
}

// isNameByte reports whether c may be in a name. RFC 952 has no underscores, but many names in use
// do.
func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// endsInNumber implements the WHATWG URL standard's check of this name. Programs that follow the
// standard read such a host as an IPv4 address; others resolve it as a name.
func endsInNumber(s string) bool {
	last := s[strings.LastIndexByte(s, '.')+1:]
	if last == "" {
		return false
	}
	digits, set := last, "0123456789"
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		digits, set = hex, "0123456789abcdef"
	}
	return strings.Trim(digits, set) == ""
}

func checkName(s string) error {
	if s == "" {
		return errors.New("it is empty")
	}
	if len(s) > maxName {
		return fmt.Errorf("it is longer than %d bytes", maxName)
	}
	for rest, more := s, true; more; {
		var label string
		label, rest, more = strings.Cut(rest, ".")
		switch {
		case label == "":
			return errors.New("it has an empty part")
		case len(label) > maxLabel:
			return fmt.Errorf("a part is longer than %d bytes", maxLabel)
		case strings.ContainsFunc(label, func(c rune) bool { return c >= 0x80 || !isNameByte(byte(c)) }):
			return errors.New("a part contains characters other than letters, digits, hyphens and underscores")
		case label[0] == '-' || label[len(label)-1] == '-':
			return errors.New("a part starts or ends with a hyphen")
		}
	}
	return nil
}

// quoted returns untrusted text as one quoted line of ASCII of limited length.
func quoted(s string) string {
	const most = 100
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "..."
	}
	return strconv.QuoteToASCII(s)
}

// kind is the kind of a pattern.
type kind uint8

const (
	exactName    kind = iota // one name
	subdomains               // all names below one
	anyName                  // all names
	oneAddress               // one address
	addressRange             // a range of addresses
)

// pattern is the canonical host of a rule, exception or secret.
type pattern struct {
	kind  kind
	name  string // of exactName; of subdomains without "*."
	addr  netip.Addr
	block netip.Prefix
}

func parsePattern(s string) (pattern, error) {
	switch {
	case s == "":
		return pattern{}, errors.New(`is empty: write a name, "*.example.com", "*", an address or a range`)
	case s == "*":
		return pattern{kind: anyName}, nil
	case strings.Contains(s, "/"):
		return parseRange(s)
	case strings.Contains(s, "://"):
		return pattern{}, fmt.Errorf("%s is a URL: write only its host", quoted(s))
	}
	rest, isBelow := strings.CutPrefix(s, "*.")
	if strings.Contains(rest, "*") {
		return pattern{}, fmt.Errorf(`%s can contain * only as its first part, as in "*.example.com"`, quoted(s))
	}
	host, addr, err := canonicalize(rest)
	switch {
	case err != nil:
		return pattern{}, fmt.Errorf("%s is not a valid host: %w", quoted(rest), err)
	case isBelow && addr.IsValid():
		return pattern{}, fmt.Errorf(`%s has a * before an address: write a range ("203.0.113.0/24")`, quoted(s))
	case isBelow:
		return pattern{kind: subdomains, name: host}, nil
	case addr.IsValid():
		return pattern{kind: oneAddress, addr: addr}, nil
	}
	return pattern{kind: exactName, name: host}, nil
}

func parseRange(s string) (pattern, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		if strings.Contains(s, "://") {
			return pattern{}, fmt.Errorf("%s is a URL: write only its host", quoted(s))
		}
		return pattern{}, fmt.Errorf(`%s is not an address range such as "203.0.113.0/24"`, quoted(s))
	}
	p, err = canonicalRange(p)
	return pattern{kind: addressRange, block: p}, err
}

// canonicalRange refuses bits after the prefix. They are a typing error in either the address or
// the length.
func canonicalRange(p netip.Prefix) (netip.Prefix, error) {
	switch {
	case !p.IsValid():
		return p, errors.New("is not an address range")
	case p.Addr().Is4In6() && p.Bits() < 96:
		return p, fmt.Errorf("%s is a range of mapped IPv4 addresses: write it as IPv4", p)
	case p.Addr().Is4In6():
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	if p != p.Masked() {
		return p, fmt.Errorf("%s has bits set after its prefix: write %s", p, p.Masked())
	}
	return p, nil
}

// matches reports whether the pattern matches a canonical host. * matches names only.
func (p *pattern) matches(host string, addr netip.Addr) bool {
	switch p.kind {
	case exactName:
		return host == p.name
	case subdomains:
		return !addr.IsValid() && isBelow(host, p.name)
	case anyName:
		return !addr.IsValid()
	case oneAddress:
		return addr == p.addr
	default:
		return addr.IsValid() && p.block.Contains(addr)
	}
}

// isBelow reports whether host is below name. It allocates nothing.
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

// String returns the pattern as written in a rule.
func (p *pattern) String() string {
	switch p.kind {
	case exactName:
		return p.name
	case subdomains:
		return "*." + p.name
	case anyName:
		return "*"
	case oneAddress:
		return p.addr.String()
	default:
		return p.block.String()
	}
}
