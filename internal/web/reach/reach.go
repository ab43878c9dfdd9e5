// Package reach decides which hosts the web tools may contact. The service's configuration and a
// profile each have [Hosts]; a [Scope] combines both for one call.
//
// The gateway evaluates the same rules again when it connects. The values are immutable after they
// are compiled.
package reach

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Hosts lists which hosts a web tool may contact. Hosts are written as in netpolicy.Rule. The zero
// value allows none.
type Hosts struct {
	// Allow lists hosts to contact over TLS, at Ports (default: 443; in a profile, the service's
	// ports).
	Allow []string `json:"allow,omitempty"`
	// HTTP lists hosts to contact over plain HTTP, at HTTPPorts (default: 80; in a profile, the
	// service's ports). A port cannot be in both lists.
	HTTP      []string `json:"http,omitempty"`
	Ports     []int    `json:"ports,omitempty"`
	HTTPPorts []int    `json:"http_ports,omitempty"`
	// Deny overrides both.
	Deny []string `json:"deny,omitempty"`
	// Methods lists the allowed methods (default: all of the tool's). The tool enforces them
	// itself, because the gateway cannot see them in TLS.
	Methods []string `json:"methods,omitempty"`
}

// Rules returns the equivalent rules for the gateway.
func (h Hosts) Rules() []netpolicy.Rule {
	out := make([]netpolicy.Rule, 0, len(h.Allow)+len(h.HTTP)+len(h.Deny))
	for _, host := range h.Deny {
		out = append(out, netpolicy.Rule{Host: host, Deny: true})
	}
	for _, host := range h.Allow {
		out = append(out, netpolicy.Rule{Host: host, Ports: h.Ports, Protocol: netpolicy.TLS})
	}
	for _, host := range h.HTTP {
		out = append(out, netpolicy.Rule{
			Host: host, Ports: h.HTTPPorts, Protocol: netpolicy.HTTP, Methods: h.Methods,
		})
	}
	return out
}

// Compile validates and compiles the fields. An error starts with the field's name.
func (h Hosts) Compile() (*Limit, error) {
	for _, list := range []struct {
		name  string
		hosts []string
	}{{"allow", h.Allow}, {"http", h.HTTP}, {"deny", h.Deny}} {
		for i, host := range list.hosts {
			if _, err := netpolicy.Compile([]netpolicy.Rule{{Host: host}}); err != nil {
				return nil, fmt.Errorf("%s[%d] %s", list.name, i, afterField(err))
			}
		}
	}
	for _, port := range h.Ports {
		for _, other := range h.HTTPPorts {
			if port == other {
				return nil, fmt.Errorf("http_ports has %d, and ports too: what is spoken at a port is TLS or plain HTTP",
					port)
			}
		}
	}
	for _, part := range []struct {
		name string
		rule netpolicy.Rule
	}{
		{"ports", netpolicy.Rule{Host: "*", Ports: h.Ports}},
		{"http_ports", netpolicy.Rule{Host: "*", Ports: h.HTTPPorts, Protocol: netpolicy.HTTP}},
		{"methods", netpolicy.Rule{Host: "*", Methods: h.Methods, Protocol: netpolicy.HTTP}},
	} {
		if _, err := netpolicy.Compile([]netpolicy.Rule{part.rule}); err != nil {
			return nil, fmt.Errorf("%s %s", part.name, afterField(err))
		}
	}
	out, err := Compile(h.Rules())
	if err != nil {
		return nil, fmt.Errorf("allow makes too many rules: %w", err)
	}
	out.hosts = h
	return out, nil
}

// Compile returns the limit of rules that are not Hosts.
func Compile(rules []netpolicy.Rule) (*Limit, error) {
	compiled, err := netpolicy.Compile(rules)
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(rules)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	return &Limit{Rules: rules, Compiled: compiled, mark: hex.EncodeToString(sum[:])}, nil
}

// afterField returns a netpolicy error for one rule without its location.
func afterField(err error) string {
	_, message, _ := strings.Cut(err.Error(), " ")
	return message
}

// Limit is a compiled, immutable Hosts. The zero value allows nothing.
type Limit struct {
	Rules    []netpolicy.Rule
	Compiled *netpolicy.Rules
	hosts    Hosts
	mark     string // identifies its rules
	key      string // its configuration key
}

// Named returns a copy with a key of the service's configuration, which refusals then name.
func (l *Limit) Named(key string) *Limit {
	named := *l
	named.key = key
	return &named
}

// MaxText bounds Caps.MaxText, in characters.
const MaxText = 200_000

// Caps limits the calls of web tools.
type Caps struct {
	Hosts
	// MaxBytes is the maximum size of a body, and MaxText the maximum number of characters of a
	// text. Zero means the tool's default.
	MaxBytes int64 `json:"max_bytes,omitempty"`
	MaxText  int   `json:"max_text,omitempty"`
	// Limited is the compiled Hosts. nil means that only the service's limits apply.
	Limited *Limit `json:"-"`
}

// Compile validates the fields and sets Limited. An error starts with the field's name. Empty Hosts
// set no limit.
func (c *Caps) Compile() (err error) {
	switch {
	case c.MaxBytes < 0 || c.MaxBytes > web.MaxBody:
		return fmt.Errorf("max_bytes is %d: from 1 to %d", c.MaxBytes, web.MaxBody)
	case c.MaxText < 0 || c.MaxText > MaxText:
		return fmt.Errorf("max_text is %d: from 1 to %d", c.MaxText, MaxText)
	}
	h := c.Hosts
	if len(h.Allow)+len(h.HTTP)+len(h.Ports)+len(h.HTTPPorts)+len(h.Deny)+len(h.Methods) > 0 {
		c.Limited, err = h.Compile()
	}
	return err
}
