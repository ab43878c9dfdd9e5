//go:build linux

package standalone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/kubernetes"
)

// openKubernetes opens the driver for a cluster. Its directory in the state directory is empty: it
// says that there may be pods, so that `orchestrator down` looks for them.
func (d Drivers) openKubernetes(ctx context.Context) (runtime.Driver, string, error) {
	c := d.Config.Kubernetes
	pods := make(map[string]kubernetes.PodOptions, len(c.Pods))
	for name, p := range c.Pods {
		pods[name] = podOptions(p)
	}
	classes := make(map[runtime.Class]string, len(c.Classes))
	for class, name := range c.Classes {
		classes[runtime.Class(class)] = name
	}
	got, err := kubernetes.New(ctx, kubernetes.Options{
		Kubeconfig: c.Kubeconfig, Context: c.Context, Namespace: c.Namespace, GuestImage: c.GuestImage,
		GVisorSeccompProfile: c.GVisorSeccompProfile, Classes: classes,
		Stream: c.Stream, Network: c.Network, SeccompProfile: c.SeccompProfile, PodPids: c.PodPids, CPURequest: c.CPURequest,
		PullPolicy: c.PullPolicy, Deadline: c.Deadline.Std(), Pod: podOptions(c.Pod), Pods: pods,
		Election: c.Election, Epoch: d.Epoch, Superseded: d.Superseded, Log: d.Log,
	})
	if err != nil {
		return nil, "", err
	}
	if err := os.MkdirAll(filepath.Join(d.StateDir, RuntimeKubernetes), 0o700); err != nil {
		return nil, "", fmt.Errorf("make the directory of runtime kubernetes: %w", errors.Join(err, got.Close()))
	}
	info := got.Info()
	return got, info, nil
}

func podOptions(c config.KubernetesPod) kubernetes.PodOptions {
	out := kubernetes.PodOptions{
		NodeSelector: c.NodeSelector, RuntimeClass: c.RuntimeClass, PriorityClass: c.PriorityClass, ImagePullSecrets: c.ImagePullSecrets,
		UserNamespaces: c.UserNamespaces, Provider: c.Provider, WarmPool: c.WarmPool,
		Workspace: kubernetes.WorkspaceOptions{
			StorageClass: c.Workspace.StorageClass, Bytes: int64(c.Workspace.Size),
			AccessMode: c.Workspace.AccessMode,
		},
	}
	for _, t := range c.Tolerations {
		out.Tolerations = append(out.Tolerations, kubernetes.Toleration(t))
	}
	return out
}
