package kubernetes

import "github.com/sandbox-orchestrator/orchestrator/runtime"

// Reasons for missing capabilities, as in the committed table.
const (
	noCgroup  = "no: a pod cannot write to its cgroups, and those of another node are out of reach"
	noBind    = "no: nothing can be mounted into a running pod; files travel over the stream"
	noFlags   = "no: memory volumes of a pod lack nosuid and nodev, and some container runtimes mount /sys/fs/cgroup without ro"
	noSeccomp = "no: the container runtime's default filter applies; set kubernetes.seccomp_profile"
	noPids    = "no: a pod cannot ask for a cap on processes; set podPidsLimit of the kubelets and kubernetes.pod_pids"
)

// Classes returns container.
func (d *Driver) Classes() []runtime.Class { return []runtime.Class{runtime.ClassContainer} }

// Capabilities returns the row of the committed table. Without kubernetes.seccomp_profile and
// kubernetes.pod_pids the cluster enforces less, and the answer says so.
func (d *Driver) Capabilities(class runtime.Class) runtime.Capabilities {
	if class.OrDefault() != runtime.ClassContainer {
		return nil
	}
	c := runtime.AllYes()
	c[runtime.CapCommandCgroup], c[runtime.CapUsage] = noCgroup, noCgroup
	c[runtime.CapLateBind], c[runtime.CapLateBindRO], c[runtime.CapQuota] = noBind, noBind, noBind
	c[runtime.CapMountFlags] = noFlags
	if d.opts.SeccompProfile == "" {
		c[runtime.CapSeccomp] = noSeccomp
	}
	if d.opts.PodPids == 0 {
		c[runtime.CapPids], c[runtime.CapEndingPids] = noPids, noPids
	}
	return c
}
