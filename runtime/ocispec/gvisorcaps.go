package ocispec

import "github.com/sandbox-orchestrator/orchestrator/runtime"

// NoGVisorBind is why nothing can be bound into a sandbox of class gvisor.
const NoGVisorBind = "no: gVisor shows no mount that is made after the start; files travel over the stream"

// GVisorCapabilities are those of class gvisor, whatever driver starts it, with what it has not in the words of the committed table.
func GVisorCapabilities() runtime.Capabilities {
	caps := runtime.Capabilities{}
	for _, c := range runtime.AllCapabilities() {
		caps[c] = runtime.Yes
	}
	for c, why := range map[runtime.Capability]string{
		runtime.CapFiles:         "no: gVisor follows links to folders even when it is told not to; through one, files outside of the workspace are reached, as the commands' user",
		runtime.CapNonRoot:       "no: gVisor lets commands read of the guest in /proc, and set its priority",
		runtime.CapCommandCgroup: "no: gVisor has no cgroups for single commands",
		runtime.CapUsage:         "no: gVisor counts nothing for single commands",
		runtime.CapEndingOOM:     "no: gVisor does not tell commands apart at the cap; over it the host ends the sandbox",
		runtime.CapEndingPids:    "no: gVisor refuses processes at the cap without telling",
		runtime.CapLateBind:      NoGVisorBind,
		runtime.CapLateBindRO:    NoGVisorBind,
		runtime.CapQuota:         NoGVisorBind,
	} {
		caps[c] = why
	}
	return caps
}
