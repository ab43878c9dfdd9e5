package runtime

import (
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// Resources reserved for the guest, which runs outside the commands' cgroup. Commands get the
// sandbox's caps less this reserve, so that the guest answers even when they exhaust theirs.
const (
	GuestReserveBytes = 40 << 20
	GuestReservePids  = 64
)

// The smallest caps that leave room for the guest and one small command.
const (
	MinMemoryBytes = 64 << 20
	MinPids        = GuestReservePids + 16
	MinCPUs        = 0.05
	// MinOpenFiles: the guest needs several for each running command.
	MinOpenFiles = 256
)

// Paths that every sandbox has.
const (
	// RunDir is the directory that the host mounts read-only. Its mode is 0700, so that no command
	// can enter it.
	RunDir = "/run/orchestrator"
	// GuestPath is the guest's binary.
	GuestPath = RunDir + "/guest"
	// WorkspaceDir is where a bound workspace appears, or scratch space.
	WorkspaceDir = "/workspace"
	// HomeDir is the home directory of commands, a tmpfs.
	HomeDir = "/home/user"
)

// CommandUID and CommandGID are the user and group of commands unless the caller names others. User
// 0 is always refused: it would own the guest.
const (
	CommandUID = 1000
	CommandGID = 1000
)

// MaxNamespaceID is the highest id in a sandbox's user namespace. The one after it is invalid
// where ids have 16 bits.
const MaxNamespaceID = 1<<16 - 2

// Defaults of Limits.
const (
	DefaultMemoryBytes  = 512 << 20
	DefaultCPUs         = 1.0
	DefaultPids         = 256
	DefaultTmpBytes     = 64 << 20
	DefaultScratchBytes = 64 << 20
	DefaultOpenFiles    = 4096
)

// Spec describes a sandbox to create. It contains nothing about a caller: environment, workspace
// and user are set when the sandbox is leased.
type Spec struct {
	// ID is unique on the host. The container's name is made from it.
	ID string
	// Owner identifies the state directory that the sandbox belongs to.
	Owner string
	// Template is the name of the template, Build the build of the orchestrator that created the
	// sandbox. Only List uses them.
	Template string
	Build    string
	Image    Image
	// Class is how the sandbox is isolated. A driver that does not offer it refuses.
	Class  Class `json:",omitempty"`
	Limits Limits
	// UserNamespace gives the sandbox a user namespace with its own range of ids on the host,
	// from 0 to MaxNamespaceID inside. A driver that does not implement UserNamespacer refuses.
	UserNamespace bool `json:",omitempty"`
	// Tmpfs maps further writable directories to their tmpfs size in bytes, which counts as memory.
	// The directory must exist in the image.
	Tmpfs map[string]int64 `json:",omitempty"`
	// Ulimits are resource limits of every process of a command, by name (see UlimitNames): sizes
	// in bytes, "cpu" in seconds. They do not apply to the guest.
	Ulimits map[string]int64 `json:",omitempty"`
	// Entrypoint comes before the guest's own arguments as PID 1, and must exec them. Empty: the
	// guest is PID 1 from the start.
	Entrypoint []string
	// OrphanTimeout is how long the guest waits without a host before it shuts the sandbox down.
	// Zero means DefaultOrphanTimeout.
	OrphanTimeout time.Duration
	// Claim, if not nil, is the volume to mount at WorkspaceDir. Only drivers that implement
	// ClaimKeeper get it.
	Claim *Claim `json:",omitempty"`
}

// DefaultOrphanTimeout is the default of Spec.OrphanTimeout.
const DefaultOrphanTimeout = 10 * time.Minute

// Image is a root filesystem that package images provides.
type Image struct {
	// Ref is the name that people use. It appears in messages and labels only.
	Ref string
	// ID is the digest of the image's configuration ("sha256:…"). It decides what runs.
	ID string
	// Root is the unpacked root filesystem on the host. It is shared and never written to.
	Root string
	// Archive is a docker-archive of the image, for engines that have to load it. Empty if the
	// engine must have the image already.
	Archive string
}

// Limits are the caps of one sandbox. A zero field means its default; unlimited is not possible.
type Limits struct {
	// MemoryBytes caps everything inside together, including the guest and tmpfs. A sandbox has no
	// swap.
	MemoryBytes int64 `json:"memory_bytes"`
	// CPUs is CPU time per wall-clock time: 1.5 is one and a half cores.
	CPUs float64 `json:"cpus"`
	// Pids caps processes and threads together.
	Pids int64 `json:"pids"`
	// TmpBytes is the size of /tmp and, separately, of /home/user. ScratchBytes is the size of
	// /workspace while no workspace is bound. Both count as memory.
	TmpBytes     int64 `json:"tmp_bytes"`
	ScratchBytes int64 `json:"scratch_bytes"`
	// OpenFiles is RLIMIT_NOFILE of every process.
	OpenFiles int64 `json:"open_files"`
}

// WithDefaults returns l with every zero field set to its default.
func (l Limits) WithDefaults() Limits {
	setDefault(&l.MemoryBytes, DefaultMemoryBytes)
	setDefault(&l.CPUs, DefaultCPUs)
	setDefault(&l.Pids, DefaultPids)
	setDefault(&l.TmpBytes, DefaultTmpBytes)
	setDefault(&l.ScratchBytes, DefaultScratchBytes)
	setDefault(&l.OpenFiles, DefaultOpenFiles)
	return l
}

func setDefault[T int64 | float64](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// Validate returns an error that names the first field no host could provide.
func (l Limits) Validate() error {
	bad := func(field string, got any, want string) error {
		return fmt.Errorf("limits.%s is %v: %s: %w", field, got, want, errdefs.ErrInvalidArgument)
	}
	switch {
	case l.MemoryBytes < MinMemoryBytes:
		return bad("memory_bytes", l.MemoryBytes, fmt.Sprintf("must be at least %d", MinMemoryBytes))
	case l.CPUs < MinCPUs || l.CPUs > 1024:
		return bad("cpus", l.CPUs, fmt.Sprintf("must be from %v to 1024", MinCPUs))
	case l.Pids < MinPids || l.Pids > 1<<22:
		return bad("pids", l.Pids, fmt.Sprintf("must be from %d to %d", MinPids, 1<<22))
	case l.TmpBytes < 1<<20 || l.TmpBytes > l.MemoryBytes:
		return bad("tmp_bytes", l.TmpBytes, "must be from 1 MiB to memory_bytes")
	case l.ScratchBytes < 1<<20 || l.ScratchBytes > l.MemoryBytes:
		return bad("scratch_bytes", l.ScratchBytes, "must be from 1 MiB to memory_bytes")
	case l.OpenFiles < MinOpenFiles || l.OpenFiles > 1<<20:
		return bad("open_files", l.OpenFiles, fmt.Sprintf("must be from %d to 1048576", MinOpenFiles))
	}
	return nil
}

var (
	idPattern   = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{7,62}$`)
	namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
)

// ValidID reports whether id can name a sandbox. An id becomes part of container names, cgroup
// names and paths, so it consists of [a-z0-9-] only.
func ValidID(id string) bool { return idPattern.MatchString(id) }

// Validate returns an error that names the first unusable field. Drivers call it first.
func (s Spec) Validate() error {
	bad := func(field, why string) error {
		return fmt.Errorf("spec.%s %s: %w", field, why, errdefs.ErrInvalidArgument)
	}
	switch {
	case !ValidID(s.ID):
		return bad("id", fmt.Sprintf("%q does not match %s", s.ID, idPattern))
	case !ValidID(s.Owner):
		return bad("owner", fmt.Sprintf("%q does not match %s", s.Owner, idPattern))
	case !namePattern.MatchString(s.Template):
		return bad("template", fmt.Sprintf("%q does not match %s", s.Template, namePattern))
	case s.Image.ID == "" && s.Image.Root == "":
		return bad("image", "has neither an id nor a root")
	case s.Image.Root != "" && !filepath.IsAbs(s.Image.Root):
		return bad("image.root", fmt.Sprintf("%q is not absolute", s.Image.Root))
	case s.OrphanTimeout < 0:
		return bad("alone", "is negative")
	case s.Claim != nil && !ValidID(s.Claim.Workspace):
		return bad("claim.workspace", fmt.Sprintf("%q does not match %s", s.Claim.Workspace, idPattern))
	}
	if _, err := ParseClass(string(s.Class)); err != nil {
		return fmt.Errorf("spec.class: %w", err)
	}
	if err := s.Limits.Validate(); err != nil {
		return err
	}
	if err := ValidateTmpfs(s.Tmpfs, s.Limits.MemoryBytes); err != nil {
		return err
	}
	return ValidateUlimits(s.Ulimits)
}

// RefuseUserNamespace returns an error if the Spec asks for a user namespace, for drivers
// without.
func (s Spec) RefuseUserNamespace() error {
	if !s.UserNamespace {
		return nil
	}
	return fmt.Errorf("spec.user_namespace: this driver gives sandboxes no user namespaces; use the driver oci or containerd: %w",
		errdefs.ErrFailedPrecondition)
}

// UlimitNames returns the limits that Spec.Ulimits may set: those that the kernel counts per
// process. All sandboxes would share a limit that it counts per user.
func UlimitNames() []string { return []string{"as", "cpu", "data", "fsize", "rss", "stack"} }

// ValidateUlimits returns an error that names the first limit that cannot be set.
func ValidateUlimits(limits map[string]int64) error {
	for _, name := range slices.Sorted(maps.Keys(limits)) {
		if !slices.Contains(UlimitNames(), name) {
			return fmt.Errorf("ulimits.%s cannot be set: use %s; open files are limits.open_files, processes limits.pids: %w",
				name, strings.Join(UlimitNames(), ", "), errdefs.ErrInvalidArgument)
		}
		if limits[name] < 1 {
			return fmt.Errorf("ulimits.%s is %d: must be at least 1: %w", name, limits[name], errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// reservedPaths are mount points of every sandbox. Nothing else can be mounted there, or below.
var reservedPaths = []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/home/user", "/workspace"}

// ValidateTmpfs returns an error that names the first directory that cannot be a tmpfs of a sandbox
// with this memory cap in bytes.
func ValidateTmpfs(mounts map[string]int64, memory int64) error {
	for _, path := range slices.Sorted(maps.Keys(mounts)) {
		bad := func(why string) error {
			return fmt.Errorf("tmpfs %q %s: %w", path, why, errdefs.ErrInvalidArgument)
		}
		if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || strings.ContainsAny(path, ",:\x00\n") {
			return bad("is not a clean absolute path below /")
		}
		for _, our := range reservedPaths {
			if path == our || strings.HasPrefix(path, our+"/") || strings.HasPrefix(our, path+"/") {
				return bad("is, is below or holds " + our + ", which every sandbox has")
			}
		}
		if size := mounts[path]; size < 64<<10 || size > memory {
			return bad(fmt.Sprintf("is of %d bytes: must be from 64 KiB to limits.memory", size))
		}
	}
	return nil
}
