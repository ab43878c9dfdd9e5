package server

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// SessionDir is the parent of the session directories. Commands can enter it but not list it, so
// that an unknown name is out of reach. Everything in it belongs to the guest. Commands can neither
// remove nor replace a file there, and read or write it only as its mode allows.
const SessionDir = "/run/sh"

// fifoDir is a directory with an unguessable name.
type fifoDir string

func newFIFODir(parent string) (fifoDir, error) {
	var b [8]byte
	rand.Read(b[:])
	f := fifoDir(filepath.Join(parent, hex.EncodeToString(b[:])))
	if err := errors.Join(os.MkdirAll(parent, 0o711), os.Mkdir(string(f), 0o711)); err != nil {
		return "", fmt.Errorf("make a session's directory: %w", err)
	}
	return f, nil
}

func (f fifoDir) path(name string) string { return string(f) + "/" + name }

func (f fifoDir) remove() error { return os.RemoveAll(string(f)) }

// Modes of the files. The guest has no capability to override modes, so it always keeps both
// directions for itself.
const (
	shellReads  = 0o644
	shellWrites = 0o622
)

// fifo makes a FIFO and opens it for reading and writing: opening does not wait for a peer, and no
// reader sees an end of file while it is open.
func (f fifoDir) fifo(name string, mode uint32) (*os.File, error) {
	path := f.path(name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make a pipe of a session: %w", err)
	}
	if err := os.Chmod(path, os.FileMode(mode)); err != nil { // Mkfifo applies the umask
		return nil, fmt.Errorf("make a pipe of a session: %w", err)
	}
	return f.open(name, unix.O_RDWR)
}

func (f fifoDir) open(name string, flags int) (*os.File, error) {
	fd, err := unix.Open(f.path(name), flags|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open a pipe of a session: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Names in the directories.
const (
	nameControl = "control" // of a session: lines for its shell
	nameBegin   = "begin"   // of a command, as are the following
	nameCommand = "command"
	nameIn      = "in"
	nameOut     = "out"
	nameErr     = "err"
	nameStatus  = "status"
)

// commandLines returns the two lines that make a shell run a command: the first runs it, the second
// reports its exit code. They are sent in one write, so that the shell has both before it starts.
// Even if the command changes the shell's descriptors, the shell then runs the second line, which
// reopens the control FIFO by name. After an error or an interrupt, the shell continues with the
// next line.
//
// The builtin `command` bypasses functions and aliases. Reserved words are avoided because bash
// does not recognise them after some errors, see parserProbe. A shell that cannot open its FIFOs
// exits: nothing could reach it any more.
func commandLines(control string, f fifoDir, stdin bool) string {
	in := "/dev/null"
	if stdin {
		in = f.path(nameIn)
	}
	status := f.path(nameStatus)
	say := `\command printf 'e%d\n' "$?" >` + status // twice: an interrupt may have hit the first attempt
	return `\command . ` + f.path(nameBegin) + ` <` + in + ` >` + f.path(nameOut) + ` 2>` + f.path(nameErr) + "\n" +
		say + ` || ` + say + ` || ! \command test -p ` + status + ` || \command exit 70; ` + reopenLine(control)
}

// beginScript is the file that reports that the command has its streams, and then runs it.
func beginScript(f fifoDir) string {
	return `\command printf 'b\n' >` + f.path(nameStatus) + ` && \command . ` + f.path(nameCommand) + "\n"
}

// parserProbe returns a line that detects whether bash's parser is stuck in a context where `{` is
// taken for a program's name, for example after an unterminated quote in a case pattern. If so,
// only "s1" arrives; otherwise "s0" comes first. The line never fails, because a failure would end
// a shell under set -e.
func parserProbe(f fifoDir) string {
	status := f.path(nameStatus)
	return `{ \command printf 's0\n' >` + status + ` || :; } || :; \command printf 's1\n' >` + status + "\n"
}

// statusLine reports the exit code again, for a shell that drops its input when it is interrupted.
// It is harmless if nothing is left to report.
func statusLine(f fifoDir) string {
	return `\command printf 'e%d\n' "$?" 2>/dev/null >` + f.path(nameStatus) + "\n"
}

// syncLine returns a line that makes the shell report that it has read so far, and the event that
// it reports.
func syncLine(f fifoDir, n int) (line, event string) {
	event = "s" + strconv.Itoa(n)
	return `\command printf '` + event + `\n' 2>/dev/null >` + f.path(nameStatus) + "\n", event
}

func reopenLine(control string) string { return `\command exec <` + control + " >/dev/null 2>&1\n" }

// preambles are run before a shell's first command. Only interactive shells survive errors and
// interrupts, so the preamble turns off what is only useful at a terminal.
var preambles = map[string]string{
	"bash": "set +o history +o histexpand; unset HISTFILE; shopt -s execfail",
	"sh":   ":",
}

// shellArgv maps shells to their command lines.
var shellArgv = map[string][]string{
	"bash": {"bash", "--norc", "--noprofile", "--noediting", "-i"},
	"sh":   {"sh", "-i"},
}

// checkSession returns a Failure for the first invalid field, or nil.
func checkSession(st *wire.SessionStart) *wire.Failure {
	switch {
	case !validID(st.ID):
		return wire.Failf(wire.InvalidArgument, "id", "must be 1 to %d of a-z, A-Z, 0-9, '-', '_' and '.'", maxID)
	case shellArgv[st.Shell] == nil:
		return wire.Failf(wire.InvalidArgument, "shell", "must be bash or sh")
	}
	return nil
}

// checkSessionExec returns a Failure for the first invalid field, or nil.
func checkSessionExec(x *wire.SessionExec) *wire.Failure {
	switch {
	case !validID(x.ID):
		return wire.Failf(wire.InvalidArgument, "id", "must be 1 to %d of a-z, A-Z, 0-9, '-', '_' and '.'", maxID)
	case x.Text == "":
		return wire.Failf(wire.InvalidArgument, "text", "is empty")
	case len(x.Text) > wire.MaxArgBytes:
		return wire.Failf(wire.InvalidArgument, "text", "has %d bytes: the maximum is %d", len(x.Text), wire.MaxArgBytes)
	case strings.IndexByte(x.Text, 0) >= 0:
		return wire.Failf(wire.InvalidArgument, "text", "contains a NUL byte")
	case x.Timeout < 0:
		return wire.Failf(wire.InvalidArgument, "timeout_ns", "is negative")
	case x.OutputLimit < 0:
		return wire.Failf(wire.InvalidArgument, "output_limit", "is negative")
	case x.Wait < 0 || x.Wait > wire.MaxSessionWait:
		return wire.Failf(wire.InvalidArgument, "wait_ns", "must be from 0 to %d", wire.MaxSessionWait)
	}
	return nil
}

// pipes are the FIFOs of a command in a session.
type pipes struct {
	dir              fifoDir
	in               *os.File // nil: the command has no input
	out, err, status *os.File
}

// newPipes makes a command's directory with its text and FIFOs.
func newPipes(parent fifoDir, text string, stdin bool) (_ *pipes, err error) {
	f, err := newFIFODir(string(parent))
	if err != nil {
		return nil, cannotStart(err)
	}
	p := &pipes{dir: f}
	defer func() {
		if err != nil {
			p.close()
			err = errors.Join(cannotStart(err), f.remove())
		}
	}()
	for name, content := range map[string]string{nameBegin: beginScript(f), nameCommand: text + "\n"} {
		if err = os.WriteFile(f.path(name), []byte(content), shellReads); err != nil {
			return nil, fmt.Errorf("write the command: %w", err)
		}
	}
	if p.out, err = f.fifo(nameOut, shellWrites); err != nil {
		return nil, err
	}
	if p.err, err = f.fifo(nameErr, shellWrites); err != nil {
		return nil, err
	}
	if p.status, err = f.fifo(nameStatus, shellWrites); err != nil {
		return nil, err
	}
	if stdin {
		if p.in, err = f.fifo(nameIn, shellReads); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// keepOwnEnds is called once the shell has opened its ends. The guest then keeps only one direction
// of each FIFO, so that both sides notice when the other closes.
func (p *pipes) keepOwnEnds() error {
	turn := func(file **os.File, name string, flags int) error {
		if *file == nil {
			return nil
		}
		one, err := p.dir.open(name, flags)
		if err != nil {
			return err
		}
		(*file).Close()
		*file = one
		return nil
	}
	return errors.Join(turn(&p.in, nameIn, unix.O_WRONLY), turn(&p.out, nameOut, unix.O_RDONLY),
		turn(&p.err, nameErr, unix.O_RDONLY))
}

func (p *pipes) close() {
	for _, file := range []*os.File{p.in, p.out, p.err, p.status} {
		if file != nil {
			file.Close()
		}
	}
}
