package netpolicy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"
)

// Bounds of what is compiled.
const (
	MaxRules   = 256
	MaxPorts   = 64   // of a rule
	MaxMethods = 32   // of a rule
	MaxPaths   = 64   // of a rule
	MaxPath    = 2048 // bytes of one
	// MaxText is how long all hosts, methods and paths are together, in bytes: who
	// keeps rules keeps them for each sandbox.
	MaxText = 64 << 10
)

// InvalidError is a field that is not what it has to be; its message says what
// it has to be. It is of the class errdefs.ErrInvalidArgument.
type InvalidError struct {
	Field, Message string
}

// Error begins with the field.
func (e *InvalidError) Error() string { return e.Field + " " + e.Message }

// Unwrap gives the class.
func (e *InvalidError) Unwrap() error { return errdefs.ErrInvalidArgument }

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// Rules are compiled: they do not change, and are safe for concurrent use. Nil
// is no rules.
type Rules struct {
	rules []rule
	// Where the rules of a host stand, by the kind of their pattern.
	names  map[string][]int32
	below  map[string][]int32
	every  []int32
	addrs  map[netip.Addr][]int32
	blocks map[netip.Prefix][]int32
	// bits4 and bits6 are the lengths that blocks has, the longest first.
	bits4, bits6 []int
}

// rule is a Rule in the form that is compared.
type rule struct {
	host      pattern
	ports     []uint16 // none: all, of a rule that denies
	protocols protocols
	methods   []string
	paths     []path
	deny      bool
	// says is what the rule does, in words.
	says string
}

// protocols is a set. What shows most of what is carried comes first.
type protocols uint8

const (
	viaHTTPS protocols = 1 << iota
	viaHTTP
	viaTLS
	viaTCP
	anything = viaTLS | viaHTTP | viaHTTPS | viaTCP
)

var protocolNames = map[string]protocols{TLS: viaTLS, HTTP: viaHTTP, HTTPS: viaHTTPS, TCP: viaTCP}

// Compile looks at each field of the rules. An error is an *InvalidError that
// names the field ("egress.rules[2].paths").
//
// What rules mean together:
//
//   - A rule that denies wins over all that allow. One of protocol tcp is about
//     all protocols, as one that names none.
//   - Of the rules that allow something at the port that is wanted, those with
//     the most exact host decide alone: a name before *.example.com, the longer
//     one of two of these before the other, these before *; an address before a
//     range, the smaller range before the other. So what a rule says of one host
//     is not widened by what another says of many.
//   - Rules of one and the same host add up.
//   - What no rule allows is refused.
func Compile(rules []Rule) (*Rules, error) {
	if len(rules) > MaxRules {
		return nil, invalid("egress.rules", "are %d: %d is the most", len(rules), MaxRules)
	}
	if n := textOf(rules); n > MaxText {
		return nil, invalid("egress.rules", "have %d bytes of hosts, methods and paths: %d is the most", n, MaxText)
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
		one.says = fmt.Sprintf("rule %d %s", i, one.describe())
		r.rules = append(r.rules, one)
		r.index(&r.rules[i].host, int32(i))
	}
	return r, nil
}

func textOf(rules []Rule) (n int) {
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

// Empty says that nothing can be allowed by these rules.
func (r *Rules) Empty() bool {
	return r == nil || !slices.ContainsFunc(r.rules, func(one rule) bool { return !one.deny })
}

func (r *Rules) index(p *pattern, i int32) {
	switch p.kind {
	case exact:
		r.names[p.name] = append(r.names[p.name], i)
	case below:
		r.below[p.name] = append(r.below[p.name], i)
	case every:
		r.every = append(r.every, i)
	case single:
		r.addrs[p.addr] = append(r.addrs[p.addr], i)
	case network:
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
