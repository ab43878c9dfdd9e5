// Command k8snode contains the Kubernetes components of the test node in one binary: one link step
// instead of six.
//
// The first argument selects the component: etcd, kube-apiserver, kube-controller-manager,
// kube-scheduler, kubelet or kubectl. The binary is also that component if its file has that name.
// integration/scripts/kubernetes.sh builds and runs it. The directory is a separate module, so that
// the product does not depend on these modules.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var components = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"}

func main() {
	name, args := filepath.Base(os.Args[0]), os.Args[1:]
	if !slices.Contains(components, name) && len(args) > 0 {
		name, args = args[0], args[1:]
	}
	os.Args = append([]string{name}, args...)
	var cmd *cobra.Command
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "kube-apiserver":
		cmd = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		cmd = kcm.NewControllerManagerCommand()
	case "kube-scheduler":
		cmd = scheduler.NewSchedulerCommand()
	case "kubelet":
		cmd = kubelet.NewKubeletCommand(context.Background()) // It installs its own signal handler.
	case "kubectl":
		cmd = kubectl.NewDefaultKubectlCommand()
		if err := cli.RunNoErrOutput(cmd); err != nil {
			util.CheckErr(err)
		}
		return
	default:
		fmt.Fprintln(os.Stderr, "usage: k8snode", strings.Join(components, "|"), "[FLAGS]")
		os.Exit(2)
	}
	os.Exit(cli.Run(cmd))
}
