package docker

import "orchestrator/runtime"

// Capabilities is the row of the committed table for the mode that was found.
func (d *Driver) Capabilities() runtime.Capabilities { return capabilities(d.mode) }

func capabilities(mode string) runtime.Capabilities {
	c := runtime.Capabilities{}
	for _, name := range runtime.AllCapabilities() {
		c[name] = runtime.Yes
	}
	if mode != ModeStdio {
		return c
	}
	const (
		noCgroup = "no: the cgroups of a remote engine are out of reach"
		noBind   = "no: nothing can be mounted into a sandbox of a remote engine; files travel over the stream"
	)
	for _, name := range []runtime.Capability{runtime.CapCommandCgroup, runtime.CapUsage, runtime.CapEndingOOM, runtime.CapEndingPids} {
		c[name] = noCgroup
	}
	c[runtime.CapLateBind], c[runtime.CapLateBindRO] = noBind, noBind
	return c
}
