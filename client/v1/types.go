// Package v1 defines the JSON types of the HTTP interface /v1.
//
// Durations are whole milliseconds, sizes are bytes, and times are RFC 3339. The server refuses
// requests with unknown fields. Clients ignore unknown fields, which newer servers may send.
package v1

import (
	"encoding/json"
	"time"
)

// Usage is the resource usage of a command. Zero means that the host cannot measure it.
type Usage struct {
	CPUUserMS       float64 `json:"cpu_user_ms"`
	CPUSystemMS     float64 `json:"cpu_system_ms"`
	MemoryPeakBytes int64   `json:"memory_peak_bytes"`
	PidsPeak        int64   `json:"pids_peak"`
}

// SandboxRequest asks for a lease. The zero value leases from the default template without a
// workspace.
type SandboxRequest struct {
	// Name can be used instead of the id while the sandbox lives. It is unique among the caller's
	// live sandboxes.
	Name     string `json:"name,omitempty"`
	Template string `json:"template,omitempty"`
	// Workspace is the name of a workspace to bind at /workspace. ReadOnly binds it read-only. Only
	// one lease at a time may bind it for writing.
	Workspace string `json:"workspace,omitempty"`
	ReadOnly  bool   `json:"read_only,omitempty"`
	// Mode is how the workspace is bound: "rw" (the default), "ro" (like ReadOnly) or "overlay". An
	// overlay keeps changes separate until they are committed or discarded. A workspace can have
	// any number of overlay leases.
	Mode string `json:"mode,omitempty" enum:"rw,ro,overlay"`
	// Class is the minimum isolation: "container", "gvisor" or "vm". A template of a weaker class
	// is refused.
	Class string            `json:"class,omitempty" enum:"container,gvisor,vm"`
	Env   map[string]string `json:"env,omitempty"`
	// TTLMS is the maximum duration of the lease, IdleMS the maximum time without a call. Zero
	// takes the server's defaults.
	TTLMS  int64 `json:"ttl_ms,omitempty"`
	IdleMS int64 `json:"idle_ms,omitempty"`
	// WhenEmpty is what to do if no sandbox is warm: "wait" (the default) for up to WaitMS, "cold"
	// to create one now, or "refuse".
	WhenEmpty string            `json:"when_empty,omitempty" enum:"wait,cold,refuse"`
	WaitMS    int64             `json:"wait_ms,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Egress is what commands may connect to, through a proxy in the sandbox. Nil means nothing.
	Egress *Egress `json:"egress,omitempty"`
}

// Sandbox is a lease on one container.
type Sandbox struct {
	ID string `json:"id"`
	// Name is the caller's name for it, or "".
	Name string `json:"name,omitempty"`
	// Caller is the owner of the lease, or "" if the sandbox is not leased.
	Caller string `json:"caller,omitempty"`
	// State is "creating", "warm", "leased", "stopping", "gone" or "failed".
	State     string            `json:"state" enum:"creating,warm,leased,stopping,gone,failed"`
	Template  string            `json:"template"`
	Runtime   string            `json:"runtime"`
	Image     string            `json:"image"`
	Workspace string            `json:"workspace,omitempty"`
	ReadOnly  bool              `json:"read_only,omitempty"`
	Mode      string            `json:"mode,omitempty"`
	Class     string            `json:"class,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Egress is what the sandbox may connect to; nil means nothing.
	Egress *Egress `json:"egress,omitempty"`
	// Session is the session of tool calls that uses the sandbox.
	Session   string    `json:"session,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// ExpiresAt is when the lease ends, IdleMS after which time without a call it ends earlier.
	ExpiresAt time.Time `json:"expires_at"`
	IdleMS    int64     `json:"idle_ms"`
	LastUseAt time.Time `json:"last_use_at"`
	// Warm reports that the sandbox came from the warm pool.
	Warm bool `json:"warm"`
	// EndedAt and Reason are set once the sandbox has ended. Reason is "removed", "expired",
	// "idle", "lost", "unclean" or "failed".
	EndedAt *time.Time `json:"ended_at,omitempty"`
	Reason  string     `json:"reason,omitempty"`
	// Detail says why a sandbox was lost, if its runtime reports that.
	Detail string `json:"detail,omitempty"`
}

// Sync reports what was copied from a sandbox to its workspace. Carried is false if there was
// nothing to copy because the workspace is mounted, read-only or absent.
type Sync struct {
	Carried bool  `json:"carried"`
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// Exec is a command to run: either Argv, or Command for the sandbox's shell ("bash -c" if the image
// has bash, otherwise "sh -c").
type Exec struct {
	Argv    []string          `json:"argv,omitempty"`
	Command string            `json:"command,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// Stdin is input as text, StdinBase64 as bytes. Without either, stdin is empty.
	Stdin       string `json:"stdin,omitempty"`
	StdinBase64 string `json:"stdin_base64,omitempty"`
	User        string `json:"user,omitempty"`
	TimeoutMS   int64  `json:"timeout_ms,omitempty"`
	// MaxOutputBytes is how much of each stream the result holds. Longer output keeps its head and
	// tail, and Truncated is set. The command is not stopped unless StopAtOutput is set: then the
	// ending is output_limit.
	MaxOutputBytes int64 `json:"max_output_bytes,omitempty"`
	StopAtOutput   bool  `json:"stop_at_output,omitempty"`
}

// ExecResult is how a command ended and what it wrote. Bytes that are not UTF-8 are replaced;
// stream the output to get the exact bytes.
type ExecResult struct {
	ID string `json:"id"`
	// Ending is exited, signalled, timeout, cancelled, oom, pids, disk, output_limit or
	// sandbox_lost. ExitCode is -1 unless the ending is exited.
	Ending   string `json:"ending" enum:"exited,signalled,timeout,cancelled,oom,pids,disk,output_limit,sandbox_lost"`
	ExitCode int    `json:"exit_code"`
	Signal   int    `json:"signal,omitempty"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	// Truncated reports that Stdout or Stderr lacks its middle part. StdoutBytes and StderrBytes
	// count all output.
	Truncated   bool   `json:"truncated"`
	StdoutBytes int64  `json:"stdout_bytes"`
	StderrBytes int64  `json:"stderr_bytes"`
	DurationMS  int64  `json:"duration_ms"`
	Usage       Usage  `json:"usage"`
	Detail      string `json:"detail,omitempty"`
	// Session is the state of the session that the command ran in: "open", "renewed" or "ended".
	Session string `json:"session,omitempty" enum:"open,renewed,ended"`
	// Overlay is the id of the overlay of a run with mode "overlay", or "" if the run changed
	// nothing.
	Overlay string `json:"overlay,omitempty"`
}

// Run leases a sandbox, runs one command in it, and destroys it.
type Run struct {
	Exec
	Template  string            `json:"template,omitempty"`
	Workspace string            `json:"workspace,omitempty"`
	ReadOnly  bool              `json:"read_only,omitempty"`
	Mode      string            `json:"mode,omitempty" enum:"rw,ro,overlay"`
	Class     string            `json:"class,omitempty" enum:"container,gvisor,vm"`
	WhenEmpty string            `json:"when_empty,omitempty" enum:"wait,cold,refuse"`
	WaitMS    int64             `json:"wait_ms,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Egress    *Egress           `json:"egress,omitempty"`
}

// Lease returns the request for the run's sandbox.
func (r Run) Lease() SandboxRequest {
	return SandboxRequest{
		Template: r.Template, Workspace: r.Workspace, ReadOnly: r.ReadOnly, Mode: r.Mode, Class: r.Class,
		WhenEmpty: r.WhenEmpty, WaitMS: r.WaitMS, Labels: r.Labels, Egress: r.Egress,
	}
}

// Event is one server-sent event of a streamed exec: "started", "stdout", "stderr" or "end". Data
// is output as text; Base64 is set instead if the bytes are not UTF-8.
type Event struct {
	Type   string      `json:"type" enum:"started,stdout,stderr,end"`
	ID     string      `json:"id,omitempty"`
	Data   string      `json:"data,omitempty"`
	Base64 string      `json:"base64,omitempty"`
	Result *ExecResult `json:"result,omitempty"`
}

// ShellRequest starts a background command.
type ShellRequest struct {
	Exec
	// MergeStderr writes stderr to stdout in the order of writing.
	MergeStderr bool `json:"merge_stderr,omitempty"`
	// KeepOpen leaves stdin open for POST …/input.
	KeepOpen bool `json:"keep_open,omitempty"`
	// SpoolBytes is how much of each stream is kept for readers. When the spool is full, the oldest
	// bytes are dropped and late readers get the exact gap. With Lossless, the command is blocked
	// until its reader catches up.
	SpoolBytes int64 `json:"spool_bytes,omitempty"`
	Lossless   bool  `json:"lossless,omitempty"`
}

// Shell is a background command.
type Shell struct {
	ID        string   `json:"id"`
	SandboxID string   `json:"sandbox_id"`
	Argv      []string `json:"argv"`
	// State is "running" or "ended".
	State     string      `json:"state" enum:"running,ended"`
	StartedAt time.Time   `json:"started_at"`
	Result    *ExecResult `json:"result,omitempty"`
	// TTY reports that the command runs on a terminal; see TerminalRequest.
	TTY bool `json:"tty,omitempty"`
	// StdoutStart to StderrEnd are the offsets of the bytes of each stream that can be read now.
	StdoutStart int64 `json:"stdout_start"`
	StdoutEnd   int64 `json:"stdout_end"`
	StderrStart int64 `json:"stderr_start"`
	StderrEnd   int64 `json:"stderr_end"`
}

// Output is a piece of a background command's output.
type Output struct {
	Stream string `json:"stream" enum:"stdout,stderr"`
	// Offset is where Data begins. It exceeds the requested offset by Gap if those bytes are no
	// longer kept. NextOffset is the offset to request next.
	Offset     int64 `json:"offset"`
	NextOffset int64 `json:"next_offset"`
	Gap        int64 `json:"gap"`
	// Data is text; Base64 is set instead if the bytes are not UTF-8.
	Data   string `json:"data"`
	Base64 string `json:"base64,omitempty"`
	// EOF reports that the stream ends at NextOffset.
	EOF   bool  `json:"eof"`
	Shell Shell `json:"shell"`
}

// File describes a file in a workspace.
type File struct {
	Name    string    `json:"name"`
	Path    string    `json:"path"`
	Type    string    `json:"type"`
	Size    int64     `json:"size"`
	Mode    string    `json:"mode"` // octal, "0644"
	UID     uint32    `json:"uid"`
	GID     uint32    `json:"gid"`
	ModTime time.Time `json:"mod_time"`
	Target  string    `json:"target,omitempty"`
}

// WorkspaceRequest asks for a new workspace.
type WorkspaceRequest struct {
	Name string `json:"name"`
	// QuotaBytes is the maximum size; zero takes the server's default.
	QuotaBytes int64 `json:"quota_bytes,omitempty"`
}

// Workspace is a directory that outlives sandboxes.
type Workspace struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	// Sandboxes are the ids of the leases that use it now.
	Sandboxes []string `json:"sandboxes"`
	// QuotaBytes is the maximum size, or 0 if unlimited. UsedBytes is the size of its files; for a
	// workspace that is not in use, as of its last use.
	QuotaBytes int64 `json:"quota_bytes,omitempty"`
	UsedBytes  int64 `json:"used_bytes,omitempty"`
	// Overlays and Snapshots are how many it has.
	Overlays  int `json:"overlays,omitempty"`
	Snapshots int `json:"snapshots,omitempty"`
	// Claim is the volume claim of the cluster that has its files, if there is one. QuotaBytes is
	// then the size that was asked for, and UsedBytes is unknown.
	Claim string `json:"claim,omitempty"`
}

// Pool is the state of one template's warm pool.
type Pool struct {
	Template string `json:"template"`
	Image    string `json:"image"`
	Min      int    `json:"min"`
	Max      int    `json:"max"`
	// Target is how many sandboxes should be warm now: Min, or if Adaptive is set, a number between
	// Min and Max that follows recent demand.
	Target    int    `json:"target"`
	Adaptive  bool   `json:"adaptive,omitempty"`
	Creating  int    `json:"creating"`
	Warm      int    `json:"warm"`
	Leased    int    `json:"leased"`
	Waiting   int    `json:"waiting"`
	Created   int64  `json:"created_total"`
	Failed    int64  `json:"failed_total"`
	LastError string `json:"last_error,omitempty"`
}

// List is the answer of every list.
type List[T any] struct {
	Items []T `json:"items"`
	// Truncated reports that the list was cut at the size of a page. Lists of audit records and of
	// approval requests have pages.
	Truncated bool `json:"truncated,omitempty"`
}

// Version describes the server and the runtime that it uses.
type Version struct {
	Version string `json:"version"`
	Build   string `json:"build"`
	Runtime string `json:"runtime"`
	// Why says why the runtime was chosen, and which cgroup mode was found.
	Why          string            `json:"why"`
	Cgroup       string            `json:"cgroup"`
	Capabilities map[string]string `json:"capabilities"`
}

// Problem is an error as in RFC 9457. Field names the invalid field, and Detail says how to correct
// it. Code is one of invalid_argument, not_found, already_exists, failed_precondition,
// resource_exhausted, permission_denied, unauthenticated, unavailable, deadline_exceeded,
// not_implemented and internal.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code" enum:"invalid_argument,not_found,already_exists,failed_precondition,resource_exhausted,permission_denied,unauthenticated,unavailable,deadline_exceeded,not_implemented,internal"`
	Field  string `json:"field,omitempty"`
	// Kind is the error type that the tool's profile defines for invalid input.
	Kind         string `json:"kind,omitempty"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
	// Trace is the id of the request's trace, if the service has traces.
	Trace string `json:"trace,omitempty"`
	// RequestID is the id of the request, as in the answer's header X-Request-Id and in the log.
	RequestID string `json:"request_id,omitempty"`
}

// Error implements error. It returns the detail, which is a whole sentence.
func (p *Problem) Error() string { return p.Detail }

// Decode parses an error body. It reports false if the body is not a Problem.
func Decode(body []byte) (*Problem, bool) {
	var p Problem
	ok := json.Unmarshal(body, &p) == nil && p.Status != 0
	if !ok {
		return nil, false
	}
	return &p, true
}
