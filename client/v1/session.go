package v1

import "time"

// ShellSessionRequest starts a session: a shell that keeps its state between commands.
type ShellSessionRequest struct {
	// Shell is "bash" or "sh". The default is bash if the image has it, and sh otherwise.
	Shell string `json:"shell,omitempty"`
	// Cwd, Env and User are the shell's initial working directory, extra environment and user.
	Cwd  string            `json:"cwd,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
	User string            `json:"user,omitempty"`
}

// ShellSession is a session in a sandbox.
type ShellSession struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandbox_id"`
	Shell     string `json:"shell"`
	// Missing says what the session cannot do because the image has no bash.
	Missing string `json:"missing,omitempty"`
	// State is "idle", "busy" or "ended".
	State     string    `json:"state" enum:"idle,busy,ended"`
	StartedAt time.Time `json:"started_at"`
	// Commands is how many commands have run, Waiting how many wait now. Left is how many ended
	// commands left background processes that hold their output open.
	Commands int64 `json:"commands"`
	Waiting  int   `json:"waiting"`
	Left     int   `json:"left"`
	// Result is how the session's shell ended.
	Result *ExecResult `json:"result,omitempty"`
}

// ShellSessionExec runs a command in a session. Cwd, Env and User must be empty because the session
// has its own.
type ShellSessionExec struct {
	Exec
	// WhenBusy is what to do while another command runs in the session: "wait" (the default) for up
	// to WaitMS (0: one minute), or "refuse".
	WhenBusy string `json:"when_busy,omitempty"`
	WaitMS   int64  `json:"wait_ms,omitempty"`
	// Renew starts an ended session again from its original request. Its earlier state is lost; the
	// result's Session is then SessionRenewed.
	Renew bool `json:"renew,omitempty"`
}

// Values of ExecResult.Session.
const (
	SessionOpen    = "open"    // the session is still open
	SessionRenewed = "renewed" // the session had ended, was restarted, and is open
	SessionEnded   = "ended"   // the session ended with this command; see Detail
)
