package runtime

import "time"

// Ending says how a command ended. It is never invented: what was not seen to
// end well is SandboxLost.
type Ending string

const (
	// Exited: the command ended by itself; Result.ExitCode holds its code.
	Exited Ending = "exited"
	// Signalled: a signal that was not ours ended it; see Result.Signal.
	Signalled Ending = "signalled"
	// Timeout: its time was over, and everything it started was killed.
	Timeout Ending = "timeout"
	// Cancelled: the caller gave it up or killed it, or its sandbox was ended on
	// purpose; Result.Detail says which where the caller may not know.
	Cancelled Ending = "cancelled"
	// OOM: the kernel killed it, or a process of it, for going over the memory
	// cap, and it did not end well by itself afterwards.
	OOM Ending = "oom"
	// Pids: it was refused processes at the pids cap and did not end well.
	Pids Ending = "pids"
	// Disk: it did not end well, and at its end a file system that it can write
	// to has hardly any room for data (less than 2 MiB, or than a 32nd of it) or
	// none for files; Result.Detail names which. Besides, its last words were the
	// kernel's for that, or it ran alone and there was room before it. A command
	// that gives the room back as it fails is not seen to have lacked it, and ends
	// as Exited.
	Disk Ending = "disk"
	// OutputLimit: it wrote more than the caller allowed and asked to stop at.
	OutputLimit Ending = "output_limit"
	// PolicyDenied and ApprovalDenied: it never ran.
	PolicyDenied   Ending = "policy_denied"
	ApprovalDenied Ending = "approval_denied"
	// SandboxLost: the sandbox, or the way to it, went away before an ending
	// was seen.
	SandboxLost Ending = "sandbox_lost"
)

// Endings lists all of them in the order of the documentation.
func Endings() []Ending {
	return []Ending{Exited, Signalled, Timeout, Cancelled, OOM, Pids, Disk, OutputLimit, PolicyDenied, ApprovalDenied, SandboxLost}
}

// Result is the end of one command.
type Result struct {
	Ending Ending `json:"ending"`
	// ExitCode is the leader's exit code, -1 if it has none.
	ExitCode int `json:"exit_code"`
	// Signal is the number of the signal that ended the leader, 0 if none did.
	Signal   int           `json:"signal,omitempty"`
	Duration time.Duration `json:"duration_ns"`
	Usage    Usage         `json:"usage"`
	// Unclean: not every process of the command was seen dead. The sandbox is
	// not to be used again.
	Unclean bool `json:"unclean,omitempty"`
	// Detail is one sentence for people, from our own code only.
	Detail string `json:"detail,omitempty"`
}

// Usage is what a command and all it started used. A figure that the host
// cannot give is zero.
type Usage struct {
	CPUUser     time.Duration `json:"cpu_user_ns"`
	CPUSystem   time.Duration `json:"cpu_system_ns"`
	MemoryBytes int64         `json:"memory_peak_bytes"`
	Pids        int64         `json:"pids_peak"`
}
