package containerd

import (
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// Classes returns container, and gvisor if a trial run of runsc succeeded. The trial runs once.
func (d *Driver) Classes() []runtime.Class { return ocidriver.Classes(d.Why) }

// Why returns why a class is not offered and what to do about it, or nil if it is.
func (d *Driver) Why(class runtime.Class) error {
	_, err := d.handlerOf(class)
	return err
}

// Capabilities returns all for class container: New fails on a host that cannot provide one.
func (d *Driver) Capabilities(class runtime.Class) runtime.Capabilities {
	if d.Why(class) != nil {
		return nil
	}
	return ocispec.ClassCapabilities(class)
}
