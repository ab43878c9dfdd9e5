package server

import (
	"bytes"
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

// maxDrain bounds what is read from a terminal after its command has ended: more than the kernel
// buffers. Other processes of the same user may still have it open and write.
const maxDrain = 1 << 20

// terminal is the guest's side of a pseudo-terminal.
type terminal struct {
	master *os.File
	// slave stays open. Without an open descriptor, reading the master would fail although the
	// command can reopen its terminal.
	slave     int
	writeTurn chan struct{} // held by the goroutine that writes to the master
	mute      bool          // see detectMute
}

// openTerminal returns a terminal of the given size that belongs to a user. The kernel assigns it
// to the opening user. The guest has few capabilities: afterwards it could neither change the owner
// nor open the slave.
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
	t := &terminal{master: os.NewFile(uintptr(master), "terminal"), slave: -1, writeTurn: make(chan struct{}, 1)}
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
	t.detectMute()
	t.slave, err = unix.Open("/dev/pts/"+strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	return err
}

// asUser runs f on a thread with the effective uid of a user. The other uids stay the guest's, so
// no process of that user may signal or trace the thread.
func asUser(uid uint32, f func()) error {
	done := make(chan error, 1)
	go func() { // waited for below
		// Never unlocked: the thread ends with the goroutine, so no other goroutine runs as that
		// user.
		goruntime.LockOSThread()
		// A raw call: the one of package syscall would change every thread.
		const keep = ^uintptr(0)
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
			done <- fmt.Errorf("switch to user %d: %w", uid, errno)
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

// resize sets the size. The kernel signals the foreground processes.
func (t *terminal) resize(cols, rows int) error {
	return t.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(cols), Row: uint16(rows)})
	})
}

func (t *terminal) size() (cols, rows int) {
	_ = t.control(func(fd int) error { // a closed terminal has no size
		w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			cols, rows = int(w.Col), int(w.Row)
		}
		return err
	})
	return cols, rows
}

// control calls f with the master's descriptor while it is open.
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

// attachTerminal gives a command that has not started a terminal instead of its pipes.
func (r *commandRun) attachTerminal(p *prefork.Program) *wire.Failure {
	t, err := openTerminal(p.UID, r.cmd.TTY)
	if err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return wire.Failf(wire.ResourceExhausted, "",
				"all terminals of the sandbox are in use: end a command with a terminal")
		}
		if errors.Is(err, unix.ENOENT) {
			return wire.Failf(wire.FailedPrecondition, "tty", "this sandbox has no terminals: %v", err)
		}
		if f, ok := errors.AsType[*wire.Failure](cannotStart(err)); ok {
			return f
		}
		return wire.Failf(wire.Internal, "", "%v", err)
	}
	r.spare.in.close()
	r.spare.out.close()
	r.spare.in = pipe{theirs: -1}
	r.spare.out = pipe{ours: t.master, theirs: -1}
	r.term = t
	p.Terminal = true
	return nil
}

// tty describes a shell's terminal. It returns nil if there is none.
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

// drainTerminal moves the bytes that a terminal holds now. The amount is not known in advance: some
// bytes may still be on their way through the kernel.
func (p *pump) drainTerminal(fd int) {
	for left := maxDrain; left > 0; {
		b := p.buffer()
		n, err := unix.Read(fd, b[:min(len(b), left)])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			return // EAGAIN: nothing left
		}
		left -= n
		p.deliver(n)
	}
}

// resizeShell handles wire.OpResize.
func (s *Server) resizeShell(z wire.Resize) (struct{}, error) {
	if f := wire.CheckSize(z.Cols, z.Rows); f != nil {
		return struct{}{}, f
	}
	sh, err := s.findShell(z.ID)
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
	sh.run.term.signalResize(sh.run)
	return struct{}{}, nil
}

// serveTerminalInput writes the stream's input to a terminal. Each frame is written completely
// before another stream's, as far as the command reads it. If the host disconnects, unread input is
// dropped.
func (s *Server) serveTerminalInput(c *wire.Conn, sh *shell) error {
	t := sh.run.term
	for taken := int64(0); ; {
		kind, payload, err := c.ReadFrame()
		if err != nil {
			c.SetWriteDeadline(time.Now().Add(wire.HeaderTime)) //nolint:errcheck // closed: nobody listens
			_ = c.Reply(nil)
			return nil //nolint:nilerr // the host ended its input
		}
		switch {
		case kind == wire.KindEOF:
			return wire.Failf(wire.InvalidArgument, "", "the input of a terminal cannot be closed: send Ctrl-D (0x04) instead")
		case kind != wire.KindStdin:
			return wire.Failf(wire.InvalidArgument, "", "unexpected frame of kind %q in input", byte(kind))
		}
		if err := t.write(sh, t.signalKeys(sh.run, payload), c.PeerGone); err != nil {
			return err
		}
		taken += int64(len(payload))
		if err := c.WriteJSON(wire.KindChunk, wire.Chunk{Offset: taken}); err != nil {
			return nil //nolint:nilerr // the host has gone
		}
	}
}

// write waits for its turn and writes data to the terminal. It fails if the shell ends before all
// is written, or if the host disconnects.
func (t *terminal) write(sh *shell, data []byte, gone func() bool) error {
	if len(data) == 0 {
		return nil // keys that were turned into signals count as read, even if they ended the shell
	}
	over := wire.Failf(wire.FailedPrecondition, "id", "shell %q has ended", sh.cmd.ID)
	tick := time.NewTicker(peerCheckInterval)
	defer tick.Stop()
	for mine := false; !mine; {
		select {
		case t.writeTurn <- struct{}{}:
			mine = true
		case <-sh.done:
			return over
		case <-tick.C:
			if gone() {
				return errHostGone
			}
		}
	}
	defer func() { <-t.writeTurn }()
	for len(data) > 0 {
		t.master.SetWriteDeadline(time.Now().Add(peerCheckInterval)) //nolint:errcheck // closed: the write says so
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

// gVisor's terminals send no signals for keys or a new size, and do not report their foreground
// process group. The guest then sends these signals to every process of the command, including
// background ones. A terminal that cannot be interrupted is hardly usable.
//
// detectMute detects whether the kernel sends these signals.

// detectMute finds out what the kernel leaves to us.
func (t *terminal) detectMute() {
	err := t.control(func(fd int) error {
		_, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	t.mute = err != nil
}

// signalResize signals a new size if the kernel does not.
func (t *terminal) signalResize(r *commandRun) {
	if t.mute {
		_ = r.signal(int(unix.SIGWINCH), true) // it may just have ended
	}
}

// signalKeys sends the signals for special keys if the kernel does not, and returns the other keys.
func (t *terminal) signalKeys(r *commandRun, keys []byte) []byte {
	if !t.mute {
		return keys
	}
	var mode *unix.Termios
	if err := t.control(func(fd int) (err error) {
		mode, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	}); err != nil || mode.Lflag&unix.ISIG == 0 {
		return keys
	}
	for _, s := range []struct {
		key    int
		signal unix.Signal
	}{{unix.VINTR, unix.SIGINT}, {unix.VQUIT, unix.SIGQUIT}, {unix.VSUSP, unix.SIGTSTP}} {
		key := mode.Cc[s.key]
		if key == 0 || bytes.IndexByte(keys, key) < 0 { // 0: disabled
			continue
		}
		_ = r.signal(int(s.signal), true) // it may just have ended
		keys = bytes.ReplaceAll(keys, []byte{key}, nil)
	}
	return keys
}
