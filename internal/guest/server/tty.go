package server

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// maxLeft bounds what is taken of a terminal whose command has ended: more than
// the kernel keeps of one. Others of the same user may have it open and write.
const maxLeft = 1 << 20

// terminal is the guest's side of a pseudo terminal.
type terminal struct {
	master *os.File
	// slave stays open: with its last descriptor gone, reading the master would
	// fail, though the command can open its terminal again.
	slave  int
	typing chan struct{} // taken by who writes to it
	mute   bool          // see findMute
}

// openTerminal makes one that belongs to a user, of the given size. The kernel
// gives it to whom it takes the opener for: afterwards the guest, which has few
// capabilities, could neither give it away nor open its other side.
func openTerminal(uid uint32, size *wire.TTY) (*terminal, error) {
	var t *terminal
	var err error
	if asErr := asUser(uid, func() { t, err = newTerminal(size) }); asErr != nil {
		err = asErr
	}
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	return t, nil
}

func newTerminal(size *wire.TTY) (*terminal, error) {
	master, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	t := &terminal{master: os.NewFile(uintptr(master), "terminal"), slave: -1, typing: make(chan struct{}, 1)}
	if err := t.prepare(master, size); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *terminal) prepare(master int, size *wire.TTY) error {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return fmt.Errorf("number: %w", err)
	}
	if err := t.resize(size.Cols, size.Rows); err != nil {
		return err
	}
	t.findMute()
	t.slave, err = unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	return err
}

// asUser runs f on a thread that the kernel takes for a user. No process of
// that user may signal or trace it: its other ids stay the guest's.
func asUser(uid uint32, f func()) error {
	done := make(chan error, 1)
	go func() { // waited for below
		// Never unlocked: the thread ends with the goroutine, so that no other
		// one ever runs as that user.
		goruntime.LockOSThread()
		// Raw: the call of package syscall would change every thread.
		const keep = ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
			done <- fmt.Errorf("become user %d: %w", uid, errno)
			return
		}
		f()
		done <- nil
	}()
	return <-done
}

func (t *terminal) close() {
	if t.slave >= 0 {
		unix.Close(t.slave)
		t.slave = -1
	}
	t.master.Close()
}

// resize sets the size; the kernel tells the foreground processes.
func (t *terminal) resize(cols, rows int) error {
	return t.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(cols), Row: uint16(rows)}) //nolint:gosec // checked
	})
}

func (t *terminal) size() (cols, rows int) {
	_ = t.control(func(fd int) error { // closed: it has none
		w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			cols, rows = int(w.Col), int(w.Row)
		}
		return err
	})
	return cols, rows
}

// control uses the master's descriptor while it is open.
func (t *terminal) control(f func(fd int) error) error {
	conn, err := t.master.SyscallConn()
	if err != nil {
		return err
	}
	if cErr := conn.Control(func(fd uintptr) { err = f(int(fd)) }); cErr != nil {
		return cErr
	}
	return err
}

// onTerminal puts a command that has not begun on a terminal of its own, in
// place of its pipes.
func (r *run) onTerminal(p *prefork.Program) *wire.Failure {
	t, err := openTerminal(p.UID, r.cmd.TTY)
	if err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return wire.Failf(wire.ResourceExhausted, "", "every terminal of the sandbox is in use: end a command that has one")
		}
		if errors.Is(err, unix.ENOENT) {
			return wire.Failf(wire.FailedPrecondition, "tty", "this sandbox has no terminals: %v", err)
		}
		if f, ok := errors.AsType[*wire.Failure](cannotStart(err)); ok {
			return f
		}
		return wire.Failf(wire.Internal, "", "%v", err)
	}
	r.sp.in.close()
	r.sp.out.close()
	r.sp.in = pipe{theirs: -1}
	r.sp.out = pipe{ours: t.master, theirs: -1}
	r.term = t
	p.Terminal = true
	return nil
}

// tty is what is told of a shell's terminal, nil if it has none.
func (sh *shell) tty() *wire.TTY {
	if sh.cmd.TTY == nil {
		return nil
	}
	t := *sh.cmd.TTY
	if cols, rows := sh.run.term.size(); cols > 0 && rows > 0 {
		t.Cols, t.Rows = cols, rows
	}
	return &t
}

// drainTerminal moves what a terminal has at this moment. How much that is only
// reading tells: a part may still be on its way through the kernel.
func (p *pump) drainTerminal(fd int) {
	for left := maxLeft; left > 0; {
		b := p.room()
		n, err := unix.Read(fd, b[:min(len(b), left)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return // EAGAIN: that was all
		}
		left -= n
		p.took(n)
	}
}

// resize is wire.OpResize.
func (s *Server) resize(z wire.Resize) (struct{}, error) {
	if f := wire.CheckSize(z.Cols, z.Rows); f != nil {
		return struct{}{}, f
	}
	sh, err := s.find(z.ID)
	if err != nil {
		return struct{}{}, err
	}
	if sh.cmd.TTY == nil {
		return struct{}{}, wire.Failf(wire.FailedPrecondition, "id", "shell %q has no terminal", z.ID)
	}
	if err := sh.run.term.resize(z.Cols, z.Rows); err != nil {
		if sh.ended() || errors.Is(err, os.ErrClosed) {
			return struct{}{}, wire.Failf(wire.FailedPrecondition, "id", "shell %q has ended", z.ID)
		}
		return struct{}{}, wire.Failf(wire.Internal, "", "resize the terminal: %v", err)
	}
	sh.run.term.announce(sh.run)
	return struct{}{}, nil
}

// typeIn gives a terminal what the stream's host types. Each frame is written
// whole before another stream's, as far as the command takes it. When the host
// has hung up, what a command does not take is dropped.
func (s *Server) typeIn(c *wire.Conn, sh *shell) error {
	t := sh.run.term
	for taken := int64(0); ; {
		kind, payload, err := c.ReadFrame()
		if err != nil {
			c.SetWriteDeadline(time.Now().Add(wire.HeaderTime)) //nolint:errcheck // closed: nobody listens
			_ = c.Reply(nil)
			return nil
		}
		switch {
		case kind == wire.KindEOF:
			return wire.Failf(wire.InvalidArgument, "", "the input of a terminal has no end: send the character that stands for it, 0x04")
		case kind != wire.KindStdin:
			return wire.Failf(wire.InvalidArgument, "", "a frame of kind %q is no input", byte(kind))
		}
		if err := t.write(sh, t.strike(sh.run, payload), c.PeerGone); err != nil {
			return err
		}
		taken += int64(len(payload))
		if err := c.WriteJSON(wire.KindChunk, wire.Chunk{Offset: taken}); err != nil {
			return nil //nolint:nilerr // the host has gone
		}
	}
}

// write waits for its turn and gives data to the terminal. It fails if the shell
// ends before all is taken, or the host has gone.
func (t *terminal) write(sh *shell, data []byte, gone func() bool) error {
	if len(data) == 0 {
		return nil // keys that were struck are taken, also those that ended the shell
	}
	over := wire.Failf(wire.FailedPrecondition, "id", "shell %q has ended", sh.cmd.ID)
	tick := time.NewTicker(goneCheck)
	defer tick.Stop()
	for mine := false; !mine; {
		select {
		case t.typing <- struct{}{}:
			mine = true
		case <-sh.done:
			return over
		case <-tick.C:
			if gone() {
				return errHostGone
			}
		}
	}
	defer func() { <-t.typing }()
	for len(data) > 0 {
		t.master.SetWriteDeadline(time.Now().Add(goneCheck)) //nolint:errcheck // closed: the write says so
		n, err := t.master.Write(data)
		data = data[n:]
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if gone() {
				return errHostGone
			}
		case err != nil:
			return over
		}
	}
	return nil
}
