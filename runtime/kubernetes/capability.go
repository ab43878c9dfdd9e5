package kubernetes

import (
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// Reasons for missing capabilities, as in the committed table.
const (
	noCgroup    = "no: a pod cannot write to its cgroups, and those of another node are out of reach"
	noBind      = "no: nothing can be mounted into a running pod; files travel over the stream"
	noFlags     = "no: memory volumes of a pod lack nosuid and nodev, and some container runtimes mount /sys/fs/cgroup without ro"
	noSeccomp   = "no: the container runtime's default filter applies; set kubernetes.seccomp_profile"
	noPids      = "no: a pod cannot ask for a cap on processes; set podPidsLimit of the kubelets and kubernetes.pod_pids"
	noGVisorBPF = "no: gVisor loads no filter; set kubernetes.gvisor_seccomp_profile"
	noVMSeccomp = "no: runtimes of virtual machines may ignore the filter of a pod"
	noVMPids    = "no: podPidsLimit of the kubelets does not count the processes in a virtual machine"
)

// Capabilities returns the row of the committed table. Without the filter's file and
// kubernetes.pod_pids the cluster enforces less, and the answer says so.
func (d *Driver) Capabilities(class runtime.Class) runtime.Capabilities {
	if d.Why(class) != nil {
		return nil
	}
	c := ocispec.ClassCapabilities(class)
	for name, why := range map[runtime.Capability]string{
		runtime.CapLateBind: noBind, runtime.CapLateBindRO: noBind, runtime.CapQuota: noBind,
		runtime.CapMountFlags: noFlags,
	} {
		c[name] = why
	}
	if class == runtime.ClassGVisor {
		if d.opts.GVisorSeccompProfile == "" {
			c[runtime.CapSeccomp] = noGVisorBPF
		}
		return c
	}
	c[runtime.CapCommandCgroup], c[runtime.CapUsage] = noCgroup, noCgroup
	switch {
	case class == runtime.ClassVM:
		c[runtime.CapSeccomp] = noVMSeccomp
		c[runtime.CapPids], c[runtime.CapEndingPids] = noVMPids, noVMPids
		return c
	case d.opts.SeccompProfile == "":
		c[runtime.CapSeccomp] = noSeccomp
	}
	if d.opts.PodPids == 0 {
		c[runtime.CapPids], c[runtime.CapEndingPids] = noPids, noPids
	}
	return c
}
