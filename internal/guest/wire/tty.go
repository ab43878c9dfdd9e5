package wire

// OpResize sets the size of a terminal: Resize → {}. The kernel sends SIGWINCH to the foreground
// processes of the terminal.
const OpResize Op = "resize"

// Bounds and defaults of terminals.
const (
	MaxTerm  = 64     // bytes of TTY.Term
	MaxCells = 10_000 // columns, and rows

	DefaultTerm = "xterm-256color"
	DefaultCols = 80
	DefaultRows = 24
)

// TTY starts a shell's command on a pseudo terminal, as the leader of a session whose controlling
// terminal that is. All its output is the stream Stdout, as the terminal shows it; Stderr stays
// empty. Input needs no Command.Stdin and has no end. Many streams may write input, one frame of
// KindStdin at a time. The guest answers each frame that the terminal took with a Chunk, whose
// Offset counts the bytes of that stream so far.
type TTY struct {
	// Term is the variable TERM, unless the command's own environment has one. Empty means
	// DefaultTerm.
	Term string `json:"term,omitempty"`
	// Cols and Rows are the size when the command starts. Zero means the defaults.
	Cols int `json:"cols,omitempty"`
	Rows int `json:"rows,omitempty"`
}

// Resize is the new size of a terminal. The last one wins.
type Resize struct {
	ID   string `json:"id"`
	Cols int    `json:"cols"`
	Rows int    `json:"rows"`
}

// CheckSize names the first of the two numbers that is invalid as the size of a terminal.
func CheckSize(cols, rows int) *Failure {
	switch {
	case cols < 1 || cols > MaxCells:
		return Failf(InvalidArgument, "cols", "is %d: from 1 to %d", cols, MaxCells)
	case rows < 1 || rows > MaxCells:
		return Failf(InvalidArgument, "rows", "is %d: from 1 to %d", rows, MaxCells)
	}
	return nil
}

// Check names the first field that no terminal can have, and fills in what was
// left out.
func (t *TTY) Check() *Failure {
	if t.Term == "" {
		t.Term = DefaultTerm
	}
	if t.Cols == 0 {
		t.Cols = DefaultCols
	}
	if t.Rows == 0 {
		t.Rows = DefaultRows
	}
	if !validTerm(t.Term) {
		return Failf(InvalidArgument, "term", "must be 1 to %d of a-z, A-Z, 0-9, '-', '_', '.' and '+'", MaxTerm)
	}
	return CheckSize(t.Cols, t.Rows)
}

func validTerm(term string) bool {
	if term == "" || len(term) > MaxTerm {
		return false
	}
	for _, c := range []byte(term) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' ||
			c == '+') {
			return false
		}
	}
	return true
}
