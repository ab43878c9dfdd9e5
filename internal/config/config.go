// Package config defines the service's configuration: one YAML file, overridden by environment
// variables, overridden by flags. default.yaml documents every default, and `orchestrator config`
// prints it. A test keeps it consistent with the code.
//
// An error about an unknown key names the nearest known key. An error about an invalid value names
// the key and the allowed values. The package starts no goroutines and opens only the files that it
// is given.
package config

//go:generate go run ./configdoc/generate

import (
	_ "embed"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Commented is the file of defaults.
//
//go:embed default.yaml
var Commented []byte

// Default locations.
const (
	DefaultStateDir   = "/var/lib/orchestrator"
	DefaultSocket     = "/run/orchestrator.sock"
	DefaultContainerd = "/run/containerd/containerd.sock"
	DefaultTemplate   = "default"
	DefaultImage      = "orchestrator/sandbox:latest"
)

// Config is the complete configuration.
type Config struct {
	// Listen is "unix:PATH" or "HOST:PORT". TCP requires TokenFile, and an address other than
	// loopback requires TLS, or AllowRemote to do without.
	Listen    string `json:"listen"`
	TokenFile string `json:"token_file"`
	// SocketGroup is the name or number of the group that may connect to a unix socket. SocketMode is
	// the socket's mode, such as "0660". Empty means SocketPerm's defaults.
	SocketGroup string `json:"socket_group"`
	SocketMode  string `json:"socket_mode"`
	AllowRemote bool   `json:"allow_remote"`
	// AllowedHosts are the names by which clients reach the service through a reverse proxy, as HOST
	// or HOST:PORT.
	AllowedHosts []string `json:"allowed_hosts"`
	TLS          TLS      `json:"tls"`
	// StateDir is the directory of all persistent state. Only one process at a time can use it.
	StateDir string `json:"state_dir"`
	// Runtime is "auto", "docker", "containerd", "oci" or "kubernetes".
	Runtime    string     `json:"runtime"`
	Docker     Docker     `json:"docker"`
	Containerd Containerd `json:"containerd"`
	OCI        OCI        `json:"oci"`
	Kubernetes Kubernetes `json:"kubernetes"`
	Log        Log        `json:"log"`
	Metrics    Metrics    `json:"metrics"`
	Tracing    Tracing    `json:"tracing"`
	Leases     Leases     `json:"leases"`
	Exec       Exec       `json:"exec"`
	Admission  Admission  `json:"admission"`
	Requests   Requests   `json:"requests"`
	Guest      Guest      `json:"guest"`
	// Limits and policy of calls: see governed.go.
	Callers       Callers       `json:"callers"`
	Profiles      Profiles      `json:"profiles"`
	Approvals     Approvals     `json:"approvals"`
	Audit         Audit         `json:"audit"`
	Idempotency   Idempotency   `json:"idempotency"`
	Jobs          Jobs          `json:"jobs"`
	ReadonlyShell ReadonlyShell `json:"readonly_shell"`
	// Network access of sandboxes: see egress.go.
	Egress Egress `json:"egress"`
	// Web tools, which use the gateway: see web.go.
	Web     Web     `json:"web"`
	Browser Browser `json:"browser"`
	// Images and workspaces: see storage.go.
	Workspaces Workspaces `json:"workspaces"`
	Images     Images     `json:"images"`
	// TemplatesDir is a directory of additional templates, one in each file NAME.yaml (default: none).
	// Templates are the templates of this file.
	TemplatesDir string              `json:"templates_dir"`
	Templates    map[string]Template `json:"templates"`

	written map[string]bool // the Templates that the file contains
}

// Docker configures the docker runtime.
type Docker struct {
	// Host is the engine's address (default: DOCKER_HOST or the default socket).
	Host string `json:"host"`
	// Mode is "auto", "local" or "stdio".
	Mode string `json:"mode"`
	// GVisor is the engine's runtime name for class gvisor (default: a well-known name that the
	// engine has).
	GVisor string `json:"gvisor"`
}

// Containerd configures the containerd runtime.
type Containerd struct {
	// Address is the socket's path. Namespace must be used by this service only.
	Address   string `json:"address"`
	Namespace string `json:"namespace"`
	// Snapshotter unpacks images (default: the daemon's default).
	Snapshotter string `json:"snapshotter"`
	// Runtime creates sandboxes of class container ("runc" or "crun"), and GVisor ("runsc") those
	// of class gvisor (default: an installed one).
	Runtime string `json:"runtime"`
	GVisor  string `json:"gvisor"`
}

// OCI configures the embedded runtime.
type OCI struct {
	// Runtime is the program: "runc" or "crun".
	Runtime string `json:"runtime"`
	// GVisor is the program for class gvisor (default: runsc, if installed).
	GVisor string `json:"gvisor"`
}

// Log configures the service's log.
type Log struct {
	Level  string `json:"level"`  // "debug", "info", "warn", "error"
	Format string `json:"format"` // "text", "json"
}

// Leases limits the duration of leases.
type Leases struct {
	TTL    Duration `json:"ttl"`
	MaxTTL Duration `json:"max_ttl"`
	Idle   Duration `json:"idle"`
}

// Exec limits single commands.
type Exec struct {
	// Timeout is the default time limit of a command. MaxTimeout is the maximum that a call may
	// request.
	Timeout    Duration `json:"timeout"`
	MaxTimeout Duration `json:"max_timeout"`
	// MaxOutput is the default limit of each stream in an answer. OutputCap is the maximum that a
	// call may request.
	MaxOutput Size `json:"max_output"`
	OutputCap Size `json:"output_cap"`
}

// Admission limits what runs on this host at once.
type Admission struct {
	// MaxSandboxes and MaxMemory limit all sandboxes of this host, including warm ones. MaxMemory 0
	// means 80 % of the host's memory.
	MaxSandboxes int  `json:"max_sandboxes"`
	MaxMemory    Size `json:"max_memory"`
	// Wait is the default time that a call waits for a sandbox. Queue is how many calls may wait.
	Wait  Duration `json:"wait"`
	Queue int      `json:"queue"`
}

// Guest configures the guest process in a sandbox.
type Guest struct {
	// OrphanTimeout is how long a sandbox lives without a connection from its host.
	OrphanTimeout Duration `json:"orphan_timeout"`
}

// Template describes the sandboxes of a warm pool.
type Template struct {
	Image string `json:"image"`
	// Class is the isolation class: container, gvisor or vm.
	Class string `json:"class"`
	// UserNamespace is own, host or auto.
	UserNamespace string   `json:"user_namespace"`
	Entrypoint    []string `json:"entrypoint"`
	Limits        Limits   `json:"limits"`
	// Tmpfs lists additional writable directories, and Ulimits the limits of every process: see
	// runtime.Spec.
	Tmpfs   map[string]Size `json:"tmpfs"`
	Ulimits map[string]Size `json:"ulimits"`
	// Env is every command's environment; leases and calls override it. User runs commands that
	// name no user.
	Env  map[string]string `json:"env"`
	User string            `json:"user"`
	// Warmup runs in a sandbox before it counts as warm, in order.
	Warmup []Hook `json:"warmup"`
	Pool   Pool   `json:"pool"`
}

// Hook is a warm-up command.
type Hook struct {
	// Argv is the program with its arguments. Timeout limits it (default: 30s).
	Argv    []string `json:"argv"`
	Timeout Duration `json:"timeout"`
	// Background starts it as a shell that keeps running for the lease.
	Background bool `json:"background"`
}

// Limits are a template's resource limits.
type Limits struct {
	// Memory limits the memory of a sandbox, CPUs its processor time in cores, and Pids its processes.
	// Tmp and Scratch are the sizes of /tmp and of the other writable directories, and OpenFiles limits
	// the open files of each process.
	Memory    Size    `json:"memory"`
	CPUs      float64 `json:"cpus"`
	Pids      int64   `json:"pids"`
	Tmp       Size    `json:"tmp"`
	Scratch   Size    `json:"scratch"`
	OpenFiles int64   `json:"open_files"`
}

// Runtime returns the limits as runtime.Limits.
func (l Limits) Runtime() runtime.Limits {
	return runtime.Limits{
		MemoryBytes: int64(l.Memory), CPUs: l.CPUs, Pids: l.Pids,
		TmpBytes: int64(l.Tmp), ScratchBytes: int64(l.Scratch), OpenFiles: l.OpenFiles,
	}.WithDefaults()
}

// Pool configures a template's warm pool.
type Pool struct {
	// Min is how many sandboxes are kept warm, and Max how many may exist, also leased ones.
	// Rate limits the creations per second, and Parallel those at the same time.
	// A warm sandbox is replaced after MaxAge.
	Min      int      `json:"min"`
	Max      int      `json:"max"`
	Rate     float64  `json:"rate"`
	Parallel int      `json:"parallel"`
	MaxAge   Duration `json:"max_age"`
	// RefillDelay is how long an exhausted pool waits before it refills, so that calls can use the
	// host, unless a call waits for a sandbox.
	RefillDelay Duration `json:"refill_delay"`
	// Adaptive sizes the pool between Min and Max by recent demand.
	Adaptive bool `json:"adaptive"`
}

// Default returns the default configuration.
func Default() Config {
	return Config{
		Listen:       "unix:" + DefaultSocket,
		AllowedHosts: []string{},
		TLS:          defaultTLS(),
		StateDir:     DefaultStateDir,
		Runtime:      "auto",
		Docker:       Docker{Mode: "auto"},
		OCI:          OCI{Runtime: "runc"},
		Kubernetes:   defaultKubernetes(),
		Containerd:   Containerd{Address: DefaultContainerd, Namespace: "orchestrator", Runtime: "runc"},
		Log:          Log{Level: "info", Format: "text"},
		Metrics:      defaultMetrics(),
		Tracing:      defaultTracing(),
		Leases:       Leases{TTL: Duration(time.Hour), MaxTTL: Duration(24 * time.Hour), Idle: Duration(15 * time.Minute)},
		Exec: Exec{
			Timeout: Duration(2 * time.Minute), MaxTimeout: Duration(time.Hour),
			MaxOutput: 1 << 20, OutputCap: 4 << 20,
		},
		Admission: Admission{MaxSandboxes: 100, MaxMemory: 0, Wait: Duration(30 * time.Second), Queue: 1000},
		Requests:  defaultRequests(),
		Guest:     Guest{OrphanTimeout: Duration(runtime.DefaultOrphanTimeout)},
		Callers:   defaultCallers(), Profiles: Profiles{Default: "default"}, Approvals: defaultApprovals(),
		Audit: defaultAudit(), Idempotency: Idempotency{Answers: 10_000, Bytes: 64 << 20}, Jobs: defaultJobs(),
		ReadonlyShell: ReadonlyShell{Caller: "local", Workspaces: map[string]string{}},
		Egress:        defaultEgress(), Web: defaultWeb(), Browser: defaultBrowser(),
		Workspaces: defaultWorkspaces(), Images: defaultImages(),
		Templates: map[string]Template{DefaultTemplate: defaultTemplate()},
	}
}

func defaultTemplate() Template {
	return Template{
		Image: DefaultImage,
		Class: string(runtime.ClassContainer), UserNamespace: UserNamespaceHost,
		Tmpfs:      map[string]Size{},
		Ulimits:    map[string]Size{},
		Env:        map[string]string{},
		Warmup:     []Hook{},
		Entrypoint: []string{"/usr/local/lib/orchestrator/entrypoint.sh"},
		Limits: Limits{
			Memory: runtime.DefaultMemoryBytes, CPUs: runtime.DefaultCPUs, Pids: runtime.DefaultPids,
			Tmp: runtime.DefaultTmpBytes, Scratch: runtime.DefaultScratchBytes, OpenFiles: runtime.DefaultOpenFiles,
		},
		Pool: Pool{Min: 2, Max: 50, Rate: 20, Parallel: 2, MaxAge: Duration(time.Hour)},
	}
}

// hostNames matches HOST and HOST:PORT. An IPv6 address is in brackets.
var hostNames = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?$`)

func validHost(s string) bool { return hostNames.MatchString(s) }

// Validate returns an error about the first key with an invalid value.
func (c Config) Validate() error {
	if err := c.validateServer(); err != nil {
		return err
	}
	switch {
	case c.Leases.TTL <= 0:
		return bad("leases.ttl", c.Leases.TTL, "must be more than 0")
	case c.Leases.MaxTTL < c.Leases.TTL:
		return bad("leases.max_ttl", c.Leases.MaxTTL, "must not be less than leases.ttl")
	case c.Leases.Idle <= 0:
		return bad("leases.idle", c.Leases.Idle, "must be more than 0")
	case c.Exec.Timeout <= 0:
		return bad("exec.timeout", c.Exec.Timeout, "must be more than 0")
	case c.Exec.MaxTimeout < c.Exec.Timeout:
		return bad("exec.max_timeout", c.Exec.MaxTimeout, "must not be less than exec.timeout")
	case c.Exec.MaxOutput < 1 || c.Exec.MaxOutput > c.Exec.OutputCap:
		return bad("exec.max_output", c.Exec.MaxOutput, "must be from 1 byte to exec.output_cap")
	case c.Exec.OutputCap > 256<<20:
		return bad("exec.output_cap", c.Exec.OutputCap, "must be at most 256MiB; use raw streams for more")
	case c.Admission.MaxSandboxes < 1:
		return bad("admission.max_sandboxes", c.Admission.MaxSandboxes, "must be at least 1")
	case c.Admission.MaxMemory < 0:
		return bad("admission.max_memory", c.Admission.MaxMemory, "must not be negative; 0 is 80 % of the host's memory")
	case c.Admission.Wait <= 0:
		return bad("admission.wait", c.Admission.Wait, "must be more than 0; calls can choose not to wait")
	case c.Admission.Queue < 1:
		return bad("admission.queue", c.Admission.Queue, "must be at least 1")
	case c.Guest.OrphanTimeout < Duration(time.Second):
		return bad("guest.orphan_timeout", c.Guest.OrphanTimeout, "must be at least 1s")
	case len(c.Templates) == 0:
		return bad("templates", "empty", "must have at least one template")
	}
	for _, err := range []error{
		c.TLS.validate(c.Listen), c.validateKubernetes(), c.Requests.validate(), c.Callers.validate(),
		c.Profiles.validate(), c.Approvals.validate(), c.Audit.validate(),
		c.Idempotency.validate(), c.Jobs.validate(), c.ReadonlyShell.validate(c.Listen), c.Egress.validate(), c.Web.validate(c),
		c.Browser.validate(), c.Metrics.validate(), c.Tracing.validate(), c.Workspaces.validate(), c.Images.validate(),
	} {
		if err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Templates)) {
		if !names.MatchString(name) {
			return bad("templates", quoted(name), namesText)
		}
		if err := c.Templates[name].validate("templates." + name); err != nil {
			return err
		}
	}
	return nil
}

func (c Config) validateServer() error {
	if err := validateListen(c.Listen); err != nil {
		return err
	}
	if err := c.validateSocket(); err != nil {
		return err
	}
	for i, host := range c.AllowedHosts {
		if !validHost(host) {
			return bad(fmt.Sprintf("allowed_hosts[%d]", i), quoted(host),
				"must be HOST or HOST:PORT, without scheme and path, such as agents.example.com")
		}
	}
	switch {
	case !isAbsolute(c.StateDir):
		return bad("state_dir", c.StateDir, "must be an absolute path")
	case !slices.Contains([]string{"auto", "docker", "containerd", "oci", "kubernetes"}, c.Runtime):
		return bad("runtime", c.Runtime, "must be auto, docker, containerd, oci or kubernetes")
	case !isAbsolute(c.Containerd.Address):
		return bad("containerd.address", c.Containerd.Address, "must be an absolute path")
	case !names.MatchString(c.Containerd.Namespace):
		return bad("containerd.namespace", c.Containerd.Namespace, namesText)
	case !slices.Contains([]string{"runc", "crun"}, c.Containerd.Runtime):
		return bad("containerd.runtime", c.Containerd.Runtime, "must be runc or crun")
	case c.TemplatesDir != "" && !isAbsolute(c.TemplatesDir):
		return bad("templates_dir", c.TemplatesDir, "must be an absolute path")
	case !slices.Contains([]string{"auto", "local", "stdio"}, c.Docker.Mode):
		return bad("docker.mode", c.Docker.Mode, "must be auto, local or stdio")
	case !slices.Contains([]string{"runc", "crun"}, c.OCI.Runtime):
		return bad("oci.runtime", c.OCI.Runtime, "must be runc or crun")
	case !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level):
		return bad("log.level", c.Log.Level, "must be debug, info, warn or error")
	case !slices.Contains([]string{"text", "json"}, c.Log.Format):
		return bad("log.format", c.Log.Format, "must be text or json")
	}
	return nil
}

func (t Template) validateMounts() error {
	if err := runtime.ValidateTmpfs(byteCounts(t.Tmpfs), int64(t.Limits.Memory)); err != nil {
		return err
	}
	return runtime.ValidateUlimits(byteCounts(t.Ulimits))
}

func knownClass(name string) bool {
	_, err := runtime.ParseClass(name)
	return err == nil
}

func byteCounts(sizes map[string]Size) map[string]int64 {
	out := make(map[string]int64, len(sizes))
	for name, size := range sizes {
		out[name] = int64(size)
	}
	return out
}

func quoted(s string) string { return strconv.Quote(s) }

func bad(key string, got any, want string) error {
	return fmt.Errorf("configuration: %s is %v: %s: %w", key, got, want, errdefs.ErrInvalidArgument)
}
