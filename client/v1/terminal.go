package v1

// TerminalProtocol is the WebSocket subprotocol of GET /v1/sandboxes/{id}/pty.
//
// Binary messages are what is typed, one way, and what the terminal puts out,
// the other way. Text messages are a TerminalMessage each.
const TerminalProtocol = "orchestrator.pty.v1"

// Bounds of what clients send. A connection that goes over one is closed.
const (
	// TerminalInput is how long a binary message may be, in bytes.
	TerminalInput = 64 << 10
	// TerminalControl is how long a text message may be, in bytes.
	TerminalControl = 4 << 10
	// TerminalWindow is how many bytes a client may have sent that were not told
	// as taken.
	TerminalWindow = 256 << 10
)

// TerminalRequest opens a terminal. The zero value runs bash, or sh where the
// image has none.
type TerminalRequest struct {
	// Argv or Command as in Exec; neither is an interactive shell.
	Argv    []string          `json:"argv,omitempty"`
	Command string            `json:"command,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	// TimeoutMS ends the command after this time; zero never does.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Term is the variable TERM; empty is "xterm-256color".
	Term string `json:"term,omitempty"`
	// Cols and Rows are its first size, 80 times 24 unless given.
	Cols int `json:"cols,omitempty"`
	Rows int `json:"rows,omitempty"`
	// SpoolBytes is how much of the output is kept to scroll back in.
	SpoolBytes int64 `json:"spool_bytes,omitempty"`
}

// TerminalMessage is a text message. Clients send "resize" (Cols, Rows),
// "signal" (Signal, 1 to 64, to every process of the command) and "detach".
// Servers send
//
//	started  first: Shell, and the Offset of the output that follows
//	taken    Bytes of the client's input were given to the terminal so far; with
//	         Settled, right before the end, what came after them was not
//	gap      the output from From to before To is no longer kept
//	exit     the command has ended, as Result says; last
//	error    Problem; last
type TerminalMessage struct {
	Type   string `json:"type"`
	Shell  string `json:"shell,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Cols   int    `json:"cols,omitempty"`
	Rows   int    `json:"rows,omitempty"`
	Signal int    `json:"signal,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	// Settled: see taken.
	Settled bool        `json:"settled,omitempty"`
	From    int64       `json:"from,omitempty"`
	To      int64       `json:"to,omitempty"`
	Result  *ExecResult `json:"result,omitempty"`
	// Problem is why the connection ends.
	Problem *Problem `json:"problem,omitempty"`
}
