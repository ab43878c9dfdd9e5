package v1

import "time"

// Template is what sandboxes of a name are made from.
type Template struct {
	Name string `json:"name"`
	// State is "ready", or "not_ready" where it cannot be leased yet. Error says
	// why not; of a template that is ready, why its latest version is not in
	// use: then what else is told is of the version that is. It is for operators.
	State string `json:"state"`
	Error string `json:"error,omitempty"`
	// File is where it stands; for operators.
	File string `json:"file,omitempty"`
	// ReadyAt is since when this version is leased.
	ReadyAt    *time.Time `json:"ready_at,omitempty"`
	Image      string     `json:"image"`
	ImageID    string     `json:"image_id,omitempty"`
	Class      string     `json:"class"`
	Entrypoint []string   `json:"entrypoint,omitempty"`
	Limits     Limits     `json:"limits"`
	// Tmpfs are further folders to write to with their sizes in bytes, Ulimits
	// limits of every process.
	Tmpfs   map[string]int64 `json:"tmpfs,omitempty"`
	Ulimits map[string]int64 `json:"ulimits,omitempty"`
	// Env are the names of the variables that every command has; values may be
	// secrets, and are not told.
	Env    []string     `json:"env,omitempty"`
	User   string       `json:"user,omitempty"`
	Warmup []WarmupHook `json:"warmup,omitempty"`
	Pool   PoolSettings `json:"pool"`
}

// Limits are the caps of a sandbox.
type Limits struct {
	MemoryBytes  int64   `json:"memory_bytes"`
	CPUs         float64 `json:"cpus"`
	Pids         int64   `json:"pids"`
	TmpBytes     int64   `json:"tmp_bytes"`
	ScratchBytes int64   `json:"scratch_bytes"`
	OpenFiles    int64   `json:"open_files"`
}

// WarmupHook is a command that runs before a sandbox counts as warm; with
// Background, a shell that the lease finds running.
type WarmupHook struct {
	Argv       []string `json:"argv"`
	TimeoutMS  int64    `json:"timeout_ms,omitempty"`
	Background bool     `json:"background,omitempty"`
}

// PoolSettings are how many sandboxes of a template are kept warm, and how they
// are made.
type PoolSettings struct {
	Min      int     `json:"min"`
	Max      int     `json:"max"`
	Rate     float64 `json:"rate"`
	Parallel int     `json:"parallel"`
	MaxAgeMS int64   `json:"max_age_ms"`
	// SettleMS is for how long a pool that ran short leaves the host to the
	// calls before it fills up, unless somebody waits.
	SettleMS int64 `json:"settle_ms,omitempty"`
	Adaptive bool  `json:"adaptive"`
}

// TemplateReload is what reading the templates again did, by their names.
type TemplateReload struct {
	Added   []string `json:"added"`
	Changed []string `json:"changed"`
	// Resized: only numbers of the pool changed; what is warm stays.
	Resized []string `json:"resized"`
	Removed []string `json:"removed"`
	// Failed are those whose latest version is not in use, with the reason.
	Failed map[string]string `json:"failed"`
}
