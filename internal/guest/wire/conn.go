package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// HeaderLen is the number of bytes before a frame's payload. [Conn.WriteRoom] needs that much space
// before the payload.
const HeaderLen = 5

const (
	// readAhead is how much is read when only a header is due: a small frame then needs one system
	// call, and little of a large one has to be moved.
	readAhead = 4 << 10
	// mergeBelow is the largest payload that is copied next to its header instead of written
	// separately.
	mergeBelow = 4 << 10
	// maxMessage bounds an error message, in bytes.
	maxMessage = 2 << 10
)

// Errors of the codec. After any of them the stream is unusable.
var (
	ErrTooLarge = errors.New("frame is over its limit")
	ErrKind     = errors.New("frame of unknown kind")
	ErrEnded    = errors.New("stream has already been answered")
)

// Conn reads and writes frames on a byte stream. One goroutine may read while any number write. The
// deadlines and Close may be called at any time. After a failed write every later write returns the
// same error.
type Conn struct {
	nc net.Conn

	in    []byte // in[start:end] was read and not returned yet
	start int
	end   int
	exact bool // nothing beyond a frame is read

	mu    sync.Mutex
	err   error // first failed write
	ended bool  // Reply or Failure was written
	small [HeaderLen + mergeBelow]byte
	vec   [2][]byte
	bufs  net.Buffers
}

// NewConn returns a Conn that owns nc.
func NewConn(nc net.Conn) *Conn { return &Conn{nc: nc} }

// NewExactConn is like NewConn, for a stream on which unframed data may follow a frame. It never
// reads beyond a frame.
func NewExactConn(nc net.Conn) *Conn { return &Conn{nc: nc, exact: true} }

// Raw returns the stream for unframed use. It fails if the peer has already sent data. The Conn
// must not be used afterwards.
func (c *Conn) Raw() (net.Conn, error) {
	if c.end > c.start {
		return nil, Failf(InvalidArgument, "", "%d bytes came before their turn", c.end-c.start)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	c.err, c.in = ErrEnded, nil
	return c.nc, nil
}

// Close closes the stream. Blocked reads and writes return.
func (c *Conn) Close() error { return c.nc.Close() }

// SetReadDeadline, SetWriteDeadline and SetDeadline set the deadlines of the stream.
func (c *Conn) SetReadDeadline(t time.Time) error  { return c.nc.SetReadDeadline(t) }
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.nc.SetWriteDeadline(t) }
func (c *Conn) SetDeadline(t time.Time) error      { return c.nc.SetDeadline(t) }

// maxPayload returns the maximum payload of a kind, or -1 for an unknown kind.
func maxPayload(kind Kind) int {
	switch kind {
	case KindRequest, KindReply, KindFailure, KindStarted:
		return MaxHeader
	case KindStdout, KindStderr, KindStdin, KindData:
		return MaxFrame
	case KindSignal, KindChunk:
		return 4 << 10
	case KindEOF:
		return 0
	}
	return -1
}

// ReadFrame returns the next frame. The payload is valid until the next call. It returns io.EOF if
// the stream ended between two frames, and io.ErrUnexpectedEOF if it ended within one.
func (c *Conn) ReadFrame() (Kind, []byte, error) {
	if err := c.fill(HeaderLen); err != nil {
		return 0, nil, err
	}
	head := c.in[c.start:]
	kind, size := Kind(head[0]), binary.BigEndian.Uint32(head[1:HeaderLen])
	limit := maxPayload(kind)
	if limit < 0 {
		return 0, nil, fmt.Errorf("kind 0x%02x: %w", byte(kind), ErrKind)
	}
	if uint64(size) > uint64(limit) {
		return 0, nil, fmt.Errorf("kind %q of %d bytes, at most %d: %w", byte(kind), size, limit, ErrTooLarge)
	}
	whole := HeaderLen + int(size)
	if err := c.fill(whole); err != nil {
		return 0, nil, err
	}
	payload := c.in[c.start+HeaderLen : c.start+whole : c.start+whole]
	c.start += whole
	return kind, payload, nil
}

// fill reads until n bytes are buffered, and not much more.
func (c *Conn) fill(n int) error {
	for c.end-c.start < n {
		if c.start > 0 && (c.start == c.end || c.start+n > len(c.in)) {
			c.end = copy(c.in, c.in[c.start:c.end])
			c.start = 0
		}
		c.grow(n)
		upTo := c.start + n
		if !c.exact {
			upTo = max(upTo, c.start+readAhead)
		}
		upTo = min(upTo, len(c.in))
		m, err := c.nc.Read(c.in[c.end:upTo])
		c.end += max(m, 0)
		if c.end-c.start >= n {
			return nil
		}
		if err != nil {
			if errors.Is(err, io.EOF) && c.end > c.start {
				return io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// grow makes room for n bytes from start. The buffer at most doubles as data arrives, so a large
// announced length alone allocates nothing.
func (c *Conn) grow(n int) {
	want := max(readAhead, min(c.start+n, 64<<10))
	if have := c.end - c.start; have >= 32<<10 {
		want = c.start + n
	}
	if len(c.in) >= want {
		return
	}
	bigger := make([]byte, want)
	copy(bigger, c.in[:c.end])
	c.in = bigger
}

// WriteFrame writes one frame, in one system call if possible. It does not keep the payload.
func (c *Conn) WriteFrame(kind Kind, payload []byte) error {
	if err := checkFrame(kind, len(payload)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(kind); err != nil {
		return err
	}
	putHeader(c.small[:], kind, len(payload))
	if len(payload) <= mergeBelow {
		n := HeaderLen + copy(c.small[HeaderLen:], payload)
		_, err := c.nc.Write(c.small[:n])
		return c.done(err)
	}
	c.vec[0], c.vec[1] = c.small[:HeaderLen], payload
	c.bufs = c.vec[:]
	_, err := c.bufs.WriteTo(c.nc)
	c.vec[1] = nil
	return c.done(err)
}

// WriteRoom writes a frame whose payload is buf[HeaderLen:] and overwrites the bytes before it. It
// neither copies nor allocates.
func (c *Conn) WriteRoom(kind Kind, buf []byte) error {
	if len(buf) < HeaderLen {
		return fmt.Errorf("no room for a header: %w", io.ErrShortBuffer)
	}
	if err := checkFrame(kind, len(buf)-HeaderLen); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(kind); err != nil {
		return err
	}
	putHeader(buf, kind, len(buf)-HeaderLen)
	_, err := c.nc.Write(buf)
	return c.done(err)
}

func checkFrame(kind Kind, size int) error {
	if limit := maxPayload(kind); size > limit {
		return fmt.Errorf("write kind %q of %d bytes, at most %d: %w", byte(kind), size, limit, ErrTooLarge)
	}
	return nil
}

func putHeader(b []byte, kind Kind, size int) {
	b[0] = byte(kind)
	binary.BigEndian.PutUint32(b[1:HeaderLen], uint32(size))
}

// begin enforces that nothing follows the last frame of an answer.
func (c *Conn) begin(kind Kind) error {
	if c.err != nil {
		return c.err
	}
	if c.ended {
		return ErrEnded
	}
	c.ended = kind == KindReply || kind == KindFailure
	return nil
}

func (c *Conn) done(err error) error {
	if err != nil {
		c.err = err
	}
	return err
}

// WriteJSON writes v as the payload of a frame.
func (c *Conn) WriteJSON(kind Kind, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame of kind %q: %w", byte(kind), err)
	}
	return c.WriteFrame(kind, b)
}

// Reply ends the answer with v. A nil v is sent as an empty object.
func (c *Conn) Reply(v any) error {
	if v == nil {
		v = struct{}{}
	}
	return c.WriteJSON(KindReply, v)
}

// Fail ends the answer with a Failure. It truncates the message and makes it valid UTF-8. After
// Reply or Fail it returns ErrEnded and writes nothing.
func (c *Conn) Fail(code Code, field, message string) error {
	return c.WriteJSON(KindFailure, Failure{Code: code, Field: field, Message: clean(message)})
}

// FailWith ends the answer with the *Failure that err wraps, or else with err as an internal
// failure.
func (c *Conn) FailWith(err error) error {
	if f, ok := errors.AsType[*Failure](err); ok {
		return c.Fail(f.Code, f.Field, f.Message)
	}
	return c.Fail(Internal, "", err.Error())
}

func clean(message string) string {
	if len(message) > maxMessage {
		message = message[:maxMessage]
	}
	return strings.ToValidUTF8(message, "�")
}
