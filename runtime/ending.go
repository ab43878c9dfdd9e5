package runtime

import "time"

// Ending says how a command ended. An ending that was not observed is SandboxLost, never success.
type Ending string

const (
	// Exited: the command ended normally; Result.ExitCode holds its exit code.
	Exited Ending = "exited"
	// Signalled: a signal that the orchestrator did not send ended it; see Result.Signal.
	Signalled Ending = "signalled"
	// Timeout: its time limit passed, and everything it started was killed.
	Timeout Ending = "timeout"
	// Cancelled: the caller abandoned or killed it, or its sandbox was ended on purpose.
	// Result.Detail says which, where the caller may not know.
	Cancelled Ending = "cancelled"
	// OOM: the kernel killed it or one of its processes for exceeding the memory cap, and it did
	// not end well afterwards.
	OOM Ending = "oom"
	// Pids: it could not start a process at the pids cap, and did not end well.
	Pids Ending = "pids"
	// Disk: it did not end well, and a file system that it can write to was full at its end: less
	// than 2 MiB or a 32nd of the data space free, or no free inode. Result.Detail names the file
	// system. In addition, its last output was the kernel's message for that, or it ran alone and
	// there was space before it. A command that frees the space as it fails is not detected, and
	// ends as Exited.
	Disk Ending = "disk"
	// OutputLimit: it wrote more than the caller's limit, and the caller asked to stop it there.
	OutputLimit Ending = "output_limit"
	// PolicyDenied and ApprovalDenied: it never ran.
	PolicyDenied   Ending = "policy_denied"
	ApprovalDenied Ending = "approval_denied"
	// SandboxLost: the sandbox or the connection to it was lost before an ending was observed.
	SandboxLost Ending = "sandbox_lost"
)

// Endings returns all endings in the order of the documentation.
func Endings() []Ending {
	return []Ending{Exited, Signalled, Timeout, Cancelled, OOM, Pids, Disk, OutputLimit, PolicyDenied, ApprovalDenied,
		SandboxLost}
}

// Result is the outcome of one command.
type Result struct {
	Ending Ending `json:"ending"`
	// ExitCode is the exit code of the command's first process, -1 if it has none.
	ExitCode int `json:"exit_code"`
	// Signal is the number of the signal that ended the first process, 0 if none did.
	Signal   int           `json:"signal,omitempty"`
	Duration time.Duration `json:"duration_ns"`
	Usage    Usage         `json:"usage"`
	// Unclean: not every process of the command was observed dead. The sandbox must not be used
	// again.
	Unclean bool `json:"unclean,omitempty"`
	// Detail is one sentence for people. It never contains text from inside the sandbox.
	Detail string `json:"detail,omitempty"`
}

// Usage is what a command and all its processes used. A value that the host cannot measure is zero.
type Usage struct {
	CPUUser     time.Duration `json:"cpu_user_ns"`
	CPUSystem   time.Duration `json:"cpu_system_ns"`
	MemoryBytes int64         `json:"memory_peak_bytes"`
	Pids        int64         `json:"pids_peak"`
}
