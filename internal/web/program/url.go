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

// maxURL is the maximum length of a URL in bytes.
const maxURL = 8 << 10

// parseURL parses a URL and returns it in normal form: http or https, an ASCII host in lower case,
// no user and no fragment. Errors tell how to correct it.
func parseURL(raw string) (*url.URL, error) {
	if len(raw) > maxURL {
		return nil, tooLong(len(raw))
	}
	if i := strings.IndexFunc(raw, func(r rune) bool {
		return unicode.IsControl(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar
	}); i >= 0 {
		return nil,
			faultf(web.FaultURL, "the URL has a space or control character at byte %d: encode it, for example as %%20",
				i)
	}
	u, err := url.Parse(raw)
	if err != nil {
		return nil, faultf(web.FaultURL, "%s is not a valid URL: %s", oneLine(strconv.Quote(raw), 120), reasonOf(err))
	}
	return u, normalize(u)
}

func tooLong(n int) error {
	return faultf(web.FaultURL, "the URL has %d bytes, more than %d", n, maxURL)
}

// reasonOf returns the error text of url.Parse without the URL.
func reasonOf(err error) string {
	if e, ok := err.(*url.Error); ok { //nolint:errorlint // url.Parse returns it bare
		return e.Err.Error()
	}
	return err.Error()
}

// normalize checks u and brings it to normal form.
func normalize(u *url.URL) error {
	u.Scheme = strings.ToLower(u.Scheme)
	switch {
	case u.Scheme == "":
		return faultf(web.FaultURL, "the URL has no scheme: start it with https://")
	case u.Scheme != "http" && u.Scheme != "https":
		return faultf(web.FaultURL, "%s: unsupported scheme: only http and https are supported", oneLine(u.Scheme, 40))
	case u.User != nil:
		return faultf(web.FaultURL,
			"the URL contains a user: remove the part before @ and use a header to log in")
	case u.Opaque != "" || u.Host == "":
		return faultf(web.FaultURL, "the URL has no host: use %s://host/path", u.Scheme)
	}
	host, err := canonicalHost(u.Hostname())
	if err != nil {
		return err
	}
	port := u.Port()
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return faultf(web.FaultURL, "port %s must be from 1 to 65535", oneLine(port, 20))
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

// canonicalHost returns a name in lower-case ASCII without a final dot, or an address.
func canonicalHost(host string) (string, error) {
	if a, err := netip.ParseAddr(host); err == nil && a.Zone() == "" {
		return a.Unmap().String(), nil
	}
	if strings.ContainsAny(host, "%:[]") {
		return "", faultf(web.FaultURL, "%q is not a valid host: use a name or an address", oneLine(host, 80))
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if !plainName(name) {
		ascii, err := idna.Lookup.ToASCII(name)
		if err != nil {
			return "", faultf(web.FaultURL, "%q is not a valid host name: %v", oneLine(host, 80), err)
		}
		name = strings.TrimSuffix(ascii, ".")
	}
	if !plainName(name) && !strings.Contains(name, "xn--") || len(name) > 253 {
		return "", faultf(web.FaultURL, "%q is not a valid host name", oneLine(host, 80))
	}
	labels := strings.Split(name, ".")
	for _, l := range labels {
		if l == "" || len(l) > 63 {
			return "", faultf(web.FaultURL,
				"%q is not a valid host name: a label is empty or longer than 63 characters",
				oneLine(host, 80))
		}
	}
	if numeric(labels[len(labels)-1]) {
		return "", faultf(web.FaultURL, "%q ends in a number: write an address as 192.0.2.1",
			oneLine(host, 80))
	}
	return name, nil
}

// plainName reports whether name needs no IDNA conversion.
func plainName(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return name != "" && !strings.Contains(name, "xn--")
}

// numeric reports whether a resolver may take the last label for a part of an address.
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

// encodeOdd percent-encodes the bytes that a request line must not contain.
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

// sameHost reports whether two normalised URLs have the same host and the same port, where default
// ports are equal.
func sameHost(a, b *url.URL) bool {
	return a.Hostname() == b.Hostname() && a.Port() == b.Port()
}
