package ocispec

import "github.com/sandbox-orchestrator/orchestrator/runtime"

// NoGVisorBind is why a sandbox of class gvisor has no late mounts.
const NoGVisorBind = "no: gVisor shows no mount that is made after the start; files travel over the stream"

// ClassCapabilities returns the capabilities of a class where the host enforces everything that it
// can: all for class container.
func ClassCapabilities(class runtime.Class) runtime.Capabilities {
	if class == runtime.ClassGVisor {
		return GVisorCapabilities()
	}
	return runtime.AllYes()
}

// GVisorCapabilities returns the capabilities of class gvisor, the same for every driver. The
// reasons for missing ones are those of the committed table.
func GVisorCapabilities() runtime.Capabilities {
	caps := runtime.AllYes()
	for c, why := range map[runtime.Capability]string{
		runtime.CapFiles: "no: gVisor follows links to folders even when it is told not to; through one, files " +
			"outside of the workspace are reached, as the commands' user",
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
