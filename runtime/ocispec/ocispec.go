// Package ocispec turns a sandbox's Spec into what an OCI runtime or an engine is asked for: the one place where the walls of a
// sandbox are written down, so that they are the same for every driver.
//
// [New] gives the whole OCI configuration; the functions beside it give single parts for engines that take them in another form.
// The package reads no file, makes nothing and starts no goroutine; all functions may be called concurrently, and what
// they return is the caller's. Errors are of class InvalidArgument and name what is wrong.
package ocispec

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// version is the oldest OCI version that has all we use; runtimes of the last years accept it.
const version = "1.0.2"

// HostPaths is where a driver keeps what the container is made from. All paths are absolute ones of the host.
type HostPaths struct {
	// Root is the root filesystem.
	Root string
	// RunDir and SlotDir are the cell's: they appear at runtime.RunDir and runtime.WorkspaceDir, and what is mounted below them
	// later appears inside as well.
	RunDir, WorkspaceDir string
	// CgroupsPath is the container's cgroup below every hierarchy's top.
	CgroupsPath string
}

func (p HostPaths) validate() error {
	for _, x := range []struct{ name, path string }{
		{"root", p.Root}, {"run dir", p.RunDir}, {"slot dir", p.WorkspaceDir}, {"cgroups path", p.CgroupsPath},
	} {
		if !filepath.IsAbs(x.path) {
			return fmt.Errorf("%s %q of the container is not absolute: %w", x.name, x.path, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// New returns the OCI configuration of a sandbox. Limits that are zero mean their defaults.
func New(spec runtime.Spec, at HostPaths) (*specs.Spec, error) {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := at.validate(); err != nil {
		return nil, err
	}
	filter, err := Seccomp()
	if err != nil {
		return nil, err
	}
	config := &specs.Spec{
		Version:     version,
		Hostname:    Hostname,
		Root:        &specs.Root{Path: at.Root, Readonly: true},
		Process:     process(spec),
		Mounts:      mounts(spec.Limits, at),
		Annotations: Labels(spec),
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace}, {Type: specs.MountNamespace}, {Type: specs.CgroupNamespace},
			},
			Sysctl:            Sysctls(),
			Resources:         Resources(spec.Limits),
			CgroupsPath:       at.CgroupsPath,
			Seccomp:           filter,
			MaskedPaths:       MaskedPaths(),
			ReadonlyPaths:     ReadonlyPaths(),
			RootfsPropagation: "rslave", // mounts of the host go in, none comes out
		},
	}
	for _, t := range TemplateTmpfs(spec) {
		config.Mounts = append(config.Mounts, specs.Mount{Destination: t.Path, Type: "tmpfs", Source: "tmpfs", Options: t.Options()})
	}
	if spec.Class == runtime.ClassGVisor {
		forGVisor(config, spec.Limits)
	}
	return config, nil
}

func process(spec runtime.Spec) *specs.Process {
	umask := uint32(0o022)
	adj := OOMScoreAdj
	return &specs.Process{
		// The guest starts as uid 0 with three capabilities and runs every command as another user with none.
		User:            specs.User{Umask: &umask},
		Args:            Args(spec),
		Env:             Env(),
		Cwd:             "/",
		NoNewPrivileges: true,
		OOMScoreAdj:     &adj,
		Rlimits:         Rlimits(spec.Limits),
		Capabilities: &specs.LinuxCapabilities{
			Bounding: Capabilities(), Permitted: Capabilities(), Effective: Capabilities(),
			// Neither inheritable nor ambient: an exec by another user keeps nothing.
		},
	}
}

// Resources are the caps of the whole sandbox, the guest included.
func Resources(l runtime.Limits) *specs.LinuxResources {
	var (
		memory = l.MemoryBytes
		pids   = l.Pids
		quota  = int64(math.Round(l.CPUs * cpuPeriod))
		period = uint64(cpuPeriod)
		shares = max(2, uint64(math.Round(l.CPUs*1024)))
	)
	return &specs.LinuxResources{
		// Nothing; runtimes add the nodes that every container has (null, zero, full, random, urandom, tty, ptmx).
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		// Memory and swap together as much as memory alone: no swap.
		Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
		CPU:    &specs.LinuxCPU{Shares: &shares, Quota: &quota, Period: &period},
		Pids:   &specs.LinuxPids{Limit: &pids},
	}
}

// mounts lists them in the order in which they are made.
func mounts(l runtime.Limits, at HostPaths) []specs.Mount {
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=65536"}},
		// The kernel has some 3000 terminals for all containers together: one sandbox gets only so many of them.
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=" + strconv.Itoa(terminals)}},
		// No cgroup below it: what the guest may have of them comes through the run dir.
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
	for _, t := range Tmpfs(l) {
		list = append(list, specs.Mount{Destination: t.Path, Type: "tmpfs", Source: "tmpfs", Options: t.Options()})
	}
	return append(list,
		specs.Mount{Destination: runtime.RunDir, Type: "bind", Source: at.RunDir,
			Options: []string{"rbind", "rslave", "ro", "nosuid", "nodev"}},
		specs.Mount{Destination: runtime.WorkspaceDir, Type: "bind", Source: at.WorkspaceDir,
			Options: []string{"rbind", "rslave", "rw", "nosuid", "nodev"}},
	)
}
