package netpolicy

import (
	"net/netip"
	"strings"
	"testing"
)

func TestCanonicalHost(t *testing.T) {
	label := strings.Repeat("a", 63)
	for in, want := range map[string]string{
		"example.com":        "example.com",
		"EXAMPLE.Com.":       "example.com",
		"my_bucket.s3.com":   "my_bucket.s3.com",
		"r3---sn.video.com":  "r3---sn.video.com",
		"bücher.example":     "xn--bcher-kva.example",
		"BÜCHER.example.":    "xn--bcher-kva.example",
		"XN--bcher-KVA.de":   "xn--bcher-kva.de",
		"example。com":        "example.com",
		"127。0。0。1":          "127.0.0.1",
		"straße.de":          "xn--strae-oqa.de",
		"203.0.113.7":        "203.0.113.7",
		"203.0.113.7.":       "203.0.113.7",
		"[2001:DB8::1]":      "2001:db8::1",
		"2001:db8:0::1":      "2001:db8::1",
		"::ffff:127.0.0.1":   "127.0.0.1",
		"[::ffff:7f00:1]":    "127.0.0.1",
		"1.example.com":      "1.example.com",
		"0x1.example":        "0x1.example",
		label + ".a.b":       label + ".a.b",
		"xn--80ak6aa92e.com": "xn--80ak6aa92e.com",

		"": "!", ".": "!", "..": "!", "a..b": "!", ".a": "!", "a...": "!",
		"user@example.com": "!", "example.com:80": "!", "example.com/x": "!", `a\b`: "!", "a?b": "!", "a#b": "!",
		"a b": "!", "a\tb": "!", "a\r\nb": "!", "a\x00b": "!", "a%2eb": "!", "fe80::1%eth0": "!", "a%00": "!",
		"2130706433": "!", "0177.0.0.1": "!", "0x7f.1": "!", "127.1": "!", "0x7f000001": "!", "0x": "!", "1.2.3.4.5": "!",
		"256.1.1.1": "!", "example.123": "!", "a.0xff": "!", "01.2.3.4": "!", "1.2.3.4..": "!",
		"[example.com]": "!", "[127.0.0.1]": "!", "[::1": "!", "::1]": "!", "[::1]:80": "!", "[[::1]]": "!", ":": "!",
		"-a.com": "!", "a-.com": "!", label + "a.com": "!", strings.Repeat("a.", 128): "!", strings.Repeat("a", 5000): "!",
		"a*b.com": "!", "*": "!", "a,b": "!", "xn--a.com": "!", "xn--.com": "!", "℀.com": "!", "a\xff.com": "!",
		"a\u200bb\u2028.com":            "!",
		strings.Repeat("a.", 126) + "a": strings.Repeat("a.", 126) + "a",
	} {
		got, addr, err := CanonicalHost(in)
		switch {
		case want == "!" && err == nil:
			t.Errorf("CanonicalHost(%q) = %q, want an error", in, got)
		case want == "!":
			if strings.ContainsFunc(err.Error(), func(c rune) bool { return c < ' ' || c > '~' }) {
				t.Errorf("CanonicalHost(%q) = %q, want an error of one line of ASCII", in, err)
			}
		case err != nil || got != want:
			t.Errorf("CanonicalHost(%q) = %q, %v; want %q", in, got, err, want)
		case addr.IsValid() != (strings.Contains(want, ":") || endsInNumber(want)):
			t.Errorf("CanonicalHost(%q) has the address %v, want a valid one exactly for an IP address", in, addr)
		}
	}
}

// FuzzHost checks that each valid host has one form, and that text that netip parses as an address
// is that address or invalid.
func FuzzHost(f *testing.F) {
	for _, s := range []string{"example.com", "Bücher.example.", "127.0.0.1", "::ffff:1.2.3.4", "[::1]", "0x7f.1", "a_b.c",
		"xn--bcher-kva", "１２７.1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, addr, err := CanonicalHost(s)
		if a, parsed := netip.ParseAddr(s); parsed == nil {
			if zone := a.Zone() != ""; zone == (err == nil) || !zone && addr != a.Unmap() {
				t.Fatalf("CanonicalHost(%q) = address %v, %v; want %v, or an error for a zone", s, addr, err, a.Unmap())
			}
		}
		if err != nil {
			return
		}
		again, same, err := CanonicalHost(host)
		if err != nil || again != host || same != addr {
			t.Fatalf("CanonicalHost(%q) = %q, %v, %v; want it unchanged with the address %v", host, again, same, err, addr)
		}
		if a, err := netip.ParseAddr(host); err == nil != addr.IsValid() || err == nil && a != addr {
			t.Fatalf("CanonicalHost(%q) = %q with the address %v, want that of ParseAddr, %v", s, host, addr, a)
		}
		if strings.ContainsFunc(host, func(c rune) bool { return c > '~' || c != ':' && c != '.' && !isNameByte(byte(c)) }) {
			t.Fatalf("CanonicalHost(%q) = %q, want only bytes of a name or an address", s, host)
		}
		if strings.HasSuffix(s, ".") || strings.HasSuffix(s, "]") {
			return
		}
		upper, _, err := CanonicalHost(asciiUpper(s))
		if err != nil || upper != host {
			t.Fatalf("CanonicalHost(%q) in upper case = %q, %v; want %q", s, upper, err, host)
		}
		if dotted, _, err := CanonicalHost(s + "."); !strings.Contains(s, ":") && (err != nil || dotted != host) {
			t.Fatalf("CanonicalHost(%q) with a final dot = %q, %v; want %q", s, dotted, err, host)
		}
	})
}

func asciiUpper(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'a' <= c && c <= 'z' {
			b[i] -= 'a' - 'A'
		}
	}
	return string(b)
}
