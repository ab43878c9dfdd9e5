package kubernetes

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// mappedClasses are the classes that a RuntimeClass of the cluster can provide.
func mappedClasses() []runtime.Class { return []runtime.Class{runtime.ClassGVisor, runtime.ClassVM} }

// validateClasses checks Options.Classes.
func (o Options) validateClasses() error {
	for _, class := range slices.Sorted(maps.Keys(o.Classes)) {
		if !slices.Contains(mappedClasses(), class) || o.Classes[class] == "" {
			return fmt.Errorf(
				"kubernetes.classes: %q is %q: map gvisor and vm to the names of RuntimeClasses: %w",
				class,
				o.Classes[class],
				errdefs.ErrInvalidArgument,
			)
		}
	}
	return nil
}

// Classes returns container and the classes that are mapped to a RuntimeClass.
func (d *Driver) Classes() []runtime.Class {
	var out []runtime.Class
	for _, class := range runtime.AllClasses() {
		if d.Why(class) == nil {
			out = append(out, class)
		}
	}
	return out
}

// Why returns nil for a class that the driver offers, and otherwise an error that names the key to
// set.
func (d *Driver) Why(class runtime.Class) error {
	if class.OrDefault() == runtime.ClassContainer || d.opts.Classes[class] != "" {
		return nil
	}
	return refused("class %s has no RuntimeClass: set kubernetes.classes.%s to the name of one", class, class)
}

// checkClasses returns an error that names a RuntimeClass which the cluster lacks. RuntimeClasses
// are not in a namespace. Without the permission to get them, the first pod shows whether one
// exists.
func (d *Driver) checkClasses(ctx context.Context) error {
	for _, class := range slices.Sorted(maps.Keys(d.opts.Classes)) {
		name := d.opts.Classes[class]
		err := d.api.core.Get().AbsPath("/apis/node.k8s.io/v1/runtimeclasses", name).Do(ctx).Error()
		switch {
		case apierrors.IsNotFound(err):
			return refused("kubernetes.classes.%s: RuntimeClass %q not found: create it, or use the name of an existing one",
				class, name)
		case apierrors.IsForbidden(err):
			d.log.Warn("RuntimeClass cannot be checked: permission missing: get runtimeclasses.node.k8s.io",
				"class", class, "runtime_class", name)
		case err != nil:
			return d.api.failed(ctx, "look for RuntimeClass "+name, err)
		}
	}
	return nil
}

// checkClass returns an error if the driver cannot run a sandbox of this class and these limits.
func (d *Driver) checkClass(spec runtime.Spec) error {
	if err := d.Why(spec.Class); err != nil {
		return err
	}
	if spec.Class == runtime.ClassGVisor && d.podOptions(spec.Template).UserNamespaces {
		return refused("user_namespaces does not work with class gvisor: set it to false in kubernetes.pods.%s", spec.Template)
	}
	if spec.Class != runtime.ClassGVisor || d.opts.PodPids == 0 {
		return nil
	}
	if need := ocispec.GVisorCaps(spec.Limits).Pids; d.opts.PodPids < need {
		return refused(
			"gVisor needs up to %d threads for limits.pids %d, but nodes allow %d processes per pod: "+
				"lower limits.pids, or raise podPidsLimit of the kubelets and kubernetes.pod_pids",
			need,
			spec.Limits.Pids,
			d.opts.PodPids,
		)
	}
	return nil
}

// setClass selects the runtime of a pod. The pod's own runtime class is for class container.
func (d *Driver) setClass(pod *corev1.Pod, spec runtime.Spec, own string) {
	name := d.opts.Classes[spec.Class]
	if spec.Class.OrDefault() == runtime.ClassContainer {
		name = own
	}
	if name != "" {
		pod.Spec.RuntimeClassName = &name
	}
}

// seccompProfile returns the file of the filter for a class, or "".
func (d *Driver) seccompProfile(class runtime.Class) string {
	if class == runtime.ClassGVisor {
		return d.opts.GVisorSeccompProfile
	}
	return d.opts.SeccompProfile
}

// caps returns the limits of a sandbox's container: those of the spec and, for gVisor, what its
// kernel needs.
func caps(spec runtime.Spec) runtime.Limits {
	if spec.Class == runtime.ClassGVisor {
		return ocispec.GVisorCaps(spec.Limits)
	}
	return spec.Limits
}

// gvisorSettable are the limits that a process may set in gVisor. The others bound what a Linux
// kernel counts per user of the host, which gVisor does not share.
func gvisorSettable() []string {
	return []string{"RLIMIT_CORE", "RLIMIT_MEMLOCK", "RLIMIT_NOFILE", "RLIMIT_NPROC"}
}

// classCommand returns the arguments of `guest pod` for a class: the limits of every process, and
// the kernel that the guest must find.
func (d *Driver) classCommand(spec runtime.Spec) []string {
	limits := ocispec.Rlimits(spec.Limits)
	if spec.Class == runtime.ClassGVisor {
		limits = slices.DeleteFunc(ocispec.GVisorRlimits(spec.Limits), func(r specs.POSIXRlimit) bool {
			return !slices.Contains(gvisorSettable(), r.Type)
		})
	}
	var args []string
	for _, r := range limits {
		args = append(args, "--rlimit", fmt.Sprintf("%s=%d", r.Type, r.Hard))
	}
	if class := spec.Class.OrDefault(); class != runtime.ClassContainer {
		args = append(args, "--class", string(class))
	}
	if d.podOptions(spec.Template).UserNamespaces {
		args = append(args, "--user-namespace")
	}
	if d.seccompProfile(spec.Class) != "" {
		args = append(args, "--seccomp")
	}
	return args
}
