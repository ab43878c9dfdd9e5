package docker

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"

	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

const (
	// DefaultGVisor is the engine's name of the runtime for sandboxes of class gvisor unless
	// Options names another.
	DefaultGVisor = gvisor.DefaultProgram
	// launcherName is the launcher's file in the driver's directory. The operator configures the
	// engine to use it.
	launcherName = "runsc"
	// handDir is where the launcher looks for a container's cgroups. It is outside of the state
	// directory, whose path a launcher does not know.
	handDir = "/run/orchestrator-gvisor"
)

// launcher is what the engine has to start in place of runsc.
//
//go:embed runsc.sh
var launcher []byte

// layLauncher writes the launcher.
func (d *Driver) layLauncher() error {
	path := filepath.Join(d.dir, launcherName)
	if had, err := os.ReadFile(path); err == nil && string(had) == string(launcher) {
		return nil
	}
	if err := hostfile.Replace(path, launcher, 0o700); err != nil {
		return fmt.Errorf("docker: write the launcher for class gvisor: %w", err)
	}
	return nil
}

// setupCgroups makes the cgroups of a sandbox of class gvisor and writes their names for the
// launcher, which joins them. done deletes the names; the cgroups go with the sandbox.
func (s *Sandbox) setupCgroups(l runtime.Limits) (done func(), err error) {
	dirs, err := driverName.MakeGVisorCgroups(s.id, l)
	if err != nil {
		return nil, fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	if err := hand(s.container, []byte(strings.Join(dirs, "\n")+"\n")); err != nil {
		return nil, fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	return func() {
		if err := removeHanded(s.container); err != nil {
			s.d.log.Warn("cgroups of a container stay named", "sandbox", s.id, "error", err)
		}
	}, nil
}

// hand writes a file for the launcher. The removal of another container's file may delete the
// directory in between.
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

// removeHanded deletes what setupCgroups wrote.
func removeHanded(container string) error {
	if err := os.Remove(filepath.Join(handDir, container)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("docker: container %.12s: %w", container, err)
	}
	_ = os.Remove(handDir) // it stays as long as it holds others
	return nil
}

// forGVisor turns a request into one for runsc; see ocispec for the differences. The engine does
// not apply the caps: the cgroups of setupCgroups do. Here they only inform people.
func forGVisor(h *container.HostConfig, l runtime.Limits, runsc, seccomp string) {
	caps := ocispec.GVisorCaps(l)
	h.Runtime = runsc
	h.SecurityOpt = []string{"no-new-privileges", seccomp}
	h.MaskedPaths, h.ReadonlyPaths, h.Sysctls = []string{}, []string{}, nil
	h.Memory, h.MemorySwap, h.PidsLimit = caps.MemoryBytes, caps.MemoryBytes, &caps.Pids
	h.Ulimits = ulimits(ocispec.GVisorRlimits(l))
}

// inside returns what the paths of the first process's cgroups contain.
func (s *Sandbox) inside() string {
	if s.class == runtime.ClassGVisor {
		return ocidriver.CgroupsPath(s.id) + "\n"
	}
	return s.container
}

// checkClass refuses a class that is not offered here.
func (d *Driver) checkClass(class runtime.Class) error {
	switch class.OrDefault() {
	case runtime.ClassContainer:
		return nil
	case runtime.ClassGVisor:
		_, err := d.gvisorOnce.Do(func() (struct{}, error) { return struct{}{}, d.search() })
		return err
	default:
	}
	return fmt.Errorf("class %s: the docker driver makes no virtual machines, for the guest's socket does not reach "+
		"into one; use class gvisor: %w",
		class, errdefs.ErrFailedPrecondition)
}
