package netpolicy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// choices builds rules and wants from a fuzzer's bytes. It uses few words, so that they often
// match.
type choices struct{ b []byte }

func (c *choices) of(n int) int {
	if len(c.b) == 0 {
		return 0
	}
	x := int(c.b[0]) % n
	c.b = c.b[1:]
	return x
}

func (c *choices) pick(words ...string) string { return words[c.of(len(words))] }

func (c *choices) ports() []int {
	return [][]int{nil, {443}, {80}, {443, 80}, {8443}}[c.of(5)]
}

func (c *choices) rule() Rule {
	r := Rule{
		Host:     c.pick("a.com", "*.a.com", "*", "b.a.com", "8.8.8.8", "8.8.0.0/16", "*.com", "0.0.0.0/0"),
		Protocol: c.pick("", TLS, HTTP, HTTPS, TCP), Ports: c.ports(), Deny: c.of(4) == 1,
	}
	if r.Protocol == HTTP || r.Protocol == HTTPS {
		r.Methods = [][]string{nil, {"GET"}, {"GET", "POST"}}[c.of(3)]
		r.Paths = [][]string{nil, {"/x"}, {"/v1/*", "/"}}[c.of(3)]
	}
	if r.Protocol == TCP && r.Ports == nil {
		r.Ports = []int{80}
	}
	return r
}

func (c *choices) rules() []Rule {
	rules := make([]Rule, c.of(6))
	for i := range rules {
		rules[i] = c.rule()
	}
	return rules
}

func (c *choices) want() Want {
	w := Want{Host: c.pick("a.com", "b.a.com", "c.b.a.com", "8.8.8.8", "x.org", "a.com@b.com"),
		Port: []int{443, 80, 8443}[c.of(3)]}
	if w.Tunnel = c.of(2) == 0; !w.Tunnel {
		w.Method = c.pick("GET", "POST", "get")
		w.Path = c.pick("/x", "/v1/a", "/", "/v1/../x", "/X/")
	}
	return w
}

func FuzzDecide(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x00\x02\x03\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("any bytes will do, for each of them is one choice of few words"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &choices{b}
		rules, ceiling, deny, w := c.rules(), c.rules(), c.rule(), c.want()
		deny.Deny = true
		compile := func(rules []Rule) *Rules {
			r, err := Compile(rules)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		r, top := compile(rules), compile(ceiling)
		d, both := r.Decide(w), r.Within(top, w)
		checkDecision(t, w, d)
		checkDecision(t, w, both)
		if again := compile(rules).Decide(w); again != d {
			t.Fatalf("Decide(%+v) with the rules compiled again = %+v, want %+v", w, again, d)
		}
		upper := w
		if upper.Host = strings.ToUpper(w.Host) + "."; (r.Decide(upper) != d) != strings.Contains(w.Host, "@") {
			t.Fatalf("Decide of %q = %+v, of %q = %+v; want the same unless the host contains @", w.Host, d, upper.Host,
				r.Decide(upper))
		}
		more := compile(append(slices.Clone(rules), deny)).Decide(w)
		if more.Allowed && more != d {
			t.Fatalf("Decide(%+v) with the additional rule %+v = %+v, want a refusal or %+v", w, deny, more, d)
		}
		if both.Allowed && (!d.Allowed || both.Port != d.Port || both.Rule != d.Rule) {
			t.Fatalf("Within(%+v) = %+v, want a refusal or the rule and port of Decide, %+v", w, both, d)
		}
		under := r.Within(compile(append(slices.Clone(ceiling), deny)), w)
		if under.Allowed && under != both {
			t.Fatalf("Within(%+v) a ceiling with the additional rule %+v = %+v, want a refusal or %+v", w, deny, under, both)
		}
		if d.Allowed {
			checkRules(t, r, d, w)
		}
	})
}

// checkRules checks a decision against each rule: the one that allowed has the host and port, and
// no rule denies the result.
func checkRules(t *testing.T, r *Rules, d Decision, w Want) {
	t.Helper()
	host, addr, _ := CanonicalHost(w.Host)
	for i := range r.rules {
		one := &r.rules[i]
		matches := one.host.matches(host, addr) || one.deny && one.host.kind == anyName
		carried := one.protocols == anyProtocol || one.protocols == protocolNames[d.Protocol] || d.Protocol == TCP
		at := fmt.Sprintf("%+v is %+v by rule %d, %s", w, d, i, one.summary)
		switch {
		case i == d.Rule && (one.deny || !matches || !slices.Contains(one.ports, uint16(d.Port))):
			t.Fatal(at + ", want a rule that allows this host and port")
		case one.deny && matches && carried && !one.hasRequestFilter() &&
			(len(one.ports) == 0 || slices.Contains(one.ports, uint16(d.Port))):
			t.Fatal(at + ", want a refusal")
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	rules := make([]Rule, 0, MaxRules)
	for i := range MaxRules - 4 {
		rules = append(rules, Rule{Host: fmt.Sprintf("host%d.example.com", i)})
	}
	rules = append(rules, parseRules(b,
		"http *.api.example.org GET,POST /v1/* /v2/*\ndeny *.evil.org\ndeny 198.51.100.0/24\n*")...)
	r, err := Compile(rules)
	if err != nil {
		b.Fatal(err)
	}
	for name, w := range map[string]Want{
		"name":    {Host: "host200.example.com", Port: 443, Tunnel: true},
		"star":    {Host: "deep.down.in.some.example.net", Port: 443, Tunnel: true},
		"request": {Host: "eu.api.example.org", Port: 80, Method: "GET", Path: "/v2/things/17"},
		"refused": {Host: "a.evil.org", Port: 443, Tunnel: true},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r.Decide(w)
			}
		})
	}
}
