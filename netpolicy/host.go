package netpolicy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Bounds of names, in bytes (RFC 1035, without the root's dot), and of what is
// looked at before it is known to be one.
const (
	maxName  = 253
	maxLabel = 63
	maxHost  = 1024
)

// CanonicalHost gives the one form of a host that rules are compared with: a
// name in lower-case ASCII without its last dot, or an address, which then is
// valid. An IPv6 address may stand in brackets; one that is an IPv4 address
// mapped into IPv6 is that IPv4 address.
//
// What another program could read as something else is an error: a user before
// the host, a port after it, percent signs, zones, spaces, and all the ways to
// write an address as a number ("2130706433", "0177.0.0.1", "127.1").
func CanonicalHost(s string) (string, netip.Addr, error) {
	host, addr, err := canonical(s)
	if err != nil {
		return "", netip.Addr{}, fmt.Errorf("%s is no host: %w", quoted(s), err)
	}
	return host, addr, nil
}

func canonical(s string) (string, netip.Addr, error) {
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
			return "", none, errors.New("brackets are for IPv6 addresses")
		}
		return address(inner)
	}
	ascii, err := plain(s)
	if err != nil {
		return "", none, err
	}
	if strings.Contains(s, ":") {
		return address(s)
	}
	s = strings.ToLower(s)
	if !ascii || strings.Contains(s, "xn--") {
		if s, err = idna.Lookup.ToASCII(s); err != nil {
			return "", none, errors.New("it is no internationalised name")
		}
	}
	s = strings.TrimSuffix(s, ".")
	if endsInNumber(s) {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return "", none, errors.New("it ends in a number and is no address of four decimal parts")
		}
		return a.String(), a, nil
	}
	return s, none, checkName(s)
}

// address reads an IPv6 address.
func address(s string) (string, netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return "", netip.Addr{}, errors.New("it is no address; a port does not belong to a host")
	case a.Zone() != "":
		return "", netip.Addr{}, errors.New("it has a zone")
	}
	a = a.Unmap()
	return a.String(), a, nil
}

// plain looks for characters that end a host, or mean something, in a URL. It
// says whether all are ASCII.
func plain(s string) (bool, error) {
	ascii := true
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 0x80:
			ascii = false
		case c <= ' ' || c == 0x7f:
			return false, errors.New("it has spaces or control characters")
		case c == '@':
			return false, errors.New("a user does not belong to a host")
		case c == '%':
			return false, errors.New("percent signs and zones do not belong to a host")
		case !isNameByte(c) && c != '.' && c != ':':
			return false, fmt.Errorf("the character %q does not belong to a host", rune(c))
		}
	}
	return ascii, nil
}

// isNameByte: underscores are in no host name of RFC 952, and in many that are used.
func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// endsInNumber is what the WHATWG's URL standard calls so: programs that follow
// it read such a host as an IPv4 address, others ask for a name.
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
		return fmt.Errorf("it is longer than %d", maxName)
	}
	for rest, more := s, true; more; {
		var label string
		label, rest, more = strings.Cut(rest, ".")
		switch {
		case label == "":
			return errors.New("it has an empty part")
		case len(label) > maxLabel:
			return fmt.Errorf("a part is longer than %d", maxLabel)
		case strings.ContainsFunc(label, func(c rune) bool { return c >= 0x80 || !isNameByte(byte(c)) }):
			return errors.New("a part has other characters than letters, digits, hyphens and underscores")
		case label[0] == '-' || label[len(label)-1] == '-':
			return errors.New("a part begins or ends with a hyphen")
		}
	}
	return nil
}

// quoted shows foreign text in one line of ASCII, shortened.
func quoted(s string) string {
	const most = 100
	if len(s) > most {
		return strconv.QuoteToASCII(s[:most]) + "..."
	}
	return strconv.QuoteToASCII(s)
}
