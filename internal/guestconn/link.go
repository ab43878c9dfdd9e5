// Package guestconn carries byte streams between the host and the guest of one sandbox, and nothing else: what is said on
// a stream is the business of whoever opened it.
//
// There are two ways, with one meaning: the host opens, the guest serves.
//
//   - Local: the host listens on a unix socket in a folder the container sees read-only ([Listen]); the guest dials it and
//     parks a few streams ([Park]). To open a stream the host takes a parked one. Nothing inside the sandbox listens,
//     so nothing inside can redirect the host.
//   - Stdio: where only an exec into the container is in reach, one process inside ([Bridge]) carries a yamux
//     session over its stdin and stdout, and the host opens streams on it ([NewMux]).
//
// Streams of both ways are net.Conn with deadlines. Half close differs and no protocol on top may need it: a local
// stream is a *net.UnixConn and has CloseWrite; a muxed stream has none, because yamux cannot give up reading
// alone, so there Close ends both directions (what was written before it is still delivered). The guest can end its
// own direction alone on both.
//
// The package never checks who may open a stream, never retries for the caller and never makes up an end of file: a
// transport that broke is an error ([ErrLost]) on every stream of it, not io.EOF.
//
// Goroutines: a Listener has one that accepts and at most [MaxParked] that wait for a greeting; Park has its
// parkers, one clock and at most [MaxServed] that serve; a Mux and a Bridge have those of yamux and one per stream
// on the guest's side. Close (or the return of Park and Bridge) waits for them.
//
// Errors: [ErrClosed], [ErrLost], or the context's cause, each wrapped.
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

// The errors callers tell apart.
var (
	// ErrClosed: this side closed the listener or the mux.
	ErrClosed = errors.New("link is closed")
	// ErrLost: the transport under the stream broke; the guest, or what it runs in, is gone or out of reach.
	ErrLost = errors.New("link to the sandbox is lost")
)

// Bounds. What comes from inside a sandbox is hostile, so each of them is a limit and not a hint.
const (
	// MaxParked is how many streams of one sandbox a Listener holds that nobody took yet, greeted or not.
	MaxParked = 64
	// MaxServed is how many streams a guest has in hand at once, parked ones included; beyond it parks no more.
	MaxServed = 256
	// MaxCarried is how many streams of a mux may carry connections, see Carry of its streams. The bridge lives in the
	// sandbox, and holds up to two windows of each that a command does not read from: 64 MiB. On the local way they are the
	// guest's to count: Park does not count what was kept.
	MaxCarried = 128
	// HelloTimeout is how long a connection may take to say its greeting.
	HelloTimeout = 10 * time.Second
	// startTimeout bounds the one octet that starts a parked stream. The socket's buffer is empty there, so only a
	// machine that stands still can make it take time.
	startTimeout = 5 * time.Second
)

const (
	version   = 1
	helloSize = 8
	// startByte is what the host writes when it takes a parked stream.
	startByte = 'O'
)

var magic = [6]byte{'o', 'r', 'l', 'i', 'n', 'k'}

// hello is what the guest says first: six octets of magic and a version, big endian.
func hello() []byte {
	return binary.BigEndian.AppendUint16(magic[:], version)
}

func checkHello(b []byte) error {
	if len(b) != helloSize || !bytes.Equal(b[:len(magic)], magic[:]) {
		return fmt.Errorf("greeting %q is not one of ours", b)
	}
	if v := binary.BigEndian.Uint16(b[len(magic):]); v != version {
		return fmt.Errorf("guest speaks version %d of the link, this host speaks %d", v, version)
	}
	return nil
}

// openDir opens the folder of a socket, so that the socket can be named through /proc/self/fd: a socket's address holds
// 107 octets, and a state directory may be longer.
func openDir(path string) (dir *os.File, name string, err error) {
	fd, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", fmt.Errorf("open folder of socket %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), filepath.Dir(path)), filepath.Base(path), nil
}

// addressIn is the address of name in the folder behind fd.
func addressIn(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}
