package service

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// NewKubernetesCommand returns the commands that prepare a cluster.
func NewKubernetesCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use: "kubernetes", Short: "Prepare the nodes of a cluster",
		Example: `  orchestrator kubernetes seccomp >orchestrator.json`,
	}
	var class string
	seccomp := &cobra.Command{
		Use:   "seccomp",
		Short: "Print the seccomp profile for kubernetes.seccomp_profile",
		Long: `Print the seccomp profile of sandboxes for this machine's architecture and kernel.

Store it below the seccomp directory of every kubelet, and name it in
kubernetes.seccomp_profile. The one of --class gvisor belongs in
kubernetes.gvisor_seccomp_profile.`,
		Example: `  orchestrator kubernetes seccomp >/var/lib/kubelet/seccomp/orchestrator.json`,
		Args:    cli.ExactArgs(),
		RunE: func(*cobra.Command, []string) error {
			of, err := runtime.ParseClass(class)
			if err != nil {
				return err
			}
			profile := ocispec.SeccompJSON
			if of == runtime.ClassGVisor {
				profile = ocispec.GVisorSeccompJSON
			}
			text, err := profile()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Stdout, "%s\n", text)
			return err
		},
	}
	seccomp.Flags().StringVar(&class, "class", "", "isolation `CLASS`: container, gvisor or vm (default: container)")
	c.AddCommand(seccomp)
	return c
}
