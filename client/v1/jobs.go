package v1

import "time"

// JobRequest runs commands, each in a sandbox of its own. The commands are Exec alone, Commands, or
// either of them once for each combination of Matrix.
type JobRequest struct {
	// Name is a label for lists.
	Name string `json:"name,omitempty"`
	// Exec is the command. With Commands, its cwd, env, user, timeout and output limits are their
	// defaults, and it has no argv and no command. A job's command has no stdin.
	Exec
	Commands []JobCommand `json:"commands,omitempty"`
	// Matrix maps names of environment variables to their values.
	Matrix map[string][]string `json:"matrix,omitempty"`
	// Template is the template of all sandboxes; Image selects the template that has this image.
	Template  string            `json:"template,omitempty"`
	Image     string            `json:"image,omitempty"`
	Workspace string            `json:"workspace,omitempty"`
	ReadOnly  bool              `json:"read_only,omitempty"`
	Mode      string            `json:"mode,omitempty"`
	Class     string            `json:"class,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Egress    *Egress           `json:"egress,omitempty"`
	// Native has each attempt run as a Job of the cluster (batch/v1) instead of in a warm sandbox, so
	// that the cluster's own queueing can hold it. It needs runtime kubernetes. Queue is the name of a
	// queue of Kueue. With Queue or Suspend the Job is created suspended, and its command starts when
	// the cluster resumes it.
	Native  bool   `json:"native,omitempty"`
	Queue   string `json:"queue,omitempty"`
	Suspend bool   `json:"suspend,omitempty"`
	// Files are written to every sandbox before its command starts.
	Files []JobFile `json:"files,omitempty"`
	// Parallelism is how many commands run at once (0: 1). With 1 they run in order.
	Parallelism int `json:"parallelism,omitempty"`
	// DeadlineMS is how long the whole job may take (0: one day). TimeoutMS is for each attempt.
	DeadlineMS int64 `json:"deadline_ms,omitempty"`
	// Retries is how often a command runs again after an ending in RetryOn. An entry is an ending,
	// "exited" for every exit code but 0, or "exit:N". The default is sandbox_lost, unknown and
	// not_run.
	Retries int      `json:"retries,omitempty"`
	RetryOn []string `json:"retry_on,omitempty"`
	// Artifacts are patterns of files to keep, relative to /workspace.
	Artifacts []string `json:"artifacts,omitempty"`
	// TTLMS is how long results and output are kept after the job's end (0: one day).
	TTLMS int64 `json:"ttl_ms,omitempty"`
}

// JobCommand is one command of a list.
type JobCommand struct {
	Name string `json:"name,omitempty"`
	Exec
}

// JobFile is an input file: text, or bytes as base64.
type JobFile struct {
	// Path is relative to /workspace, or absolute below /workspace or /tmp.
	Path    string `json:"path"`
	Content string `json:"content,omitempty"`
	Base64  string `json:"base64,omitempty"`
	// Mode is the permission bits in octal (default: 0644).
	Mode string `json:"mode,omitempty"`
}

// Job is a job and the counts of its commands.
type Job struct {
	ID     string `json:"id"`
	Name   string `json:"name,omitempty"`
	Caller string `json:"caller,omitempty"`
	// State is "queued", "running", "stopping" or "ended".
	State string `json:"state"`
	// QueuedBy is "cluster" while the cluster's own queue holds commands of a native job.
	QueuedBy string `json:"queued_by,omitempty"`
	// Ending is set at the end: "succeeded" if every command exited with 0, "cancelled" or "deadline"
	// if the job was stopped, "unknown" if the outcome of a command is not known and no other failed,
	// else "failed".
	Ending string `json:"ending,omitempty"`
	// Detail says why commands wait or why the job was stopped.
	Detail      string     `json:"detail,omitempty"`
	Template    string     `json:"template,omitempty"`
	Workspace   string     `json:"workspace,omitempty"`
	Parallelism int        `json:"parallelism"`
	Commands    JobCounts  `json:"commands"`
	CreatedAt   time.Time  `json:"created_at"`
	DeadlineAt  time.Time  `json:"deadline_at"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	// ExpiresAt is when an ended job is removed.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
}

// JobCounts counts commands. Total is the sum of the others.
type JobCounts struct {
	Total     int `json:"total"`
	Queued    int `json:"queued"`
	Running   int `json:"running"`
	Succeeded int `json:"succeeded"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"`
	// Unknown counts the commands that may have run, and whose end was not seen.
	Unknown int `json:"unknown"`
}

// JobResult is the state of one command of a job.
type JobResult struct {
	Index int    `json:"index"`
	Name  string `json:"name"`
	// State is "queued", "running" or "ended". Outcome is "succeeded", "failed", "cancelled" or
	// "unknown" once it has ended.
	State   string `json:"state"`
	Outcome string `json:"outcome,omitempty"`
	// QueuedBy is "cluster" while the cluster's own queue holds the command.
	QueuedBy string `json:"queued_by,omitempty"`
	// Attempt is the number of the current or last attempt, from 1. SandboxID is its sandbox while
	// it runs.
	Attempt   int    `json:"attempt"`
	SandboxID string `json:"sandbox_id,omitempty"`
	// Attempts are the attempts that have ended.
	Attempts []JobAttempt `json:"attempts"`
}

// JobAttempt is an attempt that has ended. Its result has no output; see the job's output. Besides
// the endings of ExecResult there are "not_run", if it never started, and "unknown", if it may have
// run and the service did not see its end.
type JobAttempt struct {
	Attempt   int        `json:"attempt"`
	SandboxID string     `json:"sandbox_id,omitempty"`
	StartedAt *time.Time `json:"started_at,omitempty"`
	EndedAt   time.Time  `json:"ended_at"`
	Result    ExecResult `json:"result"`
}

// JobOutput is a piece of the output of one attempt of a command.
type JobOutput struct {
	Stream string `json:"stream"`
	// Offset is the first byte of Data. Gap counts the bytes before it that are no longer kept.
	Offset     int64  `json:"offset"`
	NextOffset int64  `json:"next_offset"`
	Gap        int64  `json:"gap,omitempty"`
	Data       string `json:"data,omitempty"`
	Base64     string `json:"base64,omitempty"`
	// EOF reports that the attempt has ended and NextOffset is the length of its output.
	EOF     bool `json:"eof"`
	Attempt int  `json:"attempt"`
}

// JobArtifact is a file that a command left.
type JobArtifact struct {
	Index int    `json:"index"`
	Path  string `json:"path"`
	Size  int64  `json:"size"`
}
