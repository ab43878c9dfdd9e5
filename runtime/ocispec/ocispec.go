// Package ocispec turns a sandbox's Spec into the configuration of an OCI runtime or a container
// engine. It is the one place that defines how a sandbox is isolated, so that all drivers do it
// alike.
//
// [New] returns a complete OCI configuration. The other functions return single parts, for engines
// that take them in another form. The package reads no file and starts no goroutine. All functions
// may be called concurrently, and the caller owns what they return. Errors are of class
// InvalidArgument and name the field.
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

// version is the oldest OCI version with everything we use; runtimes of recent years accept it.
const version = "1.0.2"

// HostPaths says where a driver keeps what the container is made from. All are absolute host paths.
type HostPaths struct {
	// Root is the root filesystem.
	Root string
	// RunDir and WorkspaceDir are those of package rundir. They appear at runtime.RunDir and
	// runtime.WorkspaceDir, and later mounts below them appear inside as well.
	RunDir, WorkspaceDir string
	// CgroupsPath is the container's cgroup, relative to the root of every hierarchy.
	CgroupsPath string
	// UserNamespace is the path of the user namespace, for a Spec that asks for one, and FirstID
	// the host's id of its user 0. It maps IDs ids.
	UserNamespace string
	FirstID       uint32
}

// IDs is the number of ids in a sandbox's user namespace.
const IDs = 1 << 16

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

// New returns the OCI configuration of a sandbox. Zero limits mean their defaults.
func New(spec runtime.Spec, at HostPaths) (*specs.Spec, error) {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := at.validate(); err != nil {
		return nil, err
	}
	if spec.UserNamespace != (at.UserNamespace != "") {
		return nil, fmt.Errorf("user namespace at %q does not fit spec.user_namespace %v: %w", at.UserNamespace,
			spec.UserNamespace, errdefs.ErrInvalidArgument)
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
			RootfsPropagation: "rslave", // mounts of the host propagate in, none propagates out
		},
	}
	if spec.UserNamespace {
		config.Linux.Namespaces = append(config.Linux.Namespaces,
			specs.LinuxNamespace{Type: specs.UserNamespace, Path: at.UserNamespace})
		// Runtimes want the mappings, though the namespace has them already.
		ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: at.FirstID, Size: IDs}}
		config.Linux.UIDMappings, config.Linux.GIDMappings = ids, ids
	}
	for _, t := range TemplateTmpfs(spec) {
		config.Mounts = append(config.Mounts,
			specs.Mount{Destination: t.Path, Type: "tmpfs", Source: "tmpfs", Options: t.Options()})
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
		// The guest starts as uid 0 with three capabilities and runs every command as another user
		// with none.
		User:            specs.User{Umask: &umask},
		Args:            Args(spec),
		Env:             Env(),
		Cwd:             "/",
		NoNewPrivileges: true,
		OOMScoreAdj:     &adj,
		Rlimits:         Rlimits(spec.Limits),
		Capabilities: &specs.LinuxCapabilities{
			Bounding: Capabilities(), Permitted: Capabilities(), Effective: Capabilities(),
			// Neither inheritable nor ambient: an exec by another user keeps no capability.
		},
	}
}

// Resources returns the caps of the whole sandbox, including the guest.
func Resources(l runtime.Limits) *specs.LinuxResources {
	var (
		memory = l.MemoryBytes
		pids   = l.Pids
		quota  = int64(math.Round(l.CPUs * cpuPeriod))
		period = uint64(cpuPeriod)
		shares = max(2, uint64(math.Round(l.CPUs*1024)))
	)
	return &specs.LinuxResources{
		// None; runtimes add the devices that every container has (null, zero, full, random,
		// urandom, tty, ptmx).
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
		// Memory plus swap is capped at the memory cap: no swap.
		Memory: &specs.LinuxMemory{Limit: &memory, Swap: &memory},
		CPU:    &specs.LinuxCPU{Shares: &shares, Quota: &quota, Period: &period},
		Pids:   &specs.LinuxPids{Limit: &pids},
	}
}

// mounts returns the mounts in the order in which they are made.
func mounts(l runtime.Limits, at HostPaths) []specs.Mount {
	list := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs",
			Options: []string{"nosuid", "noexec", "strictatime", "mode=755", "size=65536"}},
		// The kernel has about 3000 pseudo-terminals for all containers; this bounds the share of
		// one sandbox.
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts",
			Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", "max=" +
				strconv.Itoa(terminals)}},
		// No cgroup hierarchy below it: the guest's part of it comes through the run directory.
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
