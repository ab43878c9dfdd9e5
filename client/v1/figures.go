package v1

import "time"

// Figures are the resource usage of a leased sandbox, measured by the host. They include the guest
// process.
type Figures struct {
	ID       string `json:"id"`
	Template string `json:"template"`
	Caller   string `json:"caller"`
	// At is when the usage was read. CPU usage over time is the difference of two CPUMS divided by
	// the difference of their At.
	At time.Time `json:"at"`
	// Missing says why the usage could not be read. CPUMS to PidsLimit are then zero.
	Missing string `json:"missing,omitempty"`
	// CPUMS is the CPU time of all processors since the sandbox was created, in milliseconds.
	CPUMS float64 `json:"cpu_ms"`
	// MemoryBytes is the memory in use, including files in memory file systems but not reclaimable
	// cache. A limit of 0 means that no limit is known.
	MemoryBytes      int64 `json:"memory_bytes"`
	MemoryLimitBytes int64 `json:"memory_limit_bytes,omitempty"`
	// Pids counts processes and threads.
	Pids      int64 `json:"pids"`
	PidsLimit int64 `json:"pids_limit,omitempty"`
	// Workspace is the name of the workspace at /workspace, or "". WorkspaceUsedBytes is the size
	// of its files, if the host enforces quotas.
	Workspace           string `json:"workspace,omitempty"`
	WorkspaceUsedBytes  int64  `json:"workspace_used_bytes,omitempty"`
	WorkspaceQuotaBytes int64  `json:"workspace_quota_bytes,omitempty"`
}
