// Package v1 is the data of the HTTP interface /v1: what clients send and get.
// It holds no behaviour but checks of form. Durations are whole milliseconds,
// sizes are bytes, times are RFC 3339. Unknown fields are errors on both
// sides of the server; clients ignore fields that a newer server sends.
package v1

import (
	"encoding/json"
	"time"
)

// Usage is what a command used. Zero means that the host cannot tell.
type Usage struct {
	CPUUserMS       float64 `json:"cpu_user_ms"`
	CPUSystemMS     float64 `json:"cpu_system_ms"`
	MemoryPeakBytes int64   `json:"memory_peak_bytes"`
	PidsPeak        int64   `json:"pids_peak"`
}

// SandboxRequest asks for a lease. The zero value leases from the default
// template without a workspace.
type SandboxRequest struct {
	Template string `json:"template,omitempty"`
	// Workspace is the name of a workspace to bind at /workspace; ReadOnly
	// binds it read-only. Only one lease at a time may write.
	Workspace string `json:"workspace,omitempty"`
	ReadOnly  bool   `json:"read_only,omitempty"`
	// Mode is how the workspace is bound: "rw" (the default), "ro" (as
	// ReadOnly), or "overlay": changes are kept apart, to be looked at, committed
	// or discarded. Any number of overlay leases can be on one workspace.
	Mode string `json:"mode,omitempty"`
	// Class is the isolation that is wanted at least: "container", "gvisor" or
	// "vm". A template of a weaker class is refused.
	Class string            `json:"class,omitempty"`
	Env   map[string]string `json:"env,omitempty"`
	// TTLMS ends the lease after this time, whatever it does; IdleMS after a
	// time without a call. Zero takes the server's defaults.
	TTLMS  int64 `json:"ttl_ms,omitempty"`
	IdleMS int64 `json:"idle_ms,omitempty"`
	// WhenEmpty is what to do when no warm sandbox is there: "wait" (the
	// default; WaitMS at most), "cold" (make one now) or "refuse".
	WhenEmpty string            `json:"when_empty,omitempty"`
	WaitMS    int64             `json:"wait_ms,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Egress is what commands may reach through the proxy that the sandbox then
	// has. Nil: nothing.
	Egress *Egress `json:"egress,omitempty"`
}

// Sandbox is a lease on one container.
type Sandbox struct {
	ID string `json:"id"`
	// Caller is whose lease it is; empty while it is nobody's.
	Caller string `json:"caller,omitempty"`
	// State is "creating", "warm", "leased", "stopping", "gone" or "failed".
	State     string            `json:"state"`
	Template  string            `json:"template"`
	Runtime   string            `json:"runtime"`
	Image     string            `json:"image"`
	Workspace string            `json:"workspace,omitempty"`
	ReadOnly  bool              `json:"read_only,omitempty"`
	Mode      string            `json:"mode,omitempty"`
	Class     string            `json:"class,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Egress is what it may reach; nil: nothing.
	Egress *Egress `json:"egress,omitempty"`
	// Session is the session of tool calls that it belongs to.
	Session   string    `json:"session,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	// ExpiresAt and IdleMS are when the lease ends by itself.
	ExpiresAt time.Time `json:"expires_at"`
	IdleMS    int64     `json:"idle_ms"`
	LastUseAt time.Time `json:"last_use_at"`
	// Warm says that it came from the pool.
	Warm bool `json:"warm"`
	// EndedAt and Reason are set once it is gone: "removed", "expired",
	// "idle", "lost", "unclean", "failed".
	EndedAt *time.Time `json:"ended_at,omitempty"`
	Reason  string     `json:"reason,omitempty"`
}

// Sync says what was brought from a sandbox to its workspace. Not Carried: the
// workspace is mounted, read-only, or there is none, so there is nothing to do.
type Sync struct {
	Carried bool  `json:"carried"`
	Entries int   `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// Exec is a command to run: either Argv, or Command for the sandbox's shell
// ("bash -c" where the image has one, else "sh -c").
type Exec struct {
	Argv    []string          `json:"argv,omitempty"`
	Command string            `json:"command,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	// Stdin is given as a string; StdinBase64 for bytes. Without either
	// stdin is empty.
	Stdin       string `json:"stdin,omitempty"`
	StdinBase64 string `json:"stdin_base64,omitempty"`
	User        string `json:"user,omitempty"`
	TimeoutMS   int64  `json:"timeout_ms,omitempty"`
	// MaxOutputBytes is how much of each stream the answer holds: the head
	// and the tail of it, with Truncated set if there was more. It does not
	// stop the command unless StopAtOutput is set: then the ending is
	// output_limit.
	MaxOutputBytes int64 `json:"max_output_bytes,omitempty"`
	StopAtOutput   bool  `json:"stop_at_output,omitempty"`
}

// ExecResult is how a command ended and what it wrote. Bytes that are not
// UTF-8 are replaced; ask for raw octets to have them as they are.
type ExecResult struct {
	ID string `json:"id"`
	// Ending is exited, signalled, timeout, cancelled, oom, pids, disk,
	// output_limit or sandbox_lost. ExitCode is -1 unless it is exited.
	Ending   string `json:"ending"`
	ExitCode int    `json:"exit_code"`
	Signal   int    `json:"signal,omitempty"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	// Truncated: Stdout or Stderr lacks a middle part; the totals are exact.
	Truncated   bool   `json:"truncated"`
	StdoutBytes int64  `json:"stdout_bytes"`
	StderrBytes int64  `json:"stderr_bytes"`
	DurationMS  int64  `json:"duration_ms"`
	Usage       Usage  `json:"usage"`
	Detail      string `json:"detail,omitempty"`
	// Session is what came of the session that a command ran in: "open",
	// "renewed" or "ended".
	Session string `json:"session,omitempty"`
	// Overlay is the id of what a run with mode "overlay" changed, if anything.
	Overlay string `json:"overlay,omitempty"`
}

// Run is a one-shot call: a sandbox is leased, runs one command, and is
// destroyed.
type Run struct {
	Exec
	Template  string            `json:"template,omitempty"`
	Workspace string            `json:"workspace,omitempty"`
	ReadOnly  bool              `json:"read_only,omitempty"`
	Mode      string            `json:"mode,omitempty"`
	Class     string            `json:"class,omitempty"`
	WhenEmpty string            `json:"when_empty,omitempty"`
	WaitMS    int64             `json:"wait_ms,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Egress    *Egress           `json:"egress,omitempty"`
}

// Lease is the part of a Run that asks for the sandbox.
func (r Run) Lease() SandboxRequest {
	return SandboxRequest{
		Template: r.Template, Workspace: r.Workspace, ReadOnly: r.ReadOnly, Mode: r.Mode, Class: r.Class,
		WhenEmpty: r.WhenEmpty, WaitMS: r.WaitMS, Labels: r.Labels, Egress: r.Egress,
	}
}

// Event is one server-sent event of a streamed exec: "started", "stdout",
// "stderr" or "end". Data of output events is text; Base64 is set instead
// where the bytes are not UTF-8.
type Event struct {
	Type   string      `json:"type"`
	ID     string      `json:"id,omitempty"`
	Data   string      `json:"data,omitempty"`
	Base64 string      `json:"base64,omitempty"`
	Result *ExecResult `json:"result,omitempty"`
}

// ShellRequest starts a background command.
type ShellRequest struct {
	Exec
	// MergeStderr puts stderr into stdout in the order of writing.
	MergeStderr bool `json:"merge_stderr,omitempty"`
	// KeepOpen leaves stdin open for POST …/input.
	KeepOpen bool `json:"keep_open,omitempty"`
	// SpoolBytes is how much of each stream is kept for readers. When it is
	// used up the oldest bytes go, and a late reader is told the exact gap;
	// with Lossless the command waits for its reader instead.
	SpoolBytes int64 `json:"spool_bytes,omitempty"`
	Lossless   bool  `json:"lossless,omitempty"`
}

// Shell is a background command.
type Shell struct {
	ID        string   `json:"id"`
	SandboxID string   `json:"sandbox_id"`
	Argv      []string `json:"argv"`
	// State is "running" or "ended".
	State     string      `json:"state"`
	StartedAt time.Time   `json:"started_at"`
	Result    *ExecResult `json:"result,omitempty"`
	// TTY: it runs on a terminal, see TerminalRequest.
	TTY bool `json:"tty,omitempty"`
	// The bytes of each stream that can be read now.
	StdoutStart int64 `json:"stdout_start"`
	StdoutEnd   int64 `json:"stdout_end"`
	StderrStart int64 `json:"stderr_start"`
	StderrEnd   int64 `json:"stderr_end"`
}

// Output is a piece of a shell's output.
type Output struct {
	Stream string `json:"stream"`
	// Offset is where Data begins: more than what was asked for if the bytes
	// between are no longer kept (Gap of them). NextOffset is to ask for next.
	Offset     int64 `json:"offset"`
	NextOffset int64 `json:"next_offset"`
	Gap        int64 `json:"gap"`
	// Data is text; Base64 is set instead where the bytes are not UTF-8.
	Data   string `json:"data"`
	Base64 string `json:"base64,omitempty"`
	// EOF: the stream has ended at NextOffset.
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

// WorkspaceRequest makes a workspace.
type WorkspaceRequest struct {
	Name string `json:"name"`
	// QuotaBytes is what it holds at most; zero takes the server's default.
	QuotaBytes int64 `json:"quota_bytes,omitempty"`
}

// Workspace is a folder that outlives sandboxes.
type Workspace struct {
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
	// Sandboxes are the leases that have it now.
	Sandboxes []string `json:"sandboxes"`
	// QuotaBytes is what it holds at most, 0 where nothing bounds it, UsedBytes
	// what is in it: of a workspace at rest, as of its last use.
	QuotaBytes int64 `json:"quota_bytes,omitempty"`
	UsedBytes  int64 `json:"used_bytes,omitempty"`
	// Overlays and Snapshots are how many it has.
	Overlays  int `json:"overlays,omitempty"`
	Snapshots int `json:"snapshots,omitempty"`
}

// Pool is the state of one template's warm pool.
type Pool struct {
	Template string `json:"template"`
	Image    string `json:"image"`
	Min      int    `json:"min"`
	Max      int    `json:"max"`
	// Target is how many are to be warm now: Min, or between Min and Max what the
	// demand of late asks for where Adaptive is set.
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

// List is how every list answers.
type List[T any] struct {
	Items []T `json:"items"`
}

// Version says what the server is and what it runs on.
type Version struct {
	Version string `json:"version"`
	Build   string `json:"build"`
	Runtime string `json:"runtime"`
	// Why the runtime was chosen, and which cgroup mode was found.
	Why          string            `json:"why"`
	Cgroup       string            `json:"cgroup"`
	Capabilities map[string]string `json:"capabilities"`
}

// Problem is an error as RFC 9457 has it, with the field that was wrong and
// the way out. Code is a class in snake case: invalid_argument, not_found,
// already_exists, failed_precondition, resource_exhausted, permission_denied,
// unauthenticated, unavailable, deadline_exceeded, not_implemented, internal.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	Field  string `json:"field,omitempty"`
	// Kind is what the profile of a tool calls an error of its input.
	Kind         string `json:"kind,omitempty"`
	RetryAfterMS int64  `json:"retry_after_ms,omitempty"`
}

// Error makes a Problem an error: the detail is a whole sentence.
func (p *Problem) Error() string { return p.Detail }

// Decode reads a Problem from an error body; it reports whether it was one.
func Decode(body []byte) (*Problem, bool) {
	var p Problem
	if json.Unmarshal(body, &p) != nil || p.Status == 0 {
		return nil, false
	}
	return &p, true
}
