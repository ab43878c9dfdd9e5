package netpolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Limits of a rule set.
const (
	MaxRules   = 256
	MaxPorts   = 64   // per rule
	MaxMethods = 32   // per rule
	MaxPaths   = 64   // per rule
	MaxPath    = 2048 // bytes per path
	// MaxText limits the total length of hosts, methods and paths, in bytes, because rules are
	// stored for each sandbox.
	MaxText = 64 << 10
)

// InvalidError describes an invalid field. Message says what is wrong and what is allowed. Its
// class is errdefs.ErrInvalidArgument.
type InvalidError struct {
	Field, Message string
}

// Error implements error. The text starts with the field.
func (e *InvalidError) Error() string { return e.Field + " " + e.Message }

// Unwrap returns the errdefs class.
func (e *InvalidError) Unwrap() error { return errdefs.ErrInvalidArgument }

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// Rules is an immutable set of compiled rules, safe for concurrent use. A nil *Rules allows
// nothing.
type Rules struct {
	rules []rule
	// The indexes of the rules of each host, by kind of pattern.
	names  map[string][]int32
	below  map[string][]int32
	every  []int32
	addrs  map[netip.Addr][]int32
	blocks map[netip.Prefix][]int32
	// bits4 and bits6 are the prefix lengths in blocks, longest first.
	bits4, bits6 []int
}

// rule is a compiled Rule.
type rule struct {
	host      pattern
	ports     []uint16 // empty: all ports, only in a deny rule
	protocols protocols
	methods   []string
	paths     []path
	deny      bool
	// summary describes the rule in words.
	summary string
}

// protocols is a set. The protocol that exposes most of the traffic to the gateway is the lowest
// bit.
type protocols uint8

const (
	viaHTTPS protocols = 1 << iota
	viaHTTP
	viaTLS
	viaTCP
	anyProtocol = viaTLS | viaHTTP | viaHTTPS | viaTCP
)

var protocolNames = map[string]protocols{TLS: viaTLS, HTTP: viaHTTP, HTTPS: viaHTTPS, TCP: viaTCP}

// Compile checks and compiles rules. An error is an *InvalidError that names the field
// ("egress.rules[2].paths").
//
// How rules combine:
//
//   - A deny rule overrides every allow rule. A deny rule for protocol tcp covers all protocols,
//     like one without a protocol.
//   - Among the rules that allow something at the requested port, only those with the most specific
//     host decide: a name before *.example.com, a longer wildcard before a shorter one, and both
//     before *; an address before a range, and a smaller range before a larger one. Broad rules
//     therefore do not widen what a rule allows for one host.
//   - Rules for the same host add up.
//   - Everything else is refused.
func Compile(rules []Rule) (*Rules, error) {
	if len(rules) > MaxRules {
		return nil, invalid("egress.rules", "has %d rules: the maximum is %d", len(rules), MaxRules)
	}
	if n := textBytes(rules); n > MaxText {
		return nil, invalid("egress.rules", "has %d bytes of hosts, methods and paths: the maximum is %d", n, MaxText)
	}
	r := &Rules{
		rules:  make([]rule, 0, len(rules)),
		names:  map[string][]int32{},
		below:  map[string][]int32{},
		addrs:  map[netip.Addr][]int32{},
		blocks: map[netip.Prefix][]int32{},
	}
	for i := range rules {
		field := fmt.Sprintf("egress.rules[%d]", i)
		one, err := compileRule(field, &rules[i])
		if err != nil {
			return nil, err
		}
		one.summary = fmt.Sprintf("rule %d %s", i, one.describe())
		r.rules = append(r.rules, one)
		r.index(&r.rules[i].host, int32(i))
	}
	return r, nil
}

func textBytes(rules []Rule) (n int) {
	for i := range rules {
		n += len(rules[i].Host)
		for _, list := range [][]string{rules[i].Methods, rules[i].Paths} {
			for _, s := range list {
				n += len(s)
			}
		}
	}
	return n
}

// Empty reports whether the rules allow nothing.
func (r *Rules) Empty() bool {
	return r == nil || !slices.ContainsFunc(r.rules, func(one rule) bool { return !one.deny })
}

func (r *Rules) index(p *pattern, i int32) {
	switch p.kind {
	case exactName:
		r.names[p.name] = append(r.names[p.name], i)
	case subdomains:
		r.below[p.name] = append(r.below[p.name], i)
	case anyName:
		r.every = append(r.every, i)
	case oneAddress:
		r.addrs[p.addr] = append(r.addrs[p.addr], i)
	case addressRange:
		r.blocks[p.block] = append(r.blocks[p.block], i)
		bits := &r.bits6
		if p.block.Addr().Is4() {
			bits = &r.bits4
		}
		if !slices.Contains(*bits, p.block.Bits()) {
			*bits = append(*bits, p.block.Bits())
			slices.SortFunc(*bits, func(a, b int) int { return b - a })
		}
	}
}

func compileRule(field string, in *Rule) (rule, error) {
	out := rule{deny: in.Deny}
	var err error
	if out.host, err = parsePattern(in.Host); err != nil {
		return out, invalid(field+".host", "%v", err)
	}
	if out.protocols, err = compileProtocol(field+".protocol", in); err != nil {
		return out, err
	}
	if out.ports, err = compilePorts(field+".ports", in); err != nil {
		return out, err
	}
	err = compileRequestFilters(field, in, &out)
	return out, err
}

func compileProtocol(field string, in *Rule) (protocols, error) {
	if in.Protocol == "" && in.Deny {
		return anyProtocol, nil
	}
	name := in.Protocol
	if name == "" {
		name = TLS
	}
	p, ok := protocolNames[name]
	if !ok {
		return 0, invalid(field, "is %s: use tls, http, https or tcp", quoted(name))
	}
	if in.Deny && p == viaTCP {
		return anyProtocol, nil
	}
	return p, nil
}

func compilePorts(field string, in *Rule) ([]uint16, error) {
	if len(in.Ports) > MaxPorts {
		return nil, invalid(field, "has %d entries: the maximum is %d", len(in.Ports), MaxPorts)
	}
	var ports []uint16
	for i, p := range in.Ports {
		if p < 1 || p > 65535 {
			return nil, invalid(field, "has %d at [%d]: use ports from 1 to 65535", p, i)
		}
		ports = append(ports, uint16(p))
	}
	switch {
	case len(ports) > 0 || in.Deny:
		return ports, nil
	case in.Protocol == TCP:
		return nil, invalid(field, "is empty: a rule for tcp requires ports")
	case in.Protocol == HTTP:
		return []uint16{80}, nil
	}
	return []uint16{443}, nil
}

// compileRequestFilters compiles the methods and paths of a rule.
func compileRequestFilters(field string, in *Rule, out *rule) error {
	for _, f := range []struct {
		name string
		n    int
		most int
	}{{"methods", len(in.Methods), MaxMethods}, {"paths", len(in.Paths), MaxPaths}} {
		switch {
		case f.n > f.most:
			return invalid(field+"."+f.name, "has %d entries: the maximum is %d", f.n, f.most)
		case f.n > 0 && (in.Protocol == "" || in.Protocol == TLS):
			return invalid(field+"."+f.name, "cannot be checked inside TLS: use protocol http or https")
		case f.n > 0 && in.Protocol == TCP:
			return invalid(field+"."+f.name, "cannot be checked in tcp: use protocol http or https")
		}
	}
	for _, m := range in.Methods {
		m = strings.ToUpper(m)
		switch {
		case !isToken(m):
			return invalid(field+".methods", "has %s: use a method such as GET or POST", quoted(m))
		case m == "CONNECT":
			return invalid(field+".methods", "has CONNECT, which opens a tunnel: use protocol tls or tcp")
		}
		out.methods = append(out.methods, m)
	}
	slices.Sort(out.methods)
	for _, p := range in.Paths {
		one, err := compilePath(p)
		if err != nil {
			return invalid(field+".paths", "has %s: %v", quoted(p), err)
		}
		out.paths = append(out.paths, one)
	}
	return nil
}

// isToken reports whether s is a token of RFC 9110 with at most 64 bytes.
func isToken(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return true
}
