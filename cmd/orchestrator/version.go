package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func (a *app) newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Tell the version, and that of the server if one answers",
		Example: `  orchestrator version
  orchestrator version -o json`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.settings()
			if err != nil {
				return err
			}
			out := struct {
				Version string      `json:"version"`
				Server  *v1.Version `json:"server"`
			}{Version: a.version}
			t := &table{}
			t.add("client", a.version)
			cl, err := a.server(cmd.Context(), c)
			if err != nil {
				return err
			}
			if cl == nil {
				t.add("server", fmt.Sprintf("none answers on %s", a.address(c)))
				return a.print(out, t)
			}
			v, err := cl.Version(cmd.Context())
			if err != nil {
				return err
			}
			out.Server = &v
			t.add("server", v.Version)
			t.add("build", v.Build)
			t.add("runtime", fmt.Sprintf("%s (%s)", v.Runtime, v.Why))
			t.add("cgroup", v.Cgroup)
			for _, name := range slices.Sorted(maps.Keys(v.Capabilities)) {
				t.add(name, v.Capabilities[name])
			}
			return a.print(out, t)
		},
	}
}
