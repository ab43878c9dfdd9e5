package wire

import (
	"time"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Operations on sessions. A session is a shell that outlives the commands that run in it.
const (
	OpSessionStart Op = "session_start" // SessionStart → Session; an existing id returns that session
	OpSessions     Op = "sessions"      // → []Session
	OpSessionExec  Op = "session_exec"  // SessionExec; Stdin/EOF/Signal → Started, Stdout/Stderr …, Reply(SessionResult)
	OpSessionEnd   Op = "session_end"   // ShellRef → Session; kills its processes and removes it
)

// Limits of sessions.
const (
	// MaxSessions limits the sessions of a sandbox, including ended ones that were not removed.
	MaxSessions = 16
	// MaxSessionQueue limits the commands that wait for one session.
	MaxSessionQueue = 16
	// MaxSessionLeft limits the ended commands of one session whose background processes still
	// hold their output open.
	MaxSessionLeft = 32
	// MaxSessionWait bounds SessionExec.Wait.
	MaxSessionWait = 10 * time.Minute
	// SessionTime is how long an interrupted shell may take to return to its prompt. After that it
	// is killed.
	SessionTime = 3 * time.Second
	// SessionDrain is how long the guest reads output after a command has ended, if background
	// processes of the command hold the output open.
	SessionDrain = 50 * time.Millisecond
)

// SessionStart starts a session.
type SessionStart struct {
	// ID is unique in the sandbox. The host chooses it.
	ID string `json:"id"`
	// Shell is "bash" or "sh".
	Shell string `json:"shell"`
	// Cwd, Env and User mean the same as in Command.
	Cwd  string            `json:"cwd,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
	User string            `json:"user,omitempty"`
}

// Session is the state of a session.
type Session struct {
	ID        string    `json:"id"`
	Shell     string    `json:"shell"`
	Pid       int       `json:"pid"` // in the sandbox's pid namespace
	StartedAt time.Time `json:"started_at"`
	// Commands counts all commands that ran, Waiting those in the queue, and Left the ended ones
	// whose background processes hold their output open. Busy is true while a command runs.
	Commands int64 `json:"commands"`
	Busy     bool  `json:"busy"`
	Waiting  int   `json:"waiting"`
	Left     int   `json:"left"`
	// Result is the shell's ending; nil while it lives.
	Result *runtime.Result `json:"result,omitempty"`
}

// SessionExec runs a command in a session.
type SessionExec struct {
	// ID of the command, unique among the commands that run in sessions.
	ID      string `json:"id"`
	Session string `json:"session"`
	// Text is what the shell reads: at most MaxArgBytes, without NUL bytes.
	Text string `json:"text"`
	// Timeout, Stdin and OutputLimit mean the same as in Command. At either limit, the guest kills
	// the processes of the command and interrupts the shell.
	Timeout     time.Duration `json:"timeout_ns,omitempty"`
	Stdin       bool          `json:"stdin,omitempty"`
	OutputLimit int64         `json:"output_limit,omitempty"`
	// Wait is how long to wait for earlier commands. With zero, a busy session is refused with
	// ResourceExhausted.
	Wait time.Duration `json:"wait_ns,omitempty"`
	// Renew restarts a session that has ended, with its first SessionStart.
	Renew bool `json:"renew,omitempty"`
}

// SessionResult is the ending of a command in a session.
type SessionResult struct {
	runtime.Result
	// Ended is true if the session ended with the command, and all its processes with it.
	Ended bool `json:"session_ended,omitempty"`
	// Renewed is true if the session had ended before, and the command ran in a new one.
	Renewed bool `json:"session_renewed,omitempty"`
}
