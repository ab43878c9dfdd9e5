package netpolicy

import (
	"net/netip"
	"slices"
	"strings"
)

// Decide says whether these rules allow what is wanted, by the order that
// stands at [Compile]. It resolves nothing and keeps nothing.
//
// What is allowed, and with which protocol:
//
//   - A request of plain HTTP: by a rule of https or of http that has its method
//     and path; https comes first. A rule of https is entered at port 80, which
//     leads to the first of its ports, or at each of its ports; Decision.Port is
//     the one outside. Where there are neither, a rule of tcp allows it too.
//   - A tunnel to port 80 by a rule of https (Decision.Port is the one outside),
//     and one to a port of a rule of http: it carries requests of plain HTTP,
//     each of which has to be decided as such, since methods and paths are not
//     looked at here.
//   - A tunnel by a rule of tls, then by one of tcp. So of several rules for one
//     host the tunnel is held to what shows most, whatever else they allow.
//   - No tunnel to a port that only a rule of https has.
//
// What denies is about what would be carried. As nobody sees what is in a
// tunnel of tcp, each rule that denies something at that port denies it; one of
// tls can carry what a rule of tls or https denies, with whatever path. A rule
// that denies never makes another one decide instead.
func (r *Rules) Decide(w Want) Decision { return r.Within(nil, w) }

// Within is Decide with a ceiling: what both allow, held to the narrower
// protocol of both. The reason names the ceiling where that refuses. A nil
// ceiling has no say.
func (r *Rules) Within(ceiling *Rules, w Want) Decision {
	a, err := parseWant(w)
	if err != nil {
		return Decision{Rule: -1, Reason: err.Error()}
	}
	v := r.choose(&a)
	if v.allowed() {
		v.denied = r.denied(&a, v)
	}
	if !v.allowed() {
		return a.refusal(r, v, own)
	}
	if ceiling != nil {
		c := ceiling.cover(&a, v)
		if c.allowed() {
			c.denied = ceiling.denied(&a, c)
		}
		if !c.allowed() {
			return a.refusal(ceiling, c, ceilings)
		}
		v.protocol = c.protocol
	}
	return Decision{
		Allowed: true, Host: a.host, Protocol: v.protocol.String(), Port: int(v.port),
		Reason: r.rules[v.rule].says, Rule: v.rule,
	}
}

// Resolved is what becomes of an allowed decision at an address that its name
// was resolved to: rules that deny an address or a range hold for names that
// lead there. It is asked for each address, besides [Guard.Check].
func (r *Rules) Resolved(d Decision, addr netip.Addr) Decision {
	if r == nil || !d.Allowed || len(r.addrs)+len(r.blocks) == 0 {
		return d
	}
	addr = addr.Unmap()
	a := asked{host: addr.String(), addr: addr, port: uint16(d.Port), tunnel: true}
	v := verdict{rule: d.Rule, near: -1, protocol: protocolNames[d.Protocol], port: a.port}
	if v.denied = r.denied(&a, v); v.allowed() {
		return d
	}
	return Decision{
		Host: d.Host, Port: d.Port, Rule: v.denied,
		Reason: d.Host + " is at " + a.host + ": " + r.rules[v.denied].says,
	}
}

// verdict is what would be done.
type verdict struct {
	rule     int // by which rule; -1 if none allows it
	denied   int // the rule that denies it, -1 if none does
	near     int // a rule that decides and does not allow it, -1 if there is none
	protocol protocols
	port     uint16 // outside
	// asks is the protocol that was looked for, 0 where any would have done.
	asks protocols
}

func (v *verdict) allowed() bool { return v.rule >= 0 && v.denied < 0 }

// asked is a Want in canonical form.
type asked struct {
	host   string
	addr   netip.Addr
	port   uint16
	tunnel bool
	method string
	raw    string // the path as it came, without a query
	path   string // clean
	// unclear is why the path is like none of a rule.
	unclear error
}

// choose takes the most exact host's rules that are entered at the port.
func (r *Rules) choose(a *asked) verdict {
	v := verdict{rule: -1, denied: -1, near: -1, port: a.port, asks: a.usual()}
	if r == nil {
		return v
	}
	for level := range r.levels(a) {
		var seen protocols
		for _, i := range level {
			one := &r.rules[i]
			if !one.enteredAt(a.port) || !one.allows(a) {
				continue
			}
			seen |= one.protocols
			if p := one.carries(a); p == 0 || v.rule >= 0 && v.protocol <= p {
				v.near = int(i)
			} else {
				v.rule, v.protocol, v.port = int(i), p, one.leadsTo(a.port)
			}
		}
		if seen == 0 {
			continue
		}
		if v.protocol == viaTCP && !a.tunnel {
			v.protocol = viaHTTP
			if seen&(viaHTTP|viaHTTPS) != 0 {
				v.rule = -1
			}
		}
		return v
	}
	return v
}

// cover says how a ceiling holds what the rules decided: by the most exact host's
// rules that have the port outside.
func (r *Rules) cover(a *asked, by verdict) verdict {
	v := verdict{rule: -1, denied: -1, near: -1, port: by.port, asks: by.protocol}
	for level := range r.levels(a) {
		var seen, admit protocols
		for _, i := range level {
			one := &r.rules[i]
			if !one.has(by.port) || !one.allows(a) {
				continue
			}
			v.near = int(i)
			seen |= one.protocols
			if a.tunnel || one.admits(a) {
				admit |= one.protocols
			}
		}
		if seen == 0 {
			continue
		}
		if v.protocol = meet(by.protocol, seen, admit); v.protocol != 0 {
			v.rule = v.near
		}
		return v
	}
	return v
}

// meet is the protocol that is left of p under rules of some protocols, of which
// some admit what is asked. 0: none.
func meet(p, seen, admit protocols) protocols {
	switch {
	case p == viaTCP:
		for _, left := range [...]protocols{viaHTTP, viaTLS, viaTCP} {
			if seen&left != 0 {
				return left
			}
		}
		return 0
	case admit&p != 0:
		return p
	case p == viaHTTP && seen&viaHTTP == 0 && seen&viaTCP != 0:
		return p
	case p == viaTLS && seen&viaTCP != 0, p == viaHTTPS && seen&(viaTLS|viaTCP) != 0:
		return p
	}
	return 0
}

// denied is the first rule that denies what would be done, -1 if none does.
func (r *Rules) denied(a *asked, v verdict) int {
	first := -1
	for level := range r.levels(a) {
		for _, i := range level {
			if one := &r.rules[i]; one.deny && one.denies(a, v) && (first < 0 || int(i) < first) {
				first = int(i)
			}
		}
	}
	return first
}

// allows: a * is about names alone, where it allows.
func (one *rule) allows(a *asked) bool {
	return !one.deny && (one.host.kind != every || !a.addr.IsValid())
}

func (one *rule) has(port uint16) bool {
	return len(one.ports) == 0 || slices.Contains(one.ports, port)
}

func (one *rule) enteredAt(port uint16) bool {
	return one.has(port) || one.protocols == viaHTTPS && port == 80
}

func (one *rule) leadsTo(port uint16) uint16 {
	if one.has(port) {
		return port
	}
	return one.ports[0]
}

// carries is the protocol with which a rule that is entered there allows what is
// asked, 0 if it does not.
func (one *rule) carries(a *asked) protocols {
	switch {
	case a.tunnel && one.protocols == viaHTTPS && a.port != 80:
		return 0
	case a.tunnel:
		return one.protocols
	case one.protocols == viaTLS || !one.admits(a):
		return 0
	}
	return one.protocols
}

func (one *rule) admits(a *asked) bool {
	if len(one.methods) > 0 && !slices.Contains(one.methods, a.method) {
		return false
	}
	return len(one.paths) == 0 || a.unclear == nil && one.hasPath(a.path)
}

func (one *rule) narrow() bool { return len(one.methods)+len(one.paths) > 0 }

// denies: what would be done can be what the rule is about.
func (one *rule) denies(a *asked, v verdict) bool {
	can := v.protocol
	switch v.protocol {
	case viaTCP:
		can = anything
	case viaTLS, viaHTTPS:
		can = viaTLS | viaHTTPS
	}
	if one.protocols&can == 0 || !one.has(v.port) {
		return false
	}
	if !one.narrow() {
		return true
	}
	if a.tunnel {
		return v.protocol == viaTLS || v.protocol == viaTCP // else each request is asked for
	}
	same := func(m string) bool { return strings.EqualFold(m, a.method) }
	if len(one.methods) > 0 && !slices.ContainsFunc(one.methods, same) {
		return false
	}
	return len(one.paths) == 0 || a.unclear != nil || one.hasPath(a.path)
}

func (one *rule) hasPath(s string) bool {
	for _, p := range one.paths {
		if p.matches(s, one.deny) {
			return true
		}
	}
	return false
}
