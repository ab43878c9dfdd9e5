package guestconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Listener is the host's end of the local transport for one sandbox. It is safe for concurrent use.
type Listener struct {
	ln   *net.UnixListener
	done chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	check    func(pid int) error  // checks whether a process may use the listener; nil: do not open streams yet
	greeting map[*parked]struct{} // accepted, greeting not received yet
	free     []*parked            // greeted, not taken
	wake     chan struct{}        // closed and replaced when free may have a stream
	refused  error                // why the last peer was refused, for the error of Open
	closed   bool
}

// parked is a stream that the guest opened and the host has not taken.
type parked struct {
	conn *net.UnixConn
	pid  int
}

// Listen listens at path. It atomically replaces an existing socket, so that a guest that redials
// always finds one. Any other file there is an error. Only the host may be able to write to the
// directory. No stream is used before [Listener.Expect].
func Listen(path string) (*Listener, error) { return ListenFor(path, 0) }

// ListenFor is Listen for a guest whose user 0 has the id owner on this host.
func ListenFor(path string, owner int) (*Listener, error) {
	dir, name, err := openDir(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	ln, err := bindSocket(dir, name, owner)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	l := &Listener{
		ln:       ln,
		done:     make(chan struct{}),
		greeting: make(map[*parked]struct{}),
		wake:     make(chan struct{}),
	}
	l.wg.Go(l.accept)
	return l, nil
}

// bindSocket binds a temporary name and renames it, so that there is always a socket.
func bindSocket(dir *os.File, name string, owner int) (*net.UnixListener, error) {
	fd := int(dir.Fd())
	var st unix.Stat_t
	err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err == nil && st.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return nil, errors.New("a file that is not a socket exists there")
	case err != nil && !errors.Is(err, unix.ENOENT):
		return nil, err
	}
	fresh := name + ".new"
	if err := unix.Unlinkat(fd, fresh, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("remove stale %s: %w", fresh, err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: addressIn(dir, fresh), Net: "unix"})
	if err != nil {
		return nil, err
	}
	// When this closes, the next host process may already listen at the same path: do not remove
	// its socket.
	ln.SetUnlinkOnClose(false)
	if err = unix.Fchmodat(fd, fresh, 0o600, 0); err == nil && owner != 0 {
		err = unix.Fchownat(fd, fresh, owner, owner, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err == nil {
		err = unix.Renameat(fd, fresh, fd, name)
	}
	if err != nil {
		return nil, errors.Join(err, ln.Close(), unix.Unlinkat(fd, fresh, 0))
	}
	return ln, nil
}

// Expect accepts only streams of one process: the sandbox's init, by its pid in the host's pid
// namespace. It closes streams parked by other processes. With pid 0 no process is expected.
func (l *Listener) Expect(pid int) {
	if pid == 0 {
		l.ExpectWhere(nil)
		return
	}
	l.ExpectWhere(func(peer int) error {
		if peer != pid {
			return fmt.Errorf("peer is process %d, expected %d", peer, pid)
		}
		return nil
	})
}

// ExpectWhere is like Expect, for a sandbox whose streams are opened by helper processes of the
// host, such as gVisor's file proxy. check returns nil for processes that belong to this sandbox.
// It must be fast. It is called when a stream arrives and after its greeting. With nil no process
// is expected.
func (l *Listener) ExpectWhere(check func(pid int) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.check = check
	kept := l.free[:0]
	for _, p := range l.free {
		if err := l.checkPeer(p.pid); err != nil {
			l.refuse(p, err)
			continue
		}
		kept = append(kept, p)
	}
	clear(l.free[len(kept):])
	l.free = kept
	l.wakeAll()
}

// checkPeer returns why a process may not use the listener. It returns nil if it may, or if Expect
// was not called yet. The caller holds mu.
func (l *Listener) checkPeer(pid int) error {
	if l.check == nil {
		return nil
	}
	return l.check(pid)
}

// Open takes a stream to the guest, and waits for one until ctx ends. The guest was alive when it
// parked the stream; only its answer shows that it still is. The caller closes the stream; closing
// the listener does not. Errors: [ErrClosed], or the cause of ctx.
func (l *Listener) Open(ctx context.Context) (net.Conn, error) {
	for {
		if ctx.Err() != nil {
			return nil, l.openError(ctx)
		}
		p, wake, err := l.take()
		if err != nil {
			return nil, err
		}
		if p != nil {
			if err := p.start(); err == nil {
				return p.conn, nil
			}
			_ = p.conn.Close() // died while parked: try the next one
			continue
		}
		select {
		case <-wake:
		case <-l.done:
		case <-ctx.Done():
		}
	}
}

// Close stops listening and closes parked streams. The socket file stays for the next host process.
// Open streams stay open. It is idempotent.
func (l *Listener) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	if first {
		close(l.done)
	}
	for p := range l.greeting {
		_ = p.conn.Close()
	}
	for _, p := range l.free {
		_ = p.conn.Close()
	}
	l.free = nil
	l.mu.Unlock()
	var err error
	if first {
		err = l.ln.Close()
	}
	l.wg.Wait()
	return err
}

func (l *Listener) accept() {
	pause := time.Duration(0)
	for {
		conn, err := l.ln.AcceptUnix()
		if err == nil {
			pause = 0
			l.admit(conn)
			continue
		}
		// Out of descriptors or memory: both are temporary, so retry unless closed.
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		select {
		case <-l.done:
			return
		case <-time.After(pause):
		}
	}
}

// admit parks a new connection, or closes it. It does not wait for the peer.
func (l *Listener) admit(conn *net.UnixConn) {
	pid, err := peerPid(conn)
	p := &parked{conn: conn, pid: pid}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		_ = conn.Close()
	case err != nil:
		l.refuse(p, fmt.Errorf("peer's credentials: %w", err))
	case l.checkPeer(pid) != nil:
		l.refuse(p, l.checkPeer(pid))
	case !l.room():
		l.refuse(p, fmt.Errorf("the limit of %d parked streams is reached", MaxParked))
	default:
		l.greeting[p] = struct{}{}
		l.wg.Go(func() { l.greet(p) })
	}
}

// room reports whether another stream may be parked. At the limit it first drops streams whose peer
// has hung up. This check does not block, so the caller may hold mu.
func (l *Listener) room() bool {
	if len(l.greeting)+len(l.free) < MaxParked {
		return true
	}
	kept := l.free[:0]
	for _, p := range l.free {
		if p.alive() != nil {
			_ = p.conn.Close()
			continue
		}
		kept = append(kept, p)
	}
	clear(l.free[len(kept):])
	l.free = kept
	return len(l.greeting)+len(l.free) < MaxParked
}

// greet reads the greeting and parks the stream.
func (l *Listener) greet(p *parked) {
	b := make([]byte, helloSize)
	err := p.conn.SetReadDeadline(time.Now().Add(HelloTimeout))
	if err == nil {
		_, err = io.ReadFull(p.conn, b)
	}
	if err == nil {
		err = errors.Join(checkHello(b), p.conn.SetReadDeadline(time.Time{}))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.greeting, p)
	switch {
	case l.closed:
		_ = p.conn.Close()
	case err != nil:
		l.refuse(p, fmt.Errorf("process %d: %w", p.pid, err))
	case l.checkPeer(p.pid) != nil:
		l.refuse(p, l.checkPeer(p.pid))
	default:
		l.free = append(l.free, p)
		l.wakeAll()
	}
}

// take removes the most recently parked stream, which is the most likely to be alive. Without one,
// it returns a channel that is closed when the caller should try again.
func (l *Listener) take() (*parked, <-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, fmt.Errorf("open a stream to the sandbox: %w", ErrClosed)
	}
	if l.check == nil || len(l.free) == 0 {
		return nil, l.wake, nil
	}
	last := len(l.free) - 1
	p := l.free[last]
	l.free[last] = nil
	l.free = l.free[:last]
	return p, nil, nil
}

// wakeAll wakes every waiting Open. The caller holds mu.
func (l *Listener) wakeAll() {
	close(l.wake)
	l.wake = make(chan struct{})
}

// refuse closes a peer's stream and stores the reason. The caller holds mu.
func (l *Listener) refuse(p *parked, why error) {
	l.refused = why
	_ = p.conn.Close()
}

func (l *Listener) openError(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.refused != nil {
		return fmt.Errorf("open a stream to the sandbox: %w (last refused peer: %v)", context.Cause(ctx), l.refused)
	}
	return fmt.Errorf("open a stream to the sandbox: %w", context.Cause(ctx))
}

// start tells the guest that its parked stream is now in use.
func (p *parked) start() error {
	if err := p.alive(); err != nil {
		return err
	}
	if err := p.conn.SetWriteDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	if _, err := p.conn.Write([]byte{startByte}); err != nil {
		return err
	}
	return p.conn.SetWriteDeadline(time.Time{})
}

// alive checks a parked stream without waiting and without consuming data. A peer that hung up is
// not alive, nor is one that sent data before its stream was opened.
func (p *parked) alive() error {
	raw, err := p.conn.SyscallConn()
	if err != nil {
		return err
	}
	var n int
	var peekErr error
	err = raw.Control(func(fd uintptr) {
		n, _, peekErr = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	})
	switch {
	case err != nil:
		return err
	case errors.Is(peekErr, unix.EAGAIN), errors.Is(peekErr, unix.EINTR):
		return nil
	case peekErr != nil:
		return peekErr
	case n == 0:
		return io.EOF
	}
	return errors.New("the peer sent data before its stream was opened")
}

// peerPid returns the process that connected, as the kernel recorded it, in this process's pid
// namespace. It is 0 if the process is not visible there.
func peerPid(conn *net.UnixConn) (int, error) {
	cred, err := peerCredentials(conn)
	if err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}

func peerCredentials(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, credErr
}
