package sandbox

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

const egressHelp = "egress `RULE` that allows or, with !, denies a host, such as tls://pypi.org, " +
	"http://deb.debian.org/debian/*, tcp://db.internal:5432, '*.example.com' or '!evil.example.com'; can be repeated"

// egressOptions are the egress flags of commands that lease a sandbox.
type egressOptions struct {
	rules, secrets []string
}

func (o *egressOptions) register(f *pflag.FlagSet) {
	f.StringArrayVar(&o.rules, "egress", nil, egressHelp)
	f.StringArrayVar(
		&o.secrets,
		"secret",
		nil,
		"`NAME` of a secret that the proxy adds to requests to its hosts; can be repeated",
	)
}

// egress returns the request's egress, or nil if no flag is given.
func (o egressOptions) egress(cmd *cobra.Command) (*v1.Egress, error) {
	if len(o.rules) == 0 && len(o.secrets) == 0 {
		return nil, nil
	}
	rules, err := egressRules(cmd, "--egress", o.rules)
	if err != nil {
		return nil, err
	}
	return &v1.Egress{Rules: rules, Secrets: o.secrets}, nil
}

func egressRules(cmd *cobra.Command, flag string, list []string) ([]v1.EgressRule, error) {
	rules := []v1.EgressRule{}
	for _, text := range list {
		r, err := egressRule(text)
		if err != nil {
			return nil, cli.Usage(cmd, "%s %q %s", flag, text, err)
		}
		rules = append(rules, r)
	}
	return rules, nil
}

// egressRule reads [!][METHOD,... ][PROTOCOL://]HOST[:PORT,...][/PATH]. The server checks the
// parts.
func egressRule(text string) (r v1.EgressRule, err error) {
	rest, deny := strings.CutPrefix(strings.TrimSpace(text), "!")
	r.Deny = deny
	if methods, after, ok := strings.Cut(rest, " "); ok {
		r.Methods = strings.Split(methods, ",")
		rest = strings.TrimSpace(after)
	}
	if protocol, after, ok := strings.Cut(rest, "://"); ok {
		r.Protocol, rest = protocol, after
	}
	network := strings.Count(rest, "/") == 1 && isRange(rest)
	if i := strings.IndexByte(rest, '/'); i >= 0 && !network {
		if r.Paths = []string{rest[i:]}; rest[i:] == "/" {
			r.Paths = nil // as in a URL
		}
		rest = rest[:i]
	}
	if i := strings.LastIndexByte(rest, ':'); i >= 0 &&
		(!strings.Contains(rest[:i], ":") || strings.HasSuffix(rest[:i], "]")) {
		for p := range strings.SplitSeq(rest[i+1:], ",") {
			n, err := strconv.ParseUint(p, 10, 16)
			if err != nil {
				return r, fmt.Errorf("has an invalid port: use a number from 1 to 65535")
			}
			r.Ports = append(r.Ports, int(n))
		}
		rest = rest[:i]
	}
	if r.Host = strings.Trim(rest, "[]"); r.Host == "" {
		return r, fmt.Errorf("has no host: use [PROTOCOL://]HOST[:PORT][/PATH]")
	}
	return r, nil
}

// isRange reports whether s is a range of addresses, which has a number after its slash.
func isRange(s string) bool {
	host, bits, _ := strings.Cut(s, "/")
	_, err := strconv.Atoi(bits)
	return err == nil && strings.Trim(host, "0123456789abcdefABCDEF.:[]") == ""
}

// egressText formats a rule as egressRule reads it.
func egressText(r v1.EgressRule) string {
	var b strings.Builder
	if r.Deny {
		b.WriteByte('!')
	}
	if len(r.Methods) > 0 {
		b.WriteString(strings.Join(r.Methods, ",") + " ")
	}
	if r.Protocol != "" {
		b.WriteString(r.Protocol + "://")
	}
	host := r.Host
	if len(r.Ports) > 0 && strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	b.WriteString(host)
	for i, p := range r.Ports {
		b.WriteByte(":,"[min(i, 1)])
		b.WriteString(strconv.Itoa(p))
	}
	b.WriteString(strings.Join(r.Paths, " "))
	return b.String()
}

type egressChange struct {
	allow, deny, secrets []string
	clear                bool
}

func newSandboxEgress(a *cli.App) *cobra.Command {
	var o egressChange
	c := &cobra.Command{
		Use:   "egress SANDBOX",
		Short: "Show or change what a sandbox may reach",
		Long: `Show what a sandbox may reach through its proxy, and its last connections, newest
first, with the reason for allowing or refusing each. Flags change the rules at
once: --allow and --deny add rules, --clear removes all rules before that. Open
connections that are no longer allowed are closed.`,
		Example: `  orchestrator sandbox egress $id
  orchestrator sandbox egress $id --allow tls://pypi.org --allow tls://files.pythonhosted.org
  orchestrator sandbox egress $id --deny '*.example.com'
  orchestrator sandbox egress $id --clear`,
		Args: cli.ExactArgs("SANDBOX"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runSandboxEgress(cmd.Context(), a, cmd, args[0], o)
		},
	}
	f := c.Flags()
	f.StringArrayVar(&o.allow, "allow", nil, egressHelp)
	f.StringArrayVar(&o.deny, "deny", nil, "`RULE` of what it must not reach; overrides --allow; can be repeated")
	f.StringArrayVar(
		&o.secrets,
		"secret",
		nil,
		"`NAME` of a secret that the proxy adds to requests to its hosts; can be repeated",
	)
	f.BoolVar(&o.clear, "clear", false, "remove all rules and secrets before adding others")
	return c
}

func runSandboxEgress(ctx context.Context, a *cli.App, cmd *cobra.Command, id string, o egressChange) error {
	allow, err := egressRules(cmd, "--allow", o.allow)
	if err != nil {
		return err
	}
	deny, err := egressRules(cmd, "--deny", o.deny)
	if err != nil {
		return err
	}
	for i := range deny {
		deny[i].Deny = true
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	state, err := cl.Egress.Get(ctx, id)
	if err != nil {
		return err
	}
	if o.clear || len(allow)+len(deny)+len(o.secrets) > 0 {
		now := v1.Egress{}
		if !o.clear {
			now = state.Egress
		}
		now.Rules = slices.Concat(now.Rules, allow, deny)
		for _, s := range o.secrets {
			if !slices.Contains(now.Secrets, s) {
				now.Secrets = append(now.Secrets, s)
			}
		}
		if state, err = cl.Egress.Set(ctx, id, now); err != nil {
			return err
		}
	}
	return printEgress(a, state)
}

func printEgress(a *cli.App, s v1.EgressState) error {
	if a.Flags.Output == "json" {
		return a.PrintJSON(s)
	}
	t := &cli.Table{}
	for i, r := range s.Rules {
		t.Add("rule "+strconv.Itoa(i), egressText(r))
	}
	if len(s.Rules) == 0 {
		t.Add("rules", "none: it reaches nothing")
	}
	if len(s.Secrets) > 0 {
		t.Add("secrets", strings.Join(s.Secrets, " "))
	}
	t.Add("connections", fmt.Sprintf("%d open, %d allowed, %d refused", s.Open, s.Allowed, s.Refused))
	t.Add(
		"bytes",
		fmt.Sprintf("%s sent, %s received", units.HumanSize(float64(s.Sent)), units.HumanSize(float64(s.Received))),
	)
	if err := a.PrintTable(t); err != nil || len(s.Recent) == 0 {
		return err
	}
	if _, err := fmt.Fprintln(a.Stdout); err != nil {
		return err
	}
	list := &cli.Table{
		Head:     []string{"TIME", "HOST", "REQUEST", "ALLOWED", "SENT", "RECEIVED", "TOOK", "REASON"},
		Optional: []string{"SENT", "RECEIVED", "TOOK"},
	}
	for _, c := range s.Recent {
		verdict := "no"
		if c.Allowed {
			verdict = "yes"
		}
		list.Add(
			c.Time.Local().Format(time.TimeOnly),
			cli.HostPort(c.Host, c.Port),
			strings.TrimSpace(c.Method+" "+c.Path),
			verdict,
			units.HumanSize(
				float64(c.Sent),
			),
			units.HumanSize(float64(c.Received)),
			time.Duration(c.DurationMS*float64(time.Millisecond)).Round(time.Millisecond).String(),
			c.Reason,
		)
	}
	return a.PrintTable(list)
}
