package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

func newVersionCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this program and the server",
		Example: `  orchestrator version
  orchestrator version -o json`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.Settings()
			if err != nil {
				return err
			}
			out := struct {
				Version string      `json:"version"`
				Server  *v1.Version `json:"server"`
			}{Version: a.Version}
			t := &cli.Table{}
			t.Add("client", a.Version)
			cl, err := a.FindServer(cmd.Context(), c)
			_, closed := errors.AsType[*client.AccessError](err)
			switch {
			case closed:
				t.Add("server", cli.Describe(err))
				return a.Print(out, t)
			case err != nil && !errors.Is(err, client.ErrNoServer):
				return err
			case cl == nil:
				t.Add("server", fmt.Sprintf("none answers on %s", a.Address(c)))
				return a.Print(out, t)
			}
			v, err := cl.Version(cmd.Context())
			if err != nil {
				return err
			}
			out.Server = &v
			t.Add("server", v.Version)
			t.Add("build", v.Build)
			t.Add("runtime", fmt.Sprintf("%s (%s)", v.Runtime, v.Why))
			t.Add("cgroup", v.Cgroup)
			for _, name := range slices.Sorted(maps.Keys(v.Capabilities)) {
				t.Add(name, v.Capabilities[name])
			}
			return a.Print(out, t)
		},
	}
}
