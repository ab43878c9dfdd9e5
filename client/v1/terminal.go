package v1

// TerminalProtocol is the WebSocket subprotocol of GET /v1/sandboxes/{id}/pty.
//
// Binary messages carry input from the client and output from the server. Each text message is a
// TerminalMessage.
const TerminalProtocol = "orchestrator.pty.v1"

// Limits for clients. The server closes a connection that exceeds one.
const (
	// TerminalInput is the maximum length of a binary message, in bytes.
	TerminalInput = 64 << 10
	// TerminalControl is the maximum length of a text message, in bytes.
	TerminalControl = 4 << 10
	// TerminalWindow is the maximum number of bytes that a client may have sent without
	// acknowledgement.
	TerminalWindow = 256 << 10
)

// TerminalRequest opens a terminal. The zero value runs bash, or sh if the image has no bash.
type TerminalRequest struct {
	// Argv and Command are as in Exec. Without either, an interactive shell runs.
	Argv    []string          `json:"argv,omitempty"`
	Command string            `json:"command,omitempty"`
	Cwd     string            `json:"cwd,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	// TimeoutMS kills the command after this time; zero means no limit.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// Term is the variable TERM (default: "xterm-256color").
	Term string `json:"term,omitempty"`
	// Cols and Rows are the initial size (default: 80 by 24).
	Cols int `json:"cols,omitempty"`
	Rows int `json:"rows,omitempty"`
	// SpoolBytes is how much output is kept for later readers.
	SpoolBytes int64 `json:"spool_bytes,omitempty"`
}

// TerminalMessage is a text message. Clients send "resize" (Cols, Rows), "signal" (Signal, 1 to 64,
// to every process of the command) and "detach". Servers send
//
//	started  first: Shell, and the Offset of the output that follows
//	taken    total Bytes of the client's input given to the terminal; with
//	         Settled, right before the end, later input was not taken
//	gap      output from offset From up to but excluding To is no longer kept
//	exit     the command has ended with Result; last
//	error    Problem; last
type TerminalMessage struct {
	Type   string `json:"type"`
	Shell  string `json:"shell,omitempty"`
	Offset int64  `json:"offset,omitempty"`
	Cols   int    `json:"cols,omitempty"`
	Rows   int    `json:"rows,omitempty"`
	Signal int    `json:"signal,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	// Settled belongs to "taken".
	Settled bool        `json:"settled,omitempty"`
	From    int64       `json:"from,omitempty"`
	To      int64       `json:"to,omitempty"`
	Result  *ExecResult `json:"result,omitempty"`
	// Problem is why the connection ends.
	Problem *Problem `json:"problem,omitempty"`
}
