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

// SessionDir is where sessions have their folders. Commands can enter it and
// not list it: who does not know a name cannot open what is there. All of it
// belongs to the guest; commands may read or write what it lets them, and can
// neither remove nor replace a name.
const SessionDir = "/run/sh"

// folder is a folder with a name that nobody guesses.
type folder string

func newFolder(parent string) (folder, error) {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck // it never fails
	f := folder(filepath.Join(parent, hex.EncodeToString(b[:])))
	if err := errors.Join(os.MkdirAll(parent, 0o711), os.Mkdir(string(f), 0o711)); err != nil {
		return "", fmt.Errorf("make a session's folder: %w", err)
	}
	return f, nil
}

func (f folder) path(name string) string { return string(f) + "/" + name }

func (f folder) remove() error { return os.RemoveAll(string(f)) }

// Modes of the files: the guest has no power over modes, so it keeps both
// directions for itself.
const (
	theyRead  = 0o644
	theyWrite = 0o622
)

// fifo makes a FIFO and opens it for both directions: that does not wait for
// the other side, and while it is open nobody sees an end.
func (f folder) fifo(name string, mode uint32) (*os.File, error) {
	path := f.path(name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("make a pipe of a session: %w", err)
	}
	if err := os.Chmod(path, os.FileMode(mode)); err != nil { // Mkfifo heeds the umask
		return nil, fmt.Errorf("make a pipe of a session: %w", err)
	}
	return f.open(name, unix.O_RDWR)
}

func (f folder) open(name string, flags int) (*os.File, error) {
	fd, err := unix.Open(f.path(name), flags|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("open a pipe of a session: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Names in the folders.
const (
	nameControl = "control" // of a session: lines for its shell
	nameBegin   = "begin"   // of a command, and the rest too
	nameCommand = "command"
	nameIn      = "in"
	nameOut     = "out"
	nameErr     = "err"
	nameStatus  = "status"
)

// lines are what a shell reads to run a command: one that begins it, and one
// that says how it ended. They are in one write, so that the shell has both of
// them before it begins: whatever the command does to the shell's descriptors,
// the second line is carried out, and it opens the control again by name. Where
// the shell gives a command up, by an error or an interrupt, it goes on with the
// next line.
//
// `command` keeps functions and aliases out of it, and there are no reserved
// words: after some errors bash does not know them, see parserLine. A shell that
// cannot open its pipes ends: nobody could talk to it any more.
func lines(control string, f folder, stdin bool) string {
	in := "/dev/null"
	if stdin {
		in = f.path(nameIn)
	}
	status := f.path(nameStatus)
	say := `\command printf 'e%d\n' "$?" >` + status // twice: an interrupt may have hit the first
	return `\command . ` + f.path(nameBegin) + ` <` + in + ` >` + f.path(nameOut) + ` 2>` + f.path(nameErr) + "\n" +
		say + ` || ` + say + ` || ! \command test -p ` + status + ` || \command exit 70; ` + again(control)
}

// beginning is a file that says that the command has its streams, and then
// reads it.
func beginning(f folder) string {
	return `\command printf 'b\n' >` + f.path(nameStatus) + ` && \command . ` + f.path(nameCommand) + "\n"
}

// parserLine finds out what bash's parser is in: after a quote that is open
// where a pattern of a case could be, say, it takes `{` for the name of a
// program. Then what comes is "s1" alone, and else "s0" before it. Nothing of it
// fails, which would end a shell under set -e.
func parserLine(f folder) string {
	status := f.path(nameStatus)
	return `{ \command printf 's0\n' >` + status + ` || :; } || :; \command printf 's1\n' >` + status + "\n"
}

// report is the second line once more, for a shell that forgets what it has
// read when it is interrupted. It does no harm where there is no more to say.
func report(f folder) string {
	return `\command printf 'e%d\n' "$?" 2>/dev/null >` + f.path(nameStatus) + "\n"
}

// sign has a shell say that it has read so far.
func sign(f folder, n int) (line, event string) {
	event = "s" + strconv.Itoa(n)
	return `\command printf '` + event + `\n' 2>/dev/null >` + f.path(nameStatus) + "\n", event
}

func again(control string) string { return `\command exec <` + control + " >/dev/null 2>&1\n" }

// beginnings are what shells are told before their first command. An
// interactive shell is what comes back from errors and interrupts; what is
// only for people at a terminal is taken away again.
var beginnings = map[string]string{
	"bash": "set +o history +o histexpand; unset HISTFILE; shopt -s execfail",
	"sh":   ":",
}

// shells are their command lines.
var shells = map[string][]string{
	"bash": {"bash", "--norc", "--noprofile", "--noediting", "-i"},
	"sh":   {"sh", "-i"},
}

// checkSession names the first field of a session that cannot be started.
func checkSession(st *wire.SessionStart) *wire.Failure {
	switch {
	case !validID(st.ID):
		return wire.Failf(wire.InvalidArgument, "id", "must be 1 to %d of a-z, A-Z, 0-9, '-', '_' and '.'", maxID)
	case shells[st.Shell] == nil:
		return wire.Failf(wire.InvalidArgument, "shell", "must be bash or sh")
	}
	return nil
}

// checkSessionExec is that for a command.
func checkSessionExec(x *wire.SessionExec) *wire.Failure {
	switch {
	case !validID(x.ID):
		return wire.Failf(wire.InvalidArgument, "id", "must be 1 to %d of a-z, A-Z, 0-9, '-', '_' and '.'", maxID)
	case x.Text == "":
		return wire.Failf(wire.InvalidArgument, "text", "is empty")
	case len(x.Text) > wire.MaxArgBytes:
		return wire.Failf(wire.InvalidArgument, "text", "has %d bytes, at most %d are allowed", len(x.Text), wire.MaxArgBytes)
	case strings.IndexByte(x.Text, 0) >= 0:
		return wire.Failf(wire.InvalidArgument, "text", "holds a NUL byte")
	case x.Timeout < 0:
		return wire.Failf(wire.InvalidArgument, "timeout_ns", "is negative")
	case x.OutputLimit < 0:
		return wire.Failf(wire.InvalidArgument, "output_limit", "is negative")
	case x.Wait < 0 || x.Wait > wire.MaxSessionWait:
		return wire.Failf(wire.InvalidArgument, "wait_ns", "must be from 0 to %d", wire.MaxSessionWait)
	}
	return nil
}

// pipes are what a command in a session is connected to.
type pipes struct {
	folder           folder
	in               *os.File // nil: it has no input
	out, err, status *os.File
}

// newPipes makes a command's folder with its text and pipes.
func newPipes(parent folder, text string, stdin bool) (_ *pipes, err error) {
	f, err := newFolder(string(parent))
	if err != nil {
		return nil, cannotStart(err)
	}
	p := &pipes{folder: f}
	defer func() {
		if err != nil {
			p.close()
			err = errors.Join(cannotStart(err), f.remove())
		}
	}()
	for name, content := range map[string]string{nameBegin: beginning(f), nameCommand: text + "\n"} {
		if err = os.WriteFile(f.path(name), []byte(content), theyRead); err != nil {
			return nil, fmt.Errorf("write the command: %w", err)
		}
	}
	if p.out, err = f.fifo(nameOut, theyWrite); err != nil {
		return nil, err
	}
	if p.err, err = f.fifo(nameErr, theyWrite); err != nil {
		return nil, err
	}
	if p.status, err = f.fifo(nameStatus, theyWrite); err != nil {
		return nil, err
	}
	if stdin {
		if p.in, err = f.fifo(nameIn, theyRead); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// opened is called when the shell has its ends: from now on the guest has one
// direction only, so that either side sees when the other has gone.
func (p *pipes) opened() error {
	turn := func(file **os.File, name string, flags int) error {
		if *file == nil {
			return nil
		}
		one, err := p.folder.open(name, flags)
		if err != nil {
			return err
		}
		(*file).Close()
		*file = one
		return nil
	}
	return errors.Join(turn(&p.in, nameIn, unix.O_WRONLY), turn(&p.out, nameOut, unix.O_RDONLY), turn(&p.err, nameErr, unix.O_RDONLY))
}

func (p *pipes) close() {
	for _, file := range []*os.File{p.in, p.out, p.err, p.status} {
		if file != nil {
			file.Close()
		}
	}
}
