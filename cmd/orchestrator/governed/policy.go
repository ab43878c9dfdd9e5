package governed

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed/present"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
)

// NewPolicyCommand returns "orchestrator policy" with its commands.
func NewPolicyCommand(a *cli.App) *cobra.Command {
	return cli.Group(
		"policy",
		"Ask what a command policy says",
		`  orchestrator policy check --profile phase2 -- 'rm -rf /'`,
		newPolicyCheck(a),
	)
}

type policyOptions struct {
	profile, tool, dir string
	argv               bool
}

// profilesDir adds the flag of commands that read profiles without a server.
func profilesDir(f *pflag.FlagSet, dir *string) {
	f.StringVar(
		dir,
		"profiles-dir",
		"",
		"`DIR` with profiles in addition to the built-in ones (default: the configured one)",
	)
}

func newPolicyCheck(a *cli.App) *cobra.Command {
	var o policyOptions
	c := &cobra.Command{
		Use:   "check [flags] -- COMMAND",
		Short: "Print a policy's decision on a command",
		Long: `Print the decision of a profile's command policy on a shell command line, or with
--argv on a program and its arguments. Nothing runs, no server is needed, and
nothing is recorded.

Exit codes: 0 allow, 116 ask, 117 deny. Errors have other codes, such as 66 for a
profile that does not exist.`,
		Example: `  orchestrator policy check --profile phase2 -- 'sudo rm -rf /'
  orchestrator policy check --profile readonly --argv -o json -- find . -delete
  orchestrator policy check --profile gateway --tool bash -- 'ls | wc -l'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return runPolicyCheck(a, cmd, o, args) },
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.profile, "profile", "", "`NAME` of the profile (default: the configured one)")
	f.StringVar(&o.tool, "tool", "", "`NAME` of a tool of the profile, which may have its own policy")
	profilesDir(f, &o.dir)
	f.BoolVar(&o.argv, "argv", false, "COMMAND is a program and its arguments, without a shell")
	return c
}

func runPolicyCheck(a *cli.App, cmd *cobra.Command, o policyOptions, args []string) error {
	r := v1.PolicyCheck{Profile: o.profile, Tool: o.tool}
	switch {
	case len(args) == 0:
		return cli.Usage(cmd, "COMMAND is missing: give it after --")
	case o.argv:
		r.Argv = args
	case len(args) > 1:
		return cli.Usage(
			cmd,
			"COMMAND is %d arguments: quote it as one, or use --argv for a program and its arguments",
			len(args),
		)
	default:
		r.Command = args[0]
	}
	set, chosen, err := localProfiles(a, o.dir)
	if err != nil {
		return err
	}
	if r.Profile == "" {
		r.Profile = chosen
	}
	v, err := checkPolicy(set, r)
	if err != nil {
		return err
	}
	if err := printVerdict(a, v); err != nil {
		return err
	}
	if v.Verdict != string(policy.Allow) {
		return &cli.VerdictError{Verdict: v}
	}
	return nil
}

// localProfiles returns the profiles that a server with this configuration has, and the name of the
// default one.
func localProfiles(a *cli.App, dir string) (*profile.Set, string, error) {
	c, err := a.Settings()
	if err != nil {
		return nil, "", err
	}
	cli.SetIfGiven(&c.Profiles.Dir, dir)
	set, err := standalone.LoadProfiles(c.Profiles.Dir)
	return set, c.Profiles.Default, err
}

// checkPolicy returns the verdict of a profile's policy, or of the policy of a tool in it.
func checkPolicy(set *profile.Set, r v1.PolicyCheck) (v1.Verdict, error) {
	p, err := set.Get(r.Profile)
	if err != nil {
		return v1.Verdict{}, err
	}
	v, err := p.Check(r.Tool, r.Command, r.Argv)
	if err != nil {
		return v1.Verdict{}, err
	}
	return present.Verdict(v), nil
}

func printVerdict(a *cli.App, v v1.Verdict) error {
	t := &cli.Table{}
	t.Add("verdict", v.Verdict)
	hardDeny := ""
	if v.HardDeny {
		hardDeny = "yes"
	}
	at := ""
	if v.At != nil {
		at = strings.TrimSpace(fmt.Sprintf("line %d, column %d: %s", v.At.Line, v.At.Column, v.At.Text))
	}
	for _, row := range [][]string{
		{"rule", v.Rule}, {"class", v.Class}, {"hard_deny", hardDeny}, {"program", v.Program}, {"at", at}, {"message", v.Message},
	} {
		if row[1] != "" {
			t.Add(row...)
		}
	}
	return a.Print(v, t)
}
