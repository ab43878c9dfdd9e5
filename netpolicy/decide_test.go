package netpolicy

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

// parseRules parses the rules of tests, one per line: "deny? protocol? host[:port,port]
// METHOD,METHOD /path ...".
func parseRules(tb testing.TB, text string) []Rule {
	tb.Helper()
	var rules []Rule
	for line := range strings.SplitSeq(text, "\n") {
		var r Rule
		for word := range strings.FieldsSeq(line) {
			switch {
			case word == "deny":
				r.Deny = true
			case protocolNames[word] != 0:
				r.Protocol = word
			case r.Host == "":
				host, ports, _ := strings.Cut(word, "|")
				r.Host = host
				for port := range strings.SplitSeq(ports, ",") {
					if n, err := strconv.Atoi(port); err == nil {
						r.Ports = append(r.Ports, n)
					}
				}
			case strings.HasPrefix(word, "/"):
				r.Paths = append(r.Paths, word)
			default:
				r.Methods = strings.Split(word, ",")
			}
		}
		if r.Host != "" {
			rules = append(rules, r)
		}
	}
	return rules
}

func mustCompile(tb testing.TB, text string) *Rules {
	tb.Helper()
	r, err := Compile(parseRules(tb, text))
	if err != nil {
		tb.Fatalf("Compile(%q) = %v, want no error", text, err)
	}
	return r
}

// parseWants parses "CONNECT host|port" or "METHOD host|port /path".
func parseWants(text string) Want {
	words := strings.SplitN(text, " ", 3)
	host, port, _ := strings.Cut(words[1], "|")
	w := Want{Host: host, Tunnel: words[0] == "CONNECT"}
	w.Port, _ = strconv.Atoi(port)
	if !w.Tunnel {
		w.Method, w.Path = words[0], "/"
		if len(words) > 2 {
			w.Path = words[2]
		}
	}
	return w
}

// answer returns "no", or the protocol and the port to connect to.
func answer(d Decision) string {
	if !d.Allowed {
		return "no"
	}
	return fmt.Sprint(d.Protocol, " ", d.Port)
}

func TestDecide(t *testing.T) {
	for _, c := range []struct {
		about, rules string
		wants        map[string]string
	}{
		{"nothing is allowed without rules", "", map[string]string{"CONNECT a.com|443": "no", "GET a.com|80 /": "no"}},
		{"a name is that name alone", "a.com", map[string]string{
			"CONNECT a.com|443": "tls 443", "CONNECT A.COM.|443": "tls 443", "CONNECT a.com|80": "no",
			"CONNECT a.com|8443":  "no",
			"CONNECT b.a.com|443": "no", "CONNECT ba.com|443": "no", "CONNECT com|443": "no", "GET a.com|443 /": "no",
			"GET a.com|80 /": "no"}},
		{"names below one", "*.a.com", map[string]string{
			"CONNECT b.a.com|443": "tls 443", "CONNECT c.b.a.com|443": "tls 443", "CONNECT a.com|443": "no",
			"CONNECT ba.com|443": "no", "CONNECT a.com.evil.org|443": "no"}},
		{"every name, and no address", "*",
			map[string]string{"CONNECT x.org|443": "tls 443", "CONNECT 8.8.8.8|443": "no", "CONNECT 2606:4700::1|443": "no"}},
		{"unicode and punycode are one", "bücher.example",
			map[string]string{"CONNECT xn--bcher-kva.example|443": "tls 443", "CONNECT BÜCHER.example|443": "tls 443"}},
		{"addresses", "8.8.8.8\ntcp 9.9.9.0/24|53\n2606:4700::/32\n9.9.9.9", map[string]string{
			"CONNECT 8.8.8.8|443": "tls 443", "CONNECT ::ffff:8.8.8.8|443": "tls 443", "CONNECT 8.8.4.4|443": "no",
			"CONNECT 9.9.9.9|53":  "tcp 53",
			"CONNECT 9.9.9.9|443": "tls 443", "CONNECT [2606:4700::1]|443": "tls 443", "CONNECT 2606:4701::1|443": "no",
			"CONNECT 134744072|443": "no"}},
		{"requests by method and path", "http a.com GET,HEAD /v1/* /health", map[string]string{
			"GET a.com|80 /v1/x": "http 80", "GET a.com|80 /v1/": "http 80", "HEAD a.com|80 /health": "http 80",
			"GET a.com|80 /health?x=/../": "http 80",
			"POST a.com|80 /v1/x":         "no", "get a.com|80 /v1/x": "no", "GET a.com|80 /v1": "no", "GET a.com|80 /healthy": "no",
			"GET a.com|80 /V1/x": "no",
			"GET a.com|81 /v1/x": "no", "CONNECT a.com|80": "http 80", "CONNECT a.com|443": "no",
			"GET a.com|80 /%761/x": "http 80", "GET a.com|80 /v1/%7Eme": "http 80", "GET a.com|80 /v1/ü": "no",
			"GET a.com|80 /v1/%c3%bc": "http 80"}},
		{"paths that are read in two ways are like none", "http a.com /v1/*", map[string]string{
			"GET a.com|80 /v1/../admin": "no", "GET a.com|80 /v1/%2e%2E/admin": "no", "GET a.com|80 /v1/./x": "no",
			"GET a.com|80 /v1//x":    "no",
			"GET a.com|80 /v1/a%2fb": "no", "GET a.com|80 /v1/a%5cb": "no", `GET a.com|80 /v1/a\b`: "no",
			"GET a.com|80 /v1/%252e%252e/": "no", "GET a.com|80 /v1/..;/admin": "no",
			"GET a.com|80 /v1/a%00": "no", "GET a.com|80 /v1/a\x01": "no", "GET a.com|80 /v1/%zz": "no",
			"GET a.com|80 /v1/%u002e": "no", "GET a.com|80 /v1/%c0%ae": "no", "GET a.com|80 v1/x": "no",
			"GET a.com|80 *": "no", "GET a.com|80 /v1/...": "no", "GET a.com|80 /v1/%": "no", "GET a.com|80 /v1/x#/y": "no",
			"GET a.com|80 /v1/a..b": "http 80"}},
		{"and like all, if no rule has paths", "http a.com",
			map[string]string{"GET a.com|80 /a//b/../%2f": "http 80", "OPTIONS a.com|80 *": "http 80"}},
		{"https is entered at port 80 and at its own", "https a.com|8443,443 GET", map[string]string{
			"GET a.com|80 /": "https 8443", "GET a.com|8443 /": "https 8443", "GET a.com|443 /": "https 443",
			"POST a.com|80 /": "no", "GET a.com|81 /": "no",
			"CONNECT a.com|80": "https 8443", "CONNECT a.com|443": "no", "CONNECT a.com|8443": "no"}},
		{"rules of one host add up", "https a.com GET /v1\nhttp a.com POST /v2\na.com\ntcp a.com|22,443", map[string]string{
			"GET a.com|80 /v1": "https 443", "POST a.com|80 /v2": "http 80", "GET a.com|80 /v2": "no",
			"CONNECT a.com|80":  "https 443",
			"CONNECT a.com|443": "tls 443", "CONNECT a.com|22": "tcp 22"}},
		{"what shows most comes first", "tcp a.com|80,443\nhttp a.com GET\na.com", map[string]string{
			"CONNECT a.com|80": "http 80", "CONNECT a.com|443": "tls 443", "POST a.com|80 /": "no",
			"GET a.com|443 /": "http 443"}},
		{"the most exact host decides alone", "tcp *|80,443\ntcp *.a.com|80\nhttp b.a.com GET\nhttps c.a.com GET /v1/*",
			map[string]string{
				"CONNECT b.a.com|80": "http 80", "POST b.a.com|80 /": "no", "CONNECT b.a.com|443": "tcp 443",
				"POST x.a.com|80 /":   "http 80",
				"CONNECT c.a.com|443": "no", "GET c.a.com|80 /v1/x": "https 443", "GET c.a.com|80 /v2": "no",
				"CONNECT d.org|443": "tcp 443"}},
		{"a rule that denies wins", "*\nhttp *\ndeny *.evil.org\ndeny x.org|80", map[string]string{
			"CONNECT a.evil.org|443": "no", "CONNECT evil.org|443": "tls 443", "GET a.evil.org|80 /": "no",
			"GET x.org|80 /": "no", "CONNECT x.org|443": "tls 443"}},
		{"* denies addresses too", "8.8.8.8\ndeny *|443", map[string]string{"CONNECT 8.8.8.8|443": "no"}},
		{"a denied range", "tcp 8.0.0.0/8|53,443\ndeny 8.8.0.0/16|53",
			map[string]string{"CONNECT 8.8.8.8|53": "no", "CONNECT 8.8.8.8|443": "tcp 443", "CONNECT 8.9.8.8|53": "tcp 53"}},
		{"denied paths, in every way to write them", "http a.com\ntcp b.com|80\ndeny http * /admin/* /x", map[string]string{
			"GET a.com|80 /": "http 80", "GET a.com|80 /admin/x": "no", "GET a.com|80 /ADMIN/x": "no",
			"GET a.com|80 /admin": "no", "GET a.com|80 /x/": "no", "GET a.com|80 /xy": "http 80",
			"GET a.com|80 /%61dmin/x": "no", "GET a.com|80 //admin/x": "no", "GET a.com|80 /admin;a/x": "no",
			"GET a.com|80 /a/../admin/x": "no",
			"CONNECT a.com|80":           "http 80", "CONNECT b.com|80": "no", "GET b.com|80 /y": "http 80"}},
		{"denied methods", "http a.com\na.com\ndeny http a.com POST", map[string]string{
			"POST a.com|80 /": "no", "post a.com|80 /": "no", "GET a.com|80 /": "http 80", "CONNECT a.com|443": "tls 443"}},
		{"what a tunnel of tls can carry", "a.com\nb.com\ntcp b.com|8443\ndeny https * /admin",
			map[string]string{"CONNECT a.com|443": "no", "CONNECT b.com|8443": "no"}},
		{"a denied protocol holds in tcp, and nothing else takes its place",
			"tcp a.com|80\nhttps b.com\nhttp b.com\ndeny tls *", map[string]string{
				"CONNECT a.com|80": "no", "GET b.com|80 /": "no", "GET a.com|80 /": "http 80"}},
		{"denied tcp is all", "a.com\nhttp a.com\ndeny tcp a.com",
			map[string]string{"CONNECT a.com|443": "no", "GET a.com|80 /": "no"}},
		{"an invalid request", "http *\ntcp *|80", map[string]string{
			"GE\tT a.com|80 /": "no", "CONNECT a.com|0": "no", "CONNECT a.com|65536": "no", "CONNECT a.com@b.com|80": "no",
			"GET 0x7f.1|80 /": "no"}},
	} {
		r := mustCompile(t, c.rules)
		for text, want := range c.wants {
			w := parseWants(text)
			d := r.Decide(w)
			if got := answer(d); got != want {
				t.Errorf("%s: Decide(%s) = %s (%s), want %s", c.about, text, got, d.Reason, want)
			}
			checkDecision(t, w, d)
		}
	}
	if d := mustCompile(t, "http *").Decide(Want{Host: "a.com", Port: 80, Method: "CONNECT", Path: "/"}); d.Allowed {
		t.Errorf("Decide of CONNECT as the method of a request = %+v, want a refusal", d)
	}
}

func checkDecision(t *testing.T, w Want, d Decision) {
	t.Helper()
	switch {
	case d.Reason == "" || len(d.Reason) > 900 ||
		strings.ContainsFunc(d.Reason, func(c rune) bool { return c < ' ' || c > '~' }):
		t.Errorf("Decide(%+v) has the reason %q, want one line of ASCII, 1 to 900 bytes", w, d.Reason)
	case d.Allowed && (d.Rule < 0 || d.Port < 1 || d.Host == "" || protocolNames[d.Protocol] == 0):
		t.Errorf("Decide(%+v) = %+v, want a rule, port, host and protocol with what is allowed", w, d)
	}
}

func TestCeiling(t *testing.T) {
	for _, c := range []struct{ rules, ceiling, want, answer string }{
		{"a.com", "*", "CONNECT a.com|443", "tls 443"},
		{"a.com", "", "CONNECT a.com|443", "no"},
		{"a.com", "b.com", "CONNECT a.com|443", "no"},
		{"a.com", "*\ndeny a.com", "CONNECT a.com|443", "no"},
		{"a.com\ndeny a.com", "*", "CONNECT a.com|443", "no"},
		{"tcp a.com|443", "*", "CONNECT a.com|443", "tls 443"},
		{"a.com", "tcp *|443", "CONNECT a.com|443", "tls 443"},
		{"tcp a.com|80", "http *", "CONNECT a.com|80", "http 80"},
		{"tcp a.com|80", "http * GET", "POST a.com|80 /", "no"},
		{"http a.com", "tcp *|80", "POST a.com|80 /", "http 80"},
		{"http a.com", "tcp *|80\nhttp * GET", "POST a.com|80 /", "no"},
		{"http a.com", "http * GET /v1/*", "CONNECT a.com|80", "http 80"},
		{"http a.com", "http * GET /v1/*", "GET a.com|80 /v2", "no"},
		{"http a.com|443", "*", "CONNECT a.com|443", "no"},
		{"https a.com", "*", "GET a.com|80 /", "https 443"},
		{"https a.com", "https * GET", "GET a.com|80 /", "https 443"},
		{"https a.com", "https * GET", "POST a.com|80 /", "no"},
		{"https a.com", "http *", "GET a.com|80 /", "no"},
		{"https a.com", "https *", "CONNECT a.com|80", "https 443"},
		{"http a.com", "https *", "GET a.com|80 /", "no"},
		{"tcp a.com|443", "https a.com", "CONNECT a.com|443", "no"},
		{"tcp a.com|443", "tcp *|443\ndeny https * /x", "CONNECT a.com|443", "no"},
		{"https *|8443", "tcp *|443,80", "GET a.com|80 /", "no"},
	} {
		d := mustCompile(t, c.rules).Within(mustCompile(t, c.ceiling), parseWants(c.want))
		if got := answer(d); got != c.answer {
			t.Errorf("%q within %q: %s = %s (%s), want %s", c.rules, c.ceiling, c.want, got, d.Reason, c.answer)
		}
		checkDecision(t, parseWants(c.want), d)
	}
}

func TestReasons(t *testing.T) {
	for _, c := range []struct{ rules, want, reason string }{
		{"b.com", "CONNECT a.com|443", "no rule allows a.com:443 with tls: add one to egress.rules"},
		{"b.com", "CONNECT 8.8.8.8|22",
			"no rule allows the bare address 8.8.8.8:22: use the host's name, or a rule for the address"},
		{"a.com", "CONNECT a.com|443", "rule 0 allows a.com with tls"},
		{"b.com\ndeny *.com", "CONNECT b.com|443", "b.com:443 is denied: rule 1 denies *.com"},
		{"b.com\ndeny https *.com /x", "CONNECT b.com|443",
			"b.com:443 is denied: rule 1 denies some requests of https to *.com, which a tunnel of tls can carry"},
		{"https a.com", "CONNECT a.com|443",
			"no rule allows a tunnel to a.com:443: rule 0 allows a.com with https, so use http://a.com/ without TLS, or add " +
				"a rule with tls"},
		{"a.com", "GET a.com|443 /", "no rule allows a.com:443 with http: rule 0 allows a.com with tls only"},
		{"http a.com GET", "POST a.com|80 /x?key=1",
			`no rule allows POST of "/x" at a.com:80: rule 0 allows a.com with http for other methods or paths`},
		{"http a.com /v1/*", "GET a.com|80 /v1/../\x1b",
			`no rule allows the path "/v1/../\x1b" at a.com:80: it has control characters`},
		{"*", "CONNECT 127.1|443", `invalid host "127.1": it ends in a number but is not a four-part IPv4 address`},
	} {
		if got := mustCompile(t, c.rules).Decide(parseWants(c.want)).Reason; got != c.reason {
			t.Errorf("Decide(%s).Reason = %q, want %q", c.want, got, c.reason)
		}
	}
	for _, c := range []struct{ rules, ceiling, want, reason string }{
		{"a.com", "", "CONNECT a.com|443",
			"the ceiling: no rule allows a.com:443 with tls: an operator can raise it in egress.allow"},
		{"https a.com", "http *", "GET a.com|80 /",
			"the ceiling: no rule allows a.com:443 with https: an operator can raise it in egress.allow"},
		{"http a.com|443", "*", "CONNECT a.com|443",
			"the ceiling: no rule allows a.com:443 with http: rule 0 allows * with tls only"},
		{"a.com", "*\ndeny a.com", "CONNECT a.com|443", "the ceiling: a.com:443 is denied: rule 1 denies a.com"},
	} {
		if got := mustCompile(t, c.rules).Within(mustCompile(t, c.ceiling), parseWants(c.want)).Reason; got != c.reason {
			t.Errorf("%q within %q: reason = %q, want %q", c.rules, c.ceiling, got, c.reason)
		}
	}
}

func TestResolvedAddressesAreDenied(t *testing.T) {
	r := mustCompile(t, "*\nhttp *\ndeny 198.51.100.0/24\ndeny http 9.9.9.9\ndeny *.com|80")
	for address, want := range map[string]string{"198.51.100.7": "no", "::ffff:198.51.100.7": "no", "8.8.8.8": "tls 443",
		"9.9.9.9": "tls 443"} {
		d := r.Resolved(r.Decide(Want{Host: "a.com", Port: 443, Tunnel: true}), netip.MustParseAddr(address))
		if answer(d) != want {
			t.Errorf("Resolved at %s = %+v, want %s", address, d, want)
		}
	}
	d := r.Resolved(r.Decide(Want{Host: "a.org", Port: 80, Method: "GET", Path: "/"}), netip.MustParseAddr("9.9.9.9"))
	if want := "a.org is at 9.9.9.9: rule 3 denies 9.9.9.9 with http"; d.Reason != want {
		t.Errorf("reason = %q, want %q", d.Reason, want)
	}
}
