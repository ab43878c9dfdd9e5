package docker

import (
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// Reasons for missing capabilities, as in the committed table.
const (
	noCgroup = "no: the cgroups of a remote engine are out of reach"
	noBind   = "no: nothing can be mounted into a sandbox of a remote engine; files travel over the stream"
)

// Classes returns container, and gvisor if a trial run in the engine succeeded. The trial runs
// once.
func (d *Driver) Classes() []runtime.Class { return ocidriver.Classes(d.Why) }

// Why returns why a class is not offered and what to do about it, or nil if it is.
func (d *Driver) Why(class runtime.Class) error { return d.checkClass(class) }

// Capabilities returns the row of the committed table for a class, in the detected mode.
func (d *Driver) Capabilities(class runtime.Class) runtime.Capabilities {
	if d.Why(class) != nil {
		return nil
	}
	return capabilities(d.mode, class)
}

func capabilities(mode string, class runtime.Class) runtime.Capabilities {
	if mode != ModeStdio {
		return ocispec.ClassCapabilities(class)
	}
	c := runtime.AllYes()
	for _, name := range []runtime.Capability{runtime.CapCommandCgroup, runtime.CapUsage, runtime.CapEndingOOM,
		runtime.CapEndingPids} {
		c[name] = noCgroup
	}
	c[runtime.CapLateBind], c[runtime.CapLateBindRO], c[runtime.CapQuota] = noBind, noBind, noBind
	return c
}
