package v1

import "time"

// Figures are what a leased sandbox uses at a moment, as the host sees it, its
// guest included.
type Figures struct {
	ID       string `json:"id"`
	Template string `json:"template"`
	Caller   string `json:"caller"`
	// At is when the figures were read. What a sandbox takes of the processors
	// is the difference of two CPUMS by that of their At.
	At time.Time `json:"at"`
	// Missing says why there are none: then the next five say nothing.
	Missing string `json:"missing,omitempty"`
	// CPUMS is the time on all processors since the sandbox was made.
	CPUMS float64 `json:"cpu_ms"`
	// MemoryBytes are held now, files in memory file systems included, cache that
	// can be dropped not. A limit of 0 is none that is known.
	MemoryBytes      int64 `json:"memory_bytes"`
	MemoryLimitBytes int64 `json:"memory_limit_bytes,omitempty"`
	// Pids are processes and threads.
	Pids      int64 `json:"pids"`
	PidsLimit int64 `json:"pids_limit,omitempty"`
	// Workspace is what the sandbox has at /workspace, if that has a name;
	// WorkspaceUsedBytes is what is in it, where its quota is enforced.
	Workspace           string `json:"workspace,omitempty"`
	WorkspaceUsedBytes  int64  `json:"workspace_used_bytes,omitempty"`
	WorkspaceQuotaBytes int64  `json:"workspace_quota_bytes,omitempty"`
}
