package netpolicy

import (
	"slices"
	"strings"
)

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
	err = compileNarrow(field, in, &out)
	return out, err
}

func compileProtocol(field string, in *Rule) (protocols, error) {
	if in.Protocol == "" && in.Deny {
		return anything, nil
	}
	name := in.Protocol
	if name == "" {
		name = TLS
	}
	p, ok := protocolNames[name]
	if !ok {
		return 0, invalid(field, "is %s: it is tls, http, https or tcp", quoted(name))
	}
	if in.Deny && p == viaTCP {
		return anything, nil
	}
	return p, nil
}

func compilePorts(field string, in *Rule) ([]uint16, error) {
	if len(in.Ports) > MaxPorts {
		return nil, invalid(field, "are %d: %d is the most", len(in.Ports), MaxPorts)
	}
	var ports []uint16
	for i, p := range in.Ports {
		if p < 1 || p > 65535 {
			return nil, invalid(field, "has %d at [%d]: ports are 1 to 65535", p, i)
		}
		ports = append(ports, uint16(p))
	}
	switch {
	case len(ports) > 0 || in.Deny:
		return ports, nil
	case in.Protocol == TCP:
		return nil, invalid(field, "is empty: a rule of tcp names its ports")
	case in.Protocol == HTTP:
		return []uint16{80}, nil
	}
	return []uint16{443}, nil
}

// compileNarrow is for what narrows a rule to some requests.
func compileNarrow(field string, in *Rule, out *rule) error {
	for _, f := range []struct {
		name string
		n    int
		most int
	}{{"methods", len(in.Methods), MaxMethods}, {"paths", len(in.Paths), MaxPaths}} {
		switch {
		case f.n > f.most:
			return invalid(field+"."+f.name, "are %d: %d is the most", f.n, f.most)
		case f.n > 0 && (in.Protocol == "" || in.Protocol == TLS):
			return invalid(field+"."+f.name, "cannot be seen inside TLS: use protocol http or https")
		case f.n > 0 && in.Protocol == TCP:
			return invalid(field+"."+f.name, "cannot be seen in tcp: use protocol http or https")
		}
	}
	for _, m := range in.Methods {
		m = strings.ToUpper(m)
		switch {
		case !isToken(m):
			return invalid(field+".methods", "has %s: a method is a word as GET or POST", quoted(m))
		case m == "CONNECT":
			return invalid(field+".methods", "has CONNECT, which is a tunnel: use protocol tls or tcp")
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

// isToken is RFC 9110's token, of at most 64 bytes.
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
