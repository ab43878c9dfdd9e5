package portproxy

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// quietTime is how long a server may be silent after the client's end of input, if that end cannot
// be forwarded.
const quietTime = 5 * time.Second

// Join copies bytes in both directions until both have ended. It sends early to inside first. When
// one direction ends, the other continues. If inside cannot be half-closed (a mux), its output is
// copied until it ends or pauses for quietTime.
func Join(outside, inside net.Conn, early []byte) {
	end := func() { outside.Close(); inside.Close() }
	var told atomic.Bool // the deadline is set
	var both sync.WaitGroup
	both.Go(func() {
		_, err := inside.Write(early)
		if err == nil {
			_, err = io.Copy(inside, outside)
		}
		if err != nil {
			end()
			return
		}
		if endWriting(inside) {
			return
		}
		told.Store(true)
		if inside.SetReadDeadline(time.Now().Add(quietTime)) != nil {
			end()
		}
	})
	both.Go(func() {
		_, err := io.Copy(outside, readerFunc(func(p []byte) (int, error) {
			n, err := inside.Read(p)
			if n > 0 && told.Load() {
				_ = inside.SetReadDeadline(time.Now().Add(quietTime)) // fails only if closed; the next read reports that
			}
			return n, err
		}))
		if err != nil || told.Load() || !endWriting(outside) {
			end()
		}
	})
	both.Wait()
}

// readerFunc is a function that implements io.Reader.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// endWriting closes the write direction and reports whether that was possible.
func endWriting(c net.Conn) bool {
	half, ok := c.(interface{ CloseWrite() error })
	return ok && half.CloseWrite() == nil
}
