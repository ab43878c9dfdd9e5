package containerd

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// runcShim is the shim that starts a configurable OCI runtime.
const runcShim = "io.containerd.runc.v2"

// handler creates the sandboxes of one class.
type handler struct {
	shim    string
	binary  string // of the OCI runtime
	release string
}

// record returns the handler in containerd's form. root is where the OCI runtime keeps its state.
func (h handler) record(root string) (containers.RuntimeInfo, error) {
	o, err := typeurl.MarshalAny(&options.Options{BinaryName: h.binary, Root: root})
	if err != nil {
		return containers.RuntimeInfo{}, fmt.Errorf("options of runtime %s: %w", h.binary, err)
	}
	return containers.RuntimeInfo{Name: h.shim, Options: o}, nil
}

// findRuntime returns the handler of class container.
func (o Options) findRuntime(ctx context.Context, cgroups cgroup.Host) (handler, error) {
	path, release, err := host.CheckRuntime(ctx, o.Runtime, cgroups)
	if err != nil {
		return handler{}, err
	}
	return handler{shim: runcShim, binary: path, release: release}, nil
}

// noHandler returns why a class is not offered and where to get it.
func noHandler(class runtime.Class) error {
	if class == runtime.ClassVM {
		return fmt.Errorf("the containerd driver makes no sandboxes of class vm, for the guest's socket does not reach "+
			"into a virtual machine: "+
			"use class gvisor: %w", errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("class %q is not known: %w", class, errdefs.ErrInvalidArgument)
}

// handlerOf returns the handler of a class, or why there is none.
func (d *Driver) handlerOf(class runtime.Class) (handler, error) {
	switch class.OrDefault() {
	case runtime.ClassContainer:
		return d.container, nil
	case runtime.ClassGVisor:
		return d.gvisorOnce.Do(d.search)
	default:
		return handler{}, noHandler(class)
	}
}
