package netpolicy

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Decide decides on a connection, as described at [Compile]. It resolves no name and has no side
// effects.
//
// The allowed connections and their protocols:
//
//   - A plain HTTP request is allowed by a rule for https or http with its method and path; https
//     takes precedence. A rule for https accepts requests to port 80, which go to its first port,
//     and to its own ports. Decision.Port is the port to connect to. Without such rules, a rule for
//     tcp allows the request too.
//   - A tunnel to port 80 is allowed by a rule for https (Decision.Port is the port to connect to),
//     and a tunnel to a port of a rule for http by that rule. Both carry plain HTTP requests. Each
//     of them must be decided separately, because methods and paths are not checked here.
//   - A tunnel is allowed by a rule for tls, then by one for tcp. Of several rules for one host,
//     the one that exposes most of the traffic applies.
//   - A tunnel to a port that only a rule for https has is refused.
//
// A deny rule applies to everything that the connection could carry. The content of a tcp tunnel is
// unknown, so every deny rule for its port applies. A tls tunnel can carry what a deny rule for tls
// or https covers, with any path. A deny rule never makes another allow rule decide.
func (r *Rules) Decide(w Want) Decision { return r.Within(nil, w) }

// Within is like Decide, with a ceiling. It allows what both allow, with the narrower of the two
// protocols. If the ceiling refuses, the reason says so. A nil ceiling allows everything.
func (r *Rules) Within(ceiling *Rules, w Want) Decision {
	a, err := parseWant(w)
	if err != nil {
		return Decision{Rule: -1, Reason: err.Error()}
	}
	v := r.choose(&a)
	if v.allowed() {
		v.denied = r.firstDenial(&a, v)
	}
	if !v.allowed() {
		return a.refusal(r, v, fromRules)
	}
	if ceiling != nil {
		c := ceiling.applyCeiling(&a, v)
		if c.allowed() {
			c.denied = ceiling.firstDenial(&a, c)
		}
		if !c.allowed() {
			return a.refusal(ceiling, c, fromCeiling)
		}
		v.protocol = c.protocol
	}
	return Decision{
		Allowed: true, Host: a.host, Protocol: v.protocol.String(), Port: int(v.port),
		Reason: r.rules[v.rule].summary, Rule: v.rule,
	}
}

// Resolved checks an allowed decision against an address that its name resolved to: deny rules for
// addresses and ranges also apply to names. Call it for each address, in addition to [Guard.Check].
func (r *Rules) Resolved(d Decision, addr netip.Addr) Decision {
	if r == nil || !d.Allowed || len(r.addrs)+len(r.blocks) == 0 {
		return d
	}
	addr = addr.Unmap()
	a := query{host: addr.String(), addr: addr, port: uint16(d.Port), tunnel: true}
	v := verdict{rule: d.Rule, nearMiss: -1, protocol: protocolNames[d.Protocol], port: a.port}
	if v.denied = r.firstDenial(&a, v); v.allowed() {
		return d
	}
	return Decision{
		Host: d.Host, Port: d.Port, Rule: v.denied,
		Reason: d.Host + " is at " + a.host + ": " + r.rules[v.denied].summary,
	}
}

// verdict is an intermediate result of a decision.
type verdict struct {
	rule     int // index of the rule that allows it, or -1
	denied   int // index of the rule that denies it, or -1
	nearMiss int // index of a rule for this host and port that does not allow it, or -1
	protocol protocols
	port     uint16 // to connect to
	// wantProtocol is the protocol that was required, or 0 for any.
	wantProtocol protocols
}

func (v *verdict) allowed() bool { return v.rule >= 0 && v.denied < 0 }

// query is a Want in canonical form.
type query struct {
	host   string
	addr   netip.Addr
	port   uint16
	tunnel bool
	method string
	raw    string // the path as received, without the query
	path   string // canonical
	// pathErr is why the path cannot be compared with paths of rules, or nil.
	pathErr error
}

// choose returns the verdict of the most specific host's rules that accept the port.
func (r *Rules) choose(a *query) verdict {
	v := verdict{rule: -1, denied: -1, nearMiss: -1, port: a.port, wantProtocol: a.usualProtocol()}
	if r == nil {
		return v
	}
	for level := range r.matchLevels(a) {
		var seen protocols
		for _, i := range level {
			one := &r.rules[i]
			if !one.acceptsPort(a.port) || !one.allows(a) {
				continue
			}
			seen |= one.protocols
			if p := one.protocolFor(a); p == 0 || v.rule >= 0 && v.protocol <= p {
				v.nearMiss = int(i)
			} else {
				v.rule, v.protocol, v.port = int(i), p, one.outsidePort(a.port)
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

// applyCeiling returns the verdict of a ceiling on what the rules decided. It uses the most
// specific host's rules that have the port to connect to.
func (r *Rules) applyCeiling(a *query, by verdict) verdict {
	v := verdict{rule: -1, denied: -1, nearMiss: -1, port: by.port, wantProtocol: by.protocol}
	for level := range r.matchLevels(a) {
		var seen, admit protocols
		for _, i := range level {
			one := &r.rules[i]
			if !one.hasPort(by.port) || !one.allows(a) {
				continue
			}
			v.nearMiss = int(i)
			seen |= one.protocols
			if a.tunnel || one.matchesRequest(a) {
				admit |= one.protocols
			}
		}
		if seen == 0 {
			continue
		}
		if v.protocol = narrowerProtocol(by.protocol, seen, admit); v.protocol != 0 {
			v.rule = v.nearMiss
		}
		return v
	}
	return v
}

// narrowerProtocol returns the protocol that remains of p under rules with the protocols seen, of
// which those in admit match the request. It returns 0 if none remains.
func narrowerProtocol(p, seen, admit protocols) protocols {
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

// firstDenial returns the index of the first rule that denies the verdict, or -1.
func (r *Rules) firstDenial(a *query, v verdict) int {
	first := -1
	for level := range r.matchLevels(a) {
		for _, i := range level {
			if one := &r.rules[i]; one.deny && one.denies(a, v) && (first < 0 || int(i) < first) {
				first = int(i)
			}
		}
	}
	return first
}

// allows reports whether the rule allows the host. As an allow rule, * covers names only.
func (one *rule) allows(a *query) bool {
	return !one.deny && (one.host.kind != anyName || !a.addr.IsValid())
}

func (one *rule) hasPort(port uint16) bool {
	return len(one.ports) == 0 || slices.Contains(one.ports, port)
}

func (one *rule) acceptsPort(port uint16) bool {
	return one.hasPort(port) || one.protocols == viaHTTPS && port == 80
}

func (one *rule) outsidePort(port uint16) uint16 {
	if one.hasPort(port) {
		return port
	}
	return one.ports[0]
}

// protocolFor returns the protocol with which the rule, which accepts the port, allows the query.
// It returns 0 if it does not.
func (one *rule) protocolFor(a *query) protocols {
	switch {
	case a.tunnel && one.protocols == viaHTTPS && a.port != 80:
		return 0
	case a.tunnel:
		return one.protocols
	case one.protocols == viaTLS || !one.matchesRequest(a):
		return 0
	}
	return one.protocols
}

func (one *rule) matchesRequest(a *query) bool {
	if len(one.methods) > 0 && !slices.Contains(one.methods, a.method) {
		return false
	}
	return len(one.paths) == 0 || a.pathErr == nil && one.hasPath(a.path)
}

func (one *rule) hasRequestFilter() bool { return len(one.methods)+len(one.paths) > 0 }

// denies reports whether the verdict's connection could carry what the rule denies.
func (one *rule) denies(a *query, v verdict) bool {
	can := v.protocol
	switch v.protocol {
	case viaTCP:
		can = anyProtocol
	case viaTLS, viaHTTPS:
		can = viaTLS | viaHTTPS
	default:
	}
	if one.protocols&can == 0 || !one.hasPort(v.port) {
		return false
	}
	if !one.hasRequestFilter() {
		return true
	}
	if a.tunnel {
		return v.protocol == viaTLS || v.protocol == viaTCP // requests in tunnels of other protocols are decided separately
	}
	same := func(m string) bool { return strings.EqualFold(m, a.method) }
	if len(one.methods) > 0 && !slices.ContainsFunc(one.methods, same) {
		return false
	}
	return len(one.paths) == 0 || a.pathErr != nil || one.hasPath(a.path)
}

func (one *rule) hasPath(s string) bool {
	for _, p := range one.paths {
		if p.matches(s, one.deny) {
			return true
		}
	}
	return false
}

func parseWant(w Want) (query, error) {
	a := query{tunnel: w.Tunnel, method: w.Method}
	var err error
	if a.host, a.addr, err = CanonicalHost(w.Host); err != nil {
		return a, err
	}
	if w.Port < 1 || w.Port > 65535 {
		return a, fmt.Errorf("invalid port %d: use 1 to 65535", w.Port)
	}
	a.port = uint16(w.Port)
	if w.Tunnel {
		return a, nil
	}
	if !isToken(w.Method) {
		return a, fmt.Errorf("invalid method %s: use a name such as GET", quoted(w.Method))
	}
	if w.Method == http.MethodConnect {
		return a, errors.New("invalid method CONNECT: it opens a tunnel and is not a plain HTTP request")
	}
	a.raw, _, _ = strings.Cut(w.Path, "?")
	a.path, a.pathErr = cleanPath(a.raw)
	return a, nil
}

// ruleSource is the origin of the rules that refuse: the prefix of the reason, and the remedy.
type ruleSource struct{ prefix, remedy string }

var (
	fromRules   = ruleSource{"", "add one to egress.rules"}
	fromCeiling = ruleSource{"the ceiling: ", "an operator can raise it in egress.allow"}
)

// refusal returns the decision for a query that is not allowed. Its reason includes the remedy.
func (a *query) refusal(r *Rules, v verdict, by ruleSource) Decision {
	d := Decision{Host: a.host, Port: int(a.port), Rule: -1}
	where := net.JoinHostPort(a.host, strconv.Itoa(int(v.port)))
	switch {
	case v.denied >= 0:
		d.Rule = v.denied
		d.Reason = fmt.Sprintf("%s is denied: %s", where, r.rules[v.denied].summary)
		if a.tunnel && r.rules[v.denied].hasRequestFilter() {
			d.Reason += fmt.Sprintf(", which a tunnel of %s can carry", v.protocol)
		}
	case v.nearMiss >= 0:
		d.Rule = v.nearMiss
		d.Reason = a.nearMissReason(where, v, &r.rules[v.nearMiss])
	case a.addr.IsValid():
		d.Reason = fmt.Sprintf("no rule allows the bare address %s: use the host's name, or a rule for the address", where)
	default:
		d.Reason = fmt.Sprintf("no rule allows %s%s: %s", where, v.withProtocol(), by.remedy)
	}
	d.Reason = by.prefix + d.Reason
	return d
}

// nearMissReason returns what a rule for this host and port lacks.
func (a *query) nearMissReason(where string, v verdict, one *rule) string {
	switch {
	case a.tunnel && one.protocols == viaHTTPS:
		return fmt.Sprintf("no rule allows a tunnel to %s: %s, so use http://%s/ without TLS, or add a rule with tls", where,
			one.summary, a.host)
	case a.tunnel || one.protocols&(viaHTTP|viaHTTPS) == 0:
		return fmt.Sprintf("no rule allows %s%s: %s only", where, v.withProtocol(), one.summary)
	case a.pathErr != nil && len(one.paths) > 0:
		return fmt.Sprintf("no rule allows the path %s at %s: %v", quoted(a.raw), where, a.pathErr)
	case one.protocols == v.wantProtocol || v.wantProtocol == viaHTTP:
		return fmt.Sprintf("no rule allows %s of %s at %s: %s for other methods or paths", a.method, quoted(a.raw), where,
			one.summary)
	}
	return fmt.Sprintf("no rule allows %s%s: %s only", where, v.withProtocol(), one.summary)
}

// usualProtocol returns the protocol that such a query usually means, or 0.
func (a *query) usualProtocol() protocols {
	switch {
	case !a.tunnel:
		return viaHTTP
	case a.port == 443:
		return viaTLS
	}
	return 0
}

func (v *verdict) withProtocol() string {
	if v.wantProtocol == 0 {
		return ""
	}
	return " with " + v.wantProtocol.String()
}

// describe returns the rule in words.
func (one *rule) describe() string {
	switch {
	case !one.deny:
		return fmt.Sprintf("allows %s with %s", &one.host, one.protocols)
	case one.hasRequestFilter():
		return fmt.Sprintf("denies some requests of %s to %s", one.protocols, &one.host)
	case one.protocols == anyProtocol:
		return fmt.Sprintf("denies %s", &one.host)
	}
	return fmt.Sprintf("denies %s with %s", &one.host, one.protocols)
}

// String returns the name of a single protocol.
func (p protocols) String() string {
	switch p {
	case viaHTTPS:
		return HTTPS
	case viaHTTP:
		return HTTP
	case viaTLS:
		return TLS
	case viaTCP:
		return TCP
	default:
		return "anything"
	}
}
