package v1

import "time"

// Template describes a template that sandboxes are created from.
type Template struct {
	Name string `json:"name"`
	// State is "ready", or "not_ready" if it cannot be leased yet. Error says why it is not ready.
	// For a ready template, Error says why its latest version is not used; the other fields then
	// describe the version that is. Error is set for operators only.
	State string `json:"state" enum:"ready,not_ready"`
	Error string `json:"error,omitempty"`
	// File is the path of the template's file. It is set for operators only.
	File string `json:"file,omitempty"`
	// ReadyAt is when this version became ready.
	ReadyAt *time.Time `json:"ready_at,omitempty"`
	Image   string     `json:"image"`
	ImageID string     `json:"image_id,omitempty"`
	Class   string     `json:"class" enum:"container,gvisor,vm"`
	// UserNamespace reports that each sandbox has its own user namespace.
	UserNamespace bool     `json:"user_namespace,omitempty"`
	Entrypoint    []string `json:"entrypoint,omitempty"`
	Limits        Limits   `json:"limits"`
	// Tmpfs are additional memory file systems with their sizes in bytes. Ulimits are the limits of
	// every process.
	Tmpfs   map[string]int64 `json:"tmpfs,omitempty"`
	Ulimits map[string]int64 `json:"ulimits,omitempty"`
	// Env lists the names of the variables that every command gets. Values may be secrets and are
	// never returned.
	Env    []string     `json:"env,omitempty"`
	User   string       `json:"user,omitempty"`
	Warmup []WarmupHook `json:"warmup,omitempty"`
	Pool   PoolSettings `json:"pool"`
}

// Limits are the resource limits of a sandbox.
type Limits struct {
	MemoryBytes  int64   `json:"memory_bytes"`
	CPUs         float64 `json:"cpus"`
	Pids         int64   `json:"pids"`
	TmpBytes     int64   `json:"tmp_bytes"`
	ScratchBytes int64   `json:"scratch_bytes"`
	OpenFiles    int64   `json:"open_files"`
}

// WarmupHook is a command that runs before a sandbox counts as warm. With Background it is a shell
// that keeps running in the lease.
type WarmupHook struct {
	Argv       []string `json:"argv"`
	TimeoutMS  int64    `json:"timeout_ms,omitempty"`
	Background bool     `json:"background,omitempty"`
}

// PoolSettings configure a template's warm pool.
type PoolSettings struct {
	Min      int     `json:"min"`
	Max      int     `json:"max"`
	Rate     float64 `json:"rate"`
	Parallel int     `json:"parallel"`
	MaxAgeMS int64   `json:"max_age_ms"`
	// SettleMS is how long an exhausted pool waits before it refills, so that running calls get the
	// host's CPU. It does not wait if callers wait for a sandbox.
	SettleMS int64 `json:"settle_ms,omitempty"`
	Adaptive bool  `json:"adaptive"`
}

// TemplateReload lists template names by what reloading did to them.
type TemplateReload struct {
	Added   []string `json:"added"`
	Changed []string `json:"changed"`
	// Resized templates changed only their pool settings; their warm sandboxes stay.
	Resized []string `json:"resized"`
	Removed []string `json:"removed"`
	// Failed are templates whose latest version cannot be used, with the reason.
	Failed map[string]string `json:"failed"`
}
