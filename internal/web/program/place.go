package program

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/net/idna"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// maxURL bounds a URL in bytes: what is longer is an attack or a data: in disguise.
const maxURL = 8 << 10

// parsePlace is the URL raw as it is asked for: http or https, a host in
// lower-case ASCII, no user, no fragment. Every error says what to do.
func parsePlace(raw string) (*url.URL, error) {
	if len(raw) > maxURL {
		return nil, tooLong(len(raw))
	}
	if i := strings.IndexFunc(raw, func(r rune) bool {
		return unicode.IsControl(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar
	}); i >= 0 {
		return nil, faultf(web.FaultURL, "the URL has a space or control character at byte %d: encode it as %%20 or so", i)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, faultf(web.FaultURL, "%s is no URL: %s", oneLine(strconv.Quote(raw), 120), reasonOf(err))
	}
	return u, settle(u)
}

func tooLong(n int) error {
	return faultf(web.FaultURL, "the URL has %d bytes, at most %d are asked for", n, maxURL)
}

// reasonOf is what a parser says without the URL that it says it of.
func reasonOf(err error) string {
	if e, ok := err.(*url.Error); ok { //nolint:errorlint // url.Parse returns it bare
		return e.Err.Error()
	}
	return err.Error()
}

// settle checks u and brings it to the form that is asked for.
func settle(u *url.URL) error {
	u.Scheme = strings.ToLower(u.Scheme)
	switch {
	case u.Scheme == "":
		return faultf(web.FaultURL, "the URL has no scheme: write https:// in front of it")
	case u.Scheme != "http" && u.Scheme != "https":
		return faultf(web.FaultURL, "%s: is not asked for: only http and https are", oneLine(u.Scheme, 40))
	case u.User != nil:
		return faultf(web.FaultURL, "the URL has a user before its host: leave out what stands before the @, and use a header to log in")
	case u.Opaque != "" || u.Host == "":
		return faultf(web.FaultURL, "the URL has no host: write %s://host/path", u.Scheme)
	}
	host, err := canonicalHost(u.Hostname())
	if err != nil {
		return err
	}
	port := u.Port()
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return faultf(web.FaultURL, "port %s is not between 1 and 65535", oneLine(port, 20))
		}
		port = strconv.FormatUint(n, 10)
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	u.Host = host
	if port != "" && port != defaultPort(u) {
		u.Host += ":" + port
	}
	u.Fragment, u.RawFragment = "", ""
	u.RawQuery = encodeOdd(u.RawQuery)
	if u.Path == "" {
		u.Path = "/"
	}
	if n := len(u.String()); n > maxURL {
		return tooLong(n)
	}
	return nil
}

// canonicalHost is a name in lower-case ASCII without a last dot, or an address.
func canonicalHost(host string) (string, error) {
	if a, err := netip.ParseAddr(host); err == nil && a.Zone() == "" {
		return a.Unmap().String(), nil
	}
	if strings.ContainsAny(host, "%:[]") {
		return "", faultf(web.FaultURL, "%q is no host: write a name or an address", oneLine(host, 80))
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if !plainName(name) {
		ascii, err := idna.Lookup.ToASCII(name)
		if err != nil {
			return "", faultf(web.FaultURL, "%q is no name of a host: %v", oneLine(host, 80), err)
		}
		name = strings.TrimSuffix(ascii, ".")
	}
	if !plainName(name) && !strings.Contains(name, "xn--") || len(name) > 253 {
		return "", faultf(web.FaultURL, "%q is no name of a host", oneLine(host, 80))
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 {
			return "", faultf(web.FaultURL, "%q is no name of a host: a part of it is empty or has over 63 characters", oneLine(host, 80))
		}
	}
	if numeric(labels[len(labels)-1]) {
		return "", faultf(web.FaultURL, "%q reads as a number and not as a name: write the address as 192.0.2.1", oneLine(host, 80))
	}
	return name, nil
}

// plainName reports whether name needs no translation.
func plainName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return name != "" && !strings.Contains(name, "xn--")
}

// numeric reports whether resolvers may read a last label as part of an address.
func numeric(label string) bool {
	if rest, ok := strings.CutPrefix(label, "0x"); ok {
		return strings.Trim(rest, "0123456789abcdef") == ""
	}
	return strings.Trim(label, "0123456789") == ""
}

func defaultPort(u *url.URL) string {
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}

// encodeOdd writes the bytes of s that a request line cannot hold as %XX.
func encodeOdd(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// sameHost reports whether two settled URLs are of one server to a user: the
// same name, and the same port or each its scheme's own.
func sameHost(a, b *url.URL) bool {
	return a.Hostname() == b.Hostname() && a.Port() == b.Port()
}
