package wire

import (
	"time"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Operations on sessions. A session is a shell that outlives the commands that run in it.
const (
	OpSessionStart Op = "session_start" // SessionStart → Session; an id that is there is answered as it is
	OpSessions     Op = "sessions"      // → []Session
	OpSessionExec  Op = "session_exec"  // SessionExec; Stdin/EOF/Signal → Started, Stdout/Stderr …, Reply(SessionResult)
	OpSessionEnd   Op = "session_end"   // ShellRef → Session: kills what lives of it, and forgets it
)

// Limits of sessions.
const (
	// MaxSessions is how many a sandbox keeps, ended ones too, until forgotten.
	MaxSessions = 16
	// MaxSessionQueue is how many commands wait for one session.
	MaxSessionQueue = 16
	// MaxSessionLeft is how many commands of one session may have left something
	// in the background that holds their output open.
	MaxSessionLeft = 32
	// MaxSessionWait bounds SessionExec.Wait.
	MaxSessionWait = 10 * time.Minute
	// SessionTime is how long a session's shell has to come back once it was
	// interrupted; then it is killed.
	SessionTime = 3 * time.Second
	// SessionDrain is how long output is still read after a command of a session
	// has ended, where something that it left in the background holds it open.
	SessionDrain = 50 * time.Millisecond
)

// SessionStart starts a session.
type SessionStart struct {
	// ID is chosen by the host, unique in the sandbox.
	ID string `json:"id"`
	// Shell is "bash" or "sh".
	Shell string `json:"shell"`
	// Cwd, Env and User are as those of a Command.
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
	// Commands is how many were run in it, Busy whether one runs now, Waiting
	// how many wait, Left how many ended ones have left something that holds
	// their output open.
	Commands int64 `json:"commands"`
	Busy     bool  `json:"busy"`
	Waiting  int   `json:"waiting"`
	Left     int   `json:"left"`
	// Result is how the shell ended, once it has.
	Result *runtime.Result `json:"result,omitempty"`
}

// SessionExec runs a command in a session.
type SessionExec struct {
	// ID of the command, unique among those that run in sessions.
	ID      string `json:"id"`
	Session string `json:"session"`
	// Text is what the shell reads: at most MaxArgBytes, without a NUL.
	Text string `json:"text"`
	// Timeout, Stdin and OutputLimit are as those of a Command. In time, or over
	// the limit, what the command started is killed and the shell interrupted.
	Timeout     time.Duration `json:"timeout_ns,omitempty"`
	Stdin       bool          `json:"stdin,omitempty"`
	OutputLimit int64         `json:"output_limit,omitempty"`
	// Wait is how long to wait for commands before it; zero refuses at once,
	// ResourceExhausted, a session that is busy.
	Wait time.Duration `json:"wait_ns,omitempty"`
	// Renew starts a session that has ended anew, as it was started first.
	Renew bool `json:"renew,omitempty"`
}

// SessionResult is how a command in a session ended.
type SessionResult struct {
	runtime.Result
	// Ended: the session has ended with the command, and all that was in it.
	Ended bool `json:"session_ended,omitempty"`
	// Renewed: it had ended, and the command ran in a new one.
	Renewed bool `json:"session_renewed,omitempty"`
}
