package kubernetes

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

func TestClassSelectsARuntimeClass(t *testing.T) {
	t.Parallel()
	d := testDriver()
	d.opts.Pod.RuntimeClass = "crun"
	spec := testSpec()
	if got := d.podOf(spec).Spec.RuntimeClassName; got == nil || *got != "crun" {
		t.Errorf("RuntimeClass of class container = %v, want crun as in the pod options", got)
	}
	spec.Class = runtime.ClassGVisor
	err := d.checkSpec(spec)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "kubernetes.classes.gvisor") {
		t.Errorf("checkSpec without a mapping = %v, want FailedPrecondition that names the key", err)
	}
	if d.Capabilities(runtime.ClassGVisor) != nil || len(d.Classes()) != 1 {
		t.Errorf("classes = %v, want container only", d.Classes())
	}
	d.opts.Classes = map[runtime.Class]string{runtime.ClassGVisor: "runsc"}
	if err := d.checkSpec(spec); err != nil {
		t.Errorf("checkSpec with a mapping = %v, want nil", err)
	}
	s := d.podOf(spec).Spec
	c := s.Containers[0]
	if *s.RuntimeClassName != "runsc" || !slices.Contains(c.Command, "--class") ||
		!slices.ContainsFunc(c.Command, func(a string) bool { return strings.HasPrefix(a, "RLIMIT_NPROC=") }) {
		t.Errorf("pod of class gvisor: %v with command %q, want runsc, the class and a limit of processes", *s.RuntimeClassName, c.Command)
	}
	if want := ocispec.GVisorCaps(spec.Limits).MemoryBytes; c.Resources.Limits.Memory().Value() != want {
		t.Errorf("memory = %v, want %d with what gVisor's kernel needs", c.Resources.Limits.Memory(), want)
	}
	if got := d.Capabilities(runtime.ClassGVisor)[runtime.CapSeccomp]; got != noGVisorBPF {
		t.Errorf("seccomp of class gvisor without its profile = %q, want %q", got, noGVisorBPF)
	}
	d.opts.PodPids = spec.Limits.Pids
	if err := d.checkSpec(spec); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "threads") {
		t.Errorf("checkSpec with few pids = %v, want FailedPrecondition", err)
	}
}

func TestInvalidClassesAreRefused(t *testing.T) {
	t.Parallel()
	for class, name := range map[runtime.Class]string{"container": "runc", "gvisor": "", "other": "x"} {
		o := testDriver().opts
		o.Classes = map[runtime.Class]string{class: name}
		if err := o.validate(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "kubernetes.classes") {
			t.Errorf("validate with class %q = %v, want InvalidArgument", class, err)
		}
	}
}
