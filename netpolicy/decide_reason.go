package netpolicy

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

func parseWant(w Want) (asked, error) {
	a := asked{tunnel: w.Tunnel, method: w.Method}
	var err error
	if a.host, a.addr, err = CanonicalHost(w.Host); err != nil {
		return a, err
	}
	if w.Port < 1 || w.Port > 65535 {
		return a, fmt.Errorf("%d is no port: ports are 1 to 65535", w.Port)
	}
	a.port = uint16(w.Port)
	if w.Tunnel {
		return a, nil
	}
	if !isToken(w.Method) {
		return a, fmt.Errorf("%s is no method", quoted(w.Method))
	}
	if w.Method == "CONNECT" {
		return a, errors.New("CONNECT asks for a tunnel, and is no request of http")
	}
	a.raw, _, _ = strings.Cut(w.Path, "?")
	a.path, a.unclear = cleanPath(a.raw)
	return a, nil
}

// whose rules they are that refuse: what stands before the reason, and the way out.
type whose struct{ says, wayOut string }

var (
	own      = whose{"", "add one to egress.rules"}
	ceilings = whose{"the ceiling: ", "an operator can raise it in egress.allow"}
)

// refusal is the decision for what is not allowed, with the way out.
func (a *asked) refusal(r *Rules, v verdict, by whose) Decision {
	d := Decision{Host: a.host, Port: int(a.port), Rule: -1}
	where := net.JoinHostPort(a.host, strconv.Itoa(int(v.port)))
	switch {
	case v.denied >= 0:
		d.Rule = v.denied
		d.Reason = fmt.Sprintf("%s is denied: %s", where, r.rules[v.denied].says)
		if a.tunnel && r.rules[v.denied].narrow() {
			d.Reason += fmt.Sprintf(", which a tunnel of %s can carry", v.protocol)
		}
	case v.near >= 0:
		d.Rule = v.near
		d.Reason = a.missed(where, v, &r.rules[v.near])
	case a.addr.IsValid():
		d.Reason = fmt.Sprintf("no rule allows the bare address %s: use the host's name, or a rule for the address", where)
	default:
		d.Reason = fmt.Sprintf("no rule allows %s%s: %s", where, v.with(), by.wayOut)
	}
	d.Reason = by.says + d.Reason
	return d
}

// missed says what a rule for this host and port lacks.
func (a *asked) missed(where string, v verdict, one *rule) string {
	switch {
	case a.tunnel && one.protocols == viaHTTPS:
		return fmt.Sprintf("no rule allows a tunnel to %s: %s, so ask for http://%s/ without TLS, or add a rule with tls", where, one.says, a.host)
	case a.tunnel || one.protocols&(viaHTTP|viaHTTPS) == 0:
		return fmt.Sprintf("no rule allows %s%s: %s alone", where, v.with(), one.says)
	case a.unclear != nil && len(one.paths) > 0:
		return fmt.Sprintf("no rule allows the path %s at %s: %v", quoted(a.raw), where, a.unclear)
	case one.protocols == v.asks || v.asks == viaHTTP:
		return fmt.Sprintf("no rule allows %s of %s at %s: %s for other methods or paths", a.method, quoted(a.raw), where, one.says)
	}
	return fmt.Sprintf("no rule allows %s%s: %s alone", where, v.with(), one.says)
}

// usual is the protocol that such a want most often means.
func (a *asked) usual() protocols {
	switch {
	case !a.tunnel:
		return viaHTTP
	case a.port == 443:
		return viaTLS
	}
	return 0
}

func (v *verdict) with() string {
	if v.asks == 0 {
		return ""
	}
	return " with " + v.asks.String()
}

// describe is the rule in words.
func (one *rule) describe() string {
	switch {
	case !one.deny:
		return fmt.Sprintf("allows %s with %s", &one.host, one.protocols)
	case one.narrow():
		return fmt.Sprintf("denies some requests of %s to %s", one.protocols, &one.host)
	case one.protocols == anything:
		return fmt.Sprintf("denies %s", &one.host)
	}
	return fmt.Sprintf("denies %s with %s", &one.host, one.protocols)
}

// String is the name of a single protocol.
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
	}
	return "anything"
}
