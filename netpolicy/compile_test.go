package netpolicy

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func TestCompileNamesTheField(t *testing.T) {
	many := func(n int) []string { return slices.Repeat([]string{"/x"}, n) }
	for _, c := range []struct {
		rule        Rule
		field, says string
	}{
		{Rule{}, "host", "is empty"},
		{Rule{Host: "https://a.com/x"}, "host", "URL"},
		{Rule{Host: "a.com:443"}, "host", "port"},
		{Rule{Host: "a.*.com"}, "host", "*.example.com"},
		{Rule{Host: "**.a.com"}, "host", "*.example.com"},
		{Rule{Host: "*.8.8.8.8"}, "host", "range"},
		{Rule{Host: "127.1"}, "host", "four-part IPv4 address"},
		{Rule{Host: "10.0.0.7/8"}, "host", "write 10.0.0.0/8"},
		{Rule{Host: "10.0.0.0/33"}, "host", "is not an address range"},
		{Rule{Host: "::ffff:0.0.0.0/80"}, "host", "IPv4"},
		{Rule{Host: "u@a.com"}, "host", "user"},
		{Rule{Host: "a.com", Protocol: "TLS"}, "protocol", "tls, http, https or tcp"},
		{Rule{Host: "a.com", Protocol: "udp"}, "protocol", "tls, http, https or tcp"},
		{Rule{Host: "a.com", Protocol: TCP}, "ports", "requires ports"},
		{Rule{Host: "a.com", Ports: []int{0}}, "ports", "1 to 65535"},
		{Rule{Host: "a.com", Ports: []int{443, 65536}}, "ports", "65536 at [1]"},
		{Rule{Host: "a.com", Ports: make([]int, MaxPorts+1)}, "ports", "the maximum"},
		{Rule{Host: "a.com", Paths: []string{"/x"}}, "paths", "cannot be checked inside TLS: use protocol http or https"},
		{Rule{Host: "a.com", Paths: []string{"/x"}, Deny: true}, "paths", "use protocol http or https"},
		{Rule{Host: "a.com", Methods: []string{"GET"}, Protocol: TCP, Ports: []int{1}}, "methods",
			"use protocol http or https"},
		{Rule{Host: "a.com", Methods: []string{"GE T"}, Protocol: HTTP}, "methods", "such as GET"},
		{Rule{Host: "a.com", Methods: []string{"connect"}, Protocol: HTTP}, "methods", "tunnel"},
		{Rule{Host: "a.com", Methods: many(MaxMethods + 1), Protocol: HTTP}, "methods", "the maximum"},
		{Rule{Host: "a.com", Paths: many(MaxPaths + 1), Protocol: HTTP}, "paths", "the maximum"},
		{Rule{Host: "a.com", Paths: []string{"x"}, Protocol: HTTP}, "paths", `must start with "/"`},
		{Rule{Host: "a.com", Paths: []string{"/x*y"}, Protocol: HTTP}, "paths", "before its end"},
		{Rule{Host: "a.com", Paths: []string{"/x?y"}, Protocol: HTTP}, "paths", "query"},
		{Rule{Host: "a.com", Paths: []string{"/a/../b"}, Protocol: HTTP}, "paths", "dots"},
		{Rule{Host: "a.com", Paths: []string{"/" + strings.Repeat("a", MaxPath)}, Protocol: HTTP}, "paths", "too long"},
	} {
		_, err := Compile([]Rule{{Host: "ok.com"}, c.rule})
		var invalid *InvalidError
		switch {
		case !errors.As(err, &invalid) || !errdefs.IsInvalidArgument(err):
			t.Errorf("Compile(%+v) = %v, want an InvalidError with the class InvalidArgument", c.rule, err)
		case invalid.Field != "egress.rules[1]."+c.field || !strings.Contains(err.Error(), c.says):
			t.Errorf("Compile(%+v) = %v, want field egress.rules[1].%s and a text with %q", c.rule, err, c.field, c.says)
		}
	}
	refuses := func(rules []Rule, want string) {
		t.Helper()
		if _, err := Compile(rules); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Compile of %d rules = %v, want an error that starts with %q", len(rules), err, want)
		}
	}
	refuses(make([]Rule, MaxRules+1), "egress.rules has 257 rules")
	long := Rule{Host: "a.com", Protocol: HTTP,
		Paths: slices.Repeat([]string{"/" + strings.Repeat("a", MaxPath-1)}, MaxPaths)}
	refuses([]Rule{long}, "egress.rules has 131077 bytes")
}

func TestEmpty(t *testing.T) {
	var none *Rules
	for rules, want := range map[*Rules]bool{
		none: true, mustCompile(t, ""): true, mustCompile(t, "deny a.com"): true, mustCompile(t, "deny a.com\na.com"): false,
	} {
		if rules.Empty() != want {
			t.Errorf("Empty of %+v = %v, want %v", rules, !want, want)
		}
	}
	if d := none.Decide(Want{Host: "a.com", Port: 443, Tunnel: true}); d.Allowed {
		t.Errorf("Decide without rules = %+v, want a refusal", d)
	}
}
