package config

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Egress configures network access. Whatever it contains, a sandbox without rules has no network
// access.
type Egress struct {
	// Enabled starts the gateway. Without it no sandbox can have rules.
	Enabled bool `json:"enabled"`
	// Resolver lists name servers as ADDRESS or ADDRESS:PORT (default: the host's).
	Resolver []string `json:"resolver"`
	// Private lists hosts that may be reached at addresses that are not public.
	Private []EgressPrivate `json:"private"`
	// Allow limits what callers with tokens may request (default: nothing). Operators are not
	// limited.
	Allow []EgressAllowance `json:"allow"`
	// Secrets are credentials that the gateway adds to requests.
	Secrets []EgressSecret `json:"secrets"`
	// CAFile contains additional certificate authorities, in PEM, for rules with protocol https.
	CAFile string       `json:"ca_file"`
	Limits EgressLimits `json:"limits"`
}

// EgressPrivate is an exception for internal services.
type EgressPrivate struct {
	// Hosts may be reached at addresses of Ranges, although these are not public.
	Hosts  []string `json:"hosts"`
	Ranges []string `json:"ranges"`
}

// EgressRule corresponds to netpolicy.Rule.
type EgressRule struct {
	// Host is a name, "*.NAME" for the names below it, or an address. Ports are those that may be
	// reached (default: by Protocol).
	Host  string `json:"host"`
	Ports []int  `json:"ports"`
	// Protocol is "tls", "https", "http" or "tcp" (default: tls). Methods and Paths restrict
	// requests, and empty means all. Deny refuses what the rule matches.
	Protocol string   `json:"protocol"`
	Methods  []string `json:"methods"`
	Paths    []string `json:"paths"`
	Deny     bool     `json:"deny"`
}

// EgressAllowance is a rule and the callers that may use it.
type EgressAllowance struct {
	EgressRule
	// Callers and Profiles restrict it. Empty or "*" means all.
	Callers  []string `json:"callers"`
	Profiles []string `json:"profiles"`
}

// EgressSecret is a credential. Its value never enters a sandbox.
type EgressSecret struct {
	// Name is how requests name the credential. It is added to requests to Hosts.
	Name  string   `json:"name"`
	Hosts []string `json:"hosts"`
	// Header is set to Prefix and the trimmed content of ValueFile.
	Header    string `json:"header"`
	Prefix    string `json:"prefix"`
	ValueFile string `json:"value_file"`
	// Env names a variable that holds a placeholder in the sandbox, for programs that require it.
	// "" means none.
	Env string `json:"env"`
	// Callers lists who may use it in addition to operators. "*" means all.
	Callers []string `json:"callers"`
}

// EgressLimits limits one sandbox's use of the gateway.
type EgressLimits struct {
	// Connections limits concurrent connections. Bytes limits the bytes in both directions during
	// the sandbox's life. 0 means unlimited.
	Connections int  `json:"connections"`
	Bytes       Size `json:"bytes"`
	// Connect and Header limit the phases of a connection. Idle ends a connection without traffic,
	// and MaxTime ends any connection (0: never).
	Connect Duration `json:"connect"`
	Header  Duration `json:"header"`
	Idle    Duration `json:"idle"`
	MaxTime Duration `json:"max_time"`
}

func defaultEgress() Egress {
	return Egress{
		Enabled: true, Resolver: []string{}, Private: []EgressPrivate{}, Allow: []EgressAllowance{},
		Secrets: []EgressSecret{},
		Limits: EgressLimits{
			Connections: netpolicy.DefaultConnections, Connect: Duration(netpolicy.DefaultDialTime),
			Header: Duration(netpolicy.DefaultHeaderTime),
			Idle:   Duration(netpolicy.DefaultIdleTime), MaxTime: Duration(netpolicy.DefaultMaxTime),
		},
	}
}

// Rules returns Allow as gateway rules.
func (e Egress) Rules() []netpolicy.Rule {
	out := make([]netpolicy.Rule, 0, len(e.Allow))
	for _, r := range e.Allow {
		out = append(out, netpolicy.Rule(r.EgressRule))
	}
	return out
}

// Exceptions returns Private as gateway exceptions.
func (e Egress) Exceptions() ([]netpolicy.Private, error) {
	var out []netpolicy.Private
	for i, p := range e.Private {
		one := netpolicy.Private{Hosts: p.Hosts}
		for j, text := range p.Ranges {
			r, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, bad(fmt.Sprintf("egress.private[%d].ranges[%d]", i, j), quoted(text),
					`must be an address range, such as "10.1.0.0/16"`)
			}
			one.Ranges = append(one.Ranges, r)
		}
		out = append(out, one)
	}
	return out, nil
}

var variables = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)

func (e Egress) validate() error {
	if _, err := netpolicy.NewResolver(e.Resolver); err != nil {
		return rephrased(err)
	}
	private, err := e.Exceptions()
	if err != nil {
		return err
	}
	if _, err := netpolicy.NewGuard(private); err != nil {
		return rephrased(err)
	}
	if _, err := netpolicy.Compile(e.Rules()); err != nil {
		return rephrased(err)
	}
	for i, a := range e.Allow {
		at := "egress.allow[" + strconv.Itoa(i) + "]"
		if err := errors.Join(named(at+".callers", a.Callers), named(at+".profiles", a.Profiles)); err != nil {
			return err
		}
	}
	if e.CAFile != "" && !isAbsolute(e.CAFile) {
		return bad("egress.ca_file", e.CAFile, "must be an absolute path")
	}
	var secrets []netpolicy.Secret
	for i, s := range e.Secrets {
		if err := s.validate("egress.secrets[" + strconv.Itoa(i) + "]"); err != nil {
			return err
		}
		// Use a placeholder: the value is read at startup.
		secrets = append(secrets, netpolicy.Secret{Name: s.Name, Hosts: s.Hosts, Header: s.Header, Value: s.Prefix + "x"})
	}
	if err := netpolicy.CheckSecrets(secrets); err != nil {
		return rephrased(err)
	}
	return e.Limits.validate()
}

// rephrased rewords a gateway error in terms of the file.
func rephrased(err error) error {
	if e, ok := errors.AsType[*netpolicy.InvalidError](err); ok {
		return fmt.Errorf("configuration: %s %s: %w", strings.Replace(e.Field, "egress.rules", "egress.allow", 1), e.Message,
			e.Unwrap())
	}
	return fmt.Errorf("configuration: %w: %w", err, errdefs.ErrInvalidArgument)
}

// validate checks the fields that the gateway does not know.
func (s EgressSecret) validate(at string) error {
	switch {
	case !isAbsolute(s.ValueFile):
		return bad(at+".value_file", quoted(s.ValueFile), "must be an absolute path")
	case strings.ContainsAny(s.Prefix, "\r\n\x00"):
		return bad(at+".prefix", quoted(s.Prefix), "must not contain line breaks or NUL bytes")
	case s.Env != "" && !variables.MatchString(s.Env):
		return bad(at+".env", quoted(s.Env), "must be the name of an environment variable, such as API_TOKEN")
	}
	return named(at+".callers", s.Callers)
}

// named checks a list of names.
func named(field string, list []string) error {
	for _, n := range list {
		if n != "*" && !names.MatchString(n) {
			return bad(field, quoted(n), namesText+`; "*" means all`)
		}
	}
	return nil
}

// Gateway returns the limits as netpolicy.Limits.
func (l EgressLimits) Gateway() netpolicy.Limits {
	out := netpolicy.Limits{
		Connections: l.Connections, Bytes: int64(l.Bytes), DialTime: l.Connect.Std(), HeaderTime: l.Header.Std(),
		IdleTime: l.Idle.Std(), MaxTime: l.MaxTime.Std(),
	}
	if l.MaxTime == 0 {
		out.MaxTime = -1 // zero would mean its default
	}
	return out
}

func (l EgressLimits) validate() error {
	switch {
	case l.Connections < 1 || l.Connections > netpolicy.DefaultConnections:
		return bad("egress.limits.connections", l.Connections,
			"must be from 1 to "+strconv.Itoa(netpolicy.DefaultConnections))
	case l.Bytes < 0:
		return bad("egress.limits.bytes", l.Bytes, "must not be negative; 0 is unlimited")
	case l.Connect < Duration(time.Millisecond) || l.Connect > Duration(time.Minute):
		return bad("egress.limits.connect", l.Connect, "must be from 1ms to 1m")
	case l.Header < Duration(time.Millisecond) || l.Header > Duration(time.Minute):
		return bad("egress.limits.header", l.Header, "must be from 1ms to 1m")
	case l.Idle < Duration(time.Millisecond):
		return bad("egress.limits.idle", l.Idle, "must be at least 1ms")
	case l.MaxTime < 0:
		return bad("egress.limits.max_time", l.MaxTime, "must not be negative; 0 is unlimited")
	}
	return nil
}
