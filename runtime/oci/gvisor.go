package oci

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"syscall"

	"github.com/containerd/errdefs"
	runc "github.com/containerd/go-runc"

	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// DefaultGVisor is the program for sandboxes of class gvisor unless Options names another.
const DefaultGVisor = gvisor.DefaultProgram

// runscName is the directory in a sandbox's bundle in which runsc keeps its state, so that it goes
// with the bundle whatever runsc itself cleaned up.
const runscName = "runsc"

// launch joins the cgroups before "--" and executes what follows it. So runsc and everything it
// starts are capped from their first instruction. runsc's own cgroup handling is off: it fails if a
// cgroup is mounted in a second place.
const launch = `while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"`

// runGVisor runs runsc in cgroups, with said as its standard error. It ends with ctx, and with this
// process.
func runGVisor(ctx context.Context, g *gvisor.Program, root string, cgroups []string, said *words,
	args ...string) error {
	line := slices.Concat([]string{"-c", launch, "launch"}, cgroups,
		[]string{"--", g.Path, "--root=" + root, "--platform=" + g.Platform, "--ignore-cgroups"}, g.Flags, args)
	cmd := exec.CommandContext(ctx, "/bin/sh", line...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stderr = said.file
	// A runsc that outlived this process would go on making a sandbox that the next process
	// removes. The kernel kills it with the thread that started it, so that thread must stay.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	return cmd.Run()
}

// startGVisor runs runsc and returns a handle of its kernel, which represents the sandbox: nothing
// inside outlives it.
func (d *Driver) startGVisor(ctx context.Context, spec runtime.Spec, said *words) (*ocidriver.Process, error) {
	g, err := d.findRunsc()
	if err != nil {
		return nil, err
	}
	dirs, err := host.MakeGVisorCgroups(spec.ID, spec.Limits)
	if err != nil {
		return nil, err
	}
	bundle := d.bundle(spec.ID)
	pidFile := filepath.Join(bundle, pidName)
	err = runGVisor(ctx, g, filepath.Join(bundle, runscName), dirs, said, "run", "--detach", "--bundle="+bundle,
		"--pid-file="+pidFile, spec.ID)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("start: %s", said.Annotate(err.Error()))
	}
	pid, err := runc.ReadPidFile(pidFile)
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	return d.take(ctx, spec.ID, pid, said)
}

// checkClass refuses a class that is not offered here.
func (d *Driver) checkClass(class runtime.Class) error {
	switch class.OrDefault() {
	case runtime.ClassContainer:
		return nil
	case runtime.ClassGVisor:
		_, err := d.findRunsc()
		return err
	default:
	}
	return fmt.Errorf("class %s: the oci driver has no virtual machines; use class gvisor: %w", class,
		errdefs.ErrFailedPrecondition)
}
