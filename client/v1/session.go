package v1

import "time"

// ShellSessionRequest starts a session: a shell that lives on between the
// commands that are run in it.
type ShellSessionRequest struct {
	// Shell is "bash" or "sh"; empty is bash where the image has it, else sh.
	Shell string `json:"shell,omitempty"`
	// Cwd, Env and User are what it begins with.
	Cwd  string            `json:"cwd,omitempty"`
	Env  map[string]string `json:"env,omitempty"`
	User string            `json:"user,omitempty"`
}

// ShellSession is a session in a sandbox.
type ShellSession struct {
	ID        string `json:"id"`
	SandboxID string `json:"sandbox_id"`
	Shell     string `json:"shell"`
	// Missing says what the session cannot do, where the image has no bash.
	Missing string `json:"missing,omitempty"`
	// State is "idle", "busy" or "ended".
	State     string    `json:"state"`
	StartedAt time.Time `json:"started_at"`
	// Commands is how many were run in it, Waiting how many wait now, Left how
	// many ended ones have left something in the background that holds their
	// output open.
	Commands int64 `json:"commands"`
	Waiting  int   `json:"waiting"`
	Left     int   `json:"left"`
	// Result is how its shell ended.
	Result *ExecResult `json:"result,omitempty"`
}

// ShellSessionExec runs a command in a session. Cwd, Env and User cannot be
// set: they are the session's.
type ShellSessionExec struct {
	Exec
	// WhenBusy is what to do while another command runs in the session: "wait"
	// (the default; WaitMS at most, 0 is a minute) or "refuse".
	WhenBusy string `json:"when_busy,omitempty"`
	WaitMS   int64  `json:"wait_ms,omitempty"`
	// Renew begins a session that has ended anew, as it was begun first. Nothing
	// of what it had is there then, and the result says so.
	Renew bool `json:"renew,omitempty"`
}

// What an ExecResult says of the session.
const (
	SessionOpen    = "open"    // it goes on
	SessionRenewed = "renewed" // it had ended, was begun anew, and goes on
	SessionEnded   = "ended"   // it ended with this command, see the detail
)
