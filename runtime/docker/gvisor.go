package docker

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

const (
	// DefaultGVisor is the engine's name of the runtime for sandboxes of class
	// gvisor unless Options names another.
	DefaultGVisor = gvisor.DefaultProgram
	// launcherName is the launcher's file in the driver's folder, for people to
	// name to the engine.
	launcherName = "runsc"
	// handDir is where the launcher looks for a container's cgroups. It is not in
	// the state directory, whose place a launcher does not know.
	handDir = "/run/orchestrator-gvisor"
)

// launcher is what the engine has to start for runsc.
//
//go:embed runsc.sh
var launcher []byte

// layLauncher writes the launcher down.
func (d *Driver) layLauncher() error {
	path := filepath.Join(d.dir, launcherName)
	if had, err := os.ReadFile(path); err == nil && string(had) == string(launcher) {
		return nil
	}
	next := path + ".new"
	err := os.WriteFile(next, launcher, 0o700) //nolint:gosec // a program
	if err = errors.Join(err, os.Chmod(next, 0o700)); err == nil {
		err = os.Rename(next, path)
	}
	if err != nil {
		return fmt.Errorf("docker: write the launcher for class gvisor: %w", err)
	}
	return nil
}

// cage makes the cgroups of a sandbox of class gvisor and names them to the
// launcher, which goes into them. It returns what takes the naming back; the
// cgroups go with the sandbox.
func (s *Sandbox) cage(l runtime.Limits) (done func(), err error) {
	caps := ocispec.GVisorCaps(l)
	dirs, err := cgroup.Make(ocidriver.CgroupsPath(s.id), cgroup.Share{MemoryBytes: caps.MemoryBytes, Pids: caps.Pids, CPU: caps.CPUs})
	if errors.Is(err, cgroup.ErrUnsupported) {
		return nil, refused("class gvisor: %v: a sandbox of this class is capped by its cgroup alone", err)
	}
	if err != nil {
		return nil, fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	if err := hand(s.container, []byte(strings.Join(dirs, "\n")+"\n")); err != nil {
		return nil, fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	return func() {
		if err := uncage(s.container); err != nil {
			s.d.log.Warn("cgroups of a container stay named", "sandbox", s.id, "error", err)
		}
	}, nil
}

// hand writes a file for the launcher. Who takes the last one back removes the
// folder, perhaps in between.
func hand(container string, text []byte) (err error) {
	for range 10 {
		if err := os.MkdirAll(handDir, 0o700); err != nil {
			return err
		}
		if err = os.WriteFile(filepath.Join(handDir, container), text, 0o600); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// uncage takes back what cage named.
func uncage(container string) error {
	if err := os.Remove(filepath.Join(handDir, container)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("docker: container %.12s: %w", container, err)
	}
	_ = os.Remove(handDir) // as long as others are in it, it stays
	return nil
}

// forGVisor changes what is asked of the engine into what is for runsc; see
// ocispec for what differs. The engine makes no use of the caps: they are in
// force by the cgroups that cage makes, and say the same here for people.
func forGVisor(h *container.HostConfig, l runtime.Limits, runsc, seccomp string) {
	caps := ocispec.GVisorCaps(l)
	h.Runtime = runsc
	h.SecurityOpt = []string{"no-new-privileges", seccomp}
	h.MaskedPaths, h.ReadonlyPaths, h.Sysctls = []string{}, []string{}, nil
	h.Memory, h.MemorySwap, h.PidsLimit = caps.MemoryBytes, caps.MemoryBytes, &caps.Pids
	h.Ulimits = ulimits(ocispec.GVisorRlimits(l))
}

// fromSandbox says whether a process of the host is of gVisor's for this sandbox:
// the stream to the guest is opened by its file server. Commands cannot reach
// the socket, whose folder is root's, and nothing but root's processes can on
// the host.
func fromSandbox(id string) func(pid int) error {
	return func(pid int) error {
		if !ocidriver.InCgroup(pid, ocidriver.CgroupsPath(id)) {
			return fmt.Errorf("peer is process %d, which is not in the cgroup of the sandbox", pid)
		}
		return nil
	}
}

// inside is what the cgroups of the sandbox's first process have in their paths.
func (s *Sandbox) inside() string {
	if s.class == runtime.ClassGVisor {
		return ocidriver.CgroupsPath(s.id) + "\n"
	}
	return s.container
}

// join lets the guest's streams in, and gives the commands their cgroups where
// the class has them.
func (s *Sandbox) join(ctx context.Context, pid int, share cgroup.Share) error {
	if s.class == runtime.ClassGVisor {
		return s.cell.AttachAs(ctx, pid, fromSandbox(s.id))
	}
	return s.cell.Attach(ctx, pid, share)
}

// checkClass refuses what cannot be made here.
func (d *Driver) checkClass(class runtime.Class) error {
	switch class.OrDefault() {
	case runtime.ClassContainer:
		return nil
	case runtime.ClassGVisor:
		_, err := d.gvisorOnce.Do(func() (struct{}, error) { return struct{}{}, d.search() })
		return err
	}
	return fmt.Errorf("class %s: the docker driver makes no virtual machines, for the guest's socket does not reach into one; use class gvisor: %w",
		class, errdefs.ErrFailedPrecondition)
}
