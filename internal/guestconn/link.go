// Package guestconn carries byte streams between the host and the guest of one sandbox. It does not
// interpret their content.
//
// There are two transports. In both, the host opens streams and the guest serves them.
//
//   - Local: the host listens on a unix socket in a directory that the container sees read-only
//     ([Listen]). The guest dials it and parks a few streams ([Park]). To open a stream, the host
//     takes a parked one. Nothing inside the sandbox listens, so nothing inside can redirect the
//     host.
//   - Stdio: if the host can only exec into the container, a process inside ([Pipe]) connects its
//     stdin and stdout to the guest ([ServeBridges]), and the host opens streams on a yamux session
//     over it ([DialMux]). The session runs on a line, which survives its connections:
//     both ends acknowledge what they received, and continue there.
//
// Streams of both transports are net.Conn with deadlines and CloseWrite. Either side can end its
// own direction alone. The guest sees the end of a local stream at once, and that of a muxed stream
// after the data before it. Close ends both directions; data written before is still delivered.
//
// The package does not check who may open a stream. A lost transport is an error ([ErrLost]) on
// each of its streams, never io.EOF.
//
// Goroutines: a Listener has one that accepts and at most [MaxParked] that wait for a greeting;
// Park has its parkers, one clock and at most [MaxServed] that serve; a Mux and each line of
// ServeBridges have those of yamux, up to three for the connection, and on the guest's side four
// per stream. Close, or the return of Park and ServeBridges, waits for them.
//
// Errors: [ErrClosed], [ErrLost], [ErrGone], [ErrVersion], or the context's cause, each wrapped.
package guestconn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Errors that callers distinguish.
var (
	// ErrClosed means that this side closed the listener or the mux.
	ErrClosed = errors.New("link is closed")
	// ErrLost means that the transport under the stream broke: the guest or its container is gone
	// or out of reach.
	ErrLost = errors.New("link to the sandbox is lost")
	// ErrGone means that the guest does not know a mux any more: its process has ended, or it has
	// given the mux up. Streams report it as the cause of ErrLost.
	ErrGone = errors.New("the guest does not know the link any more")
	// ErrFenced means that the guest has seen a host with a higher epoch.
	ErrFenced = errors.New("the sandbox belongs to a newer host")
	// ErrVersion means that the guest uses another version of the link than this host.
	ErrVersion = errors.New("the guest has another link version")
)

// Limits. All input from a sandbox is untrusted.
const (
	// MaxParked is how many streams of one sandbox a Listener holds before they are opened, greeted
	// or not.
	MaxParked = 64
	// MaxServed is how many streams a guest holds at once, including parked ones. At this limit it
	// parks no more.
	MaxServed = 256
	// MaxCarried is how many streams of a mux may carry connections, see Carry. The guest buffers up
	// to two windows of each stream that a command does not read: 64 MiB. On the local transport the
	// guest limits them: Park does not count kept streams.
	MaxCarried = 128
	// HelloTimeout bounds the wait for a connection's greeting.
	HelloTimeout = 10 * time.Second
	// startTimeout bounds the write of the byte that starts a parked stream. The socket's buffer is
	// empty then, so it only takes time on a machine that is stalled.
	startTimeout = 5 * time.Second
)

const (
	version   = 1
	helloSize = 8
	// startByte is what the host writes when it takes a parked stream.
	startByte = 'O'
)

var magic = [6]byte{'o', 'r', 'l', 'i', 'n', 'k'}

// hello returns the guest's greeting: six bytes of magic and a big-endian version.
func hello() []byte {
	return binary.BigEndian.AppendUint16(magic[:], version)
}

func checkHello(b []byte) error {
	if len(b) != helloSize || !bytes.Equal(b[:len(magic)], magic[:]) {
		return fmt.Errorf("invalid greeting %q", b)
	}
	if v := binary.BigEndian.Uint16(b[len(magic):]); v != version {
		return fmt.Errorf("the guest has link version %d, this host has %d", v, version)
	}
	return nil
}

// openDir opens the directory of a socket, so that the socket can be addressed through
// /proc/self/fd: a socket address has at most 107 bytes, and a state directory may be longer.
func openDir(path string) (dir *os.File, name string, err error) {
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("open directory of socket %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), filepath.Dir(path)), filepath.Base(path), nil
}

// addressIn returns the address of name in dir.
func addressIn(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}
