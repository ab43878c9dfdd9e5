package netpolicy

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// upload is a request's body. The transport may continue to read it after the answer was received.
// stop ends that before the connection from the sandbox is used for anything else.
type upload struct {
	f       *flow
	r       *http.Request
	rest    io.ReadCloser // nil: no body
	trailer http.Header   // the announced trailers, filled at the end

	eof  atomic.Bool
	mu   sync.Mutex // held during reads
	dead bool
	err  atomic.Pointer[error] // the error of reading from the sandbox
}

func newUpload(f *flow, r *http.Request) *upload {
	b := &upload{f: f, r: r}
	if r.Body == nil || r.Body == http.NoBody {
		b.eof.Store(true)
		return b
	}
	b.rest = r.Body
	for field := range r.Trailer {
		if b.trailer == nil {
			b.trailer = http.Header{}
		}
		b.trailer[field] = nil
	}
	return b
}

// Read implements io.Reader for the transport.
func (b *upload) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dead {
		return 0, errors.New("the request is over")
	}
	n, err := b.rest.Read(p)
	b.f.count(false, n)
	switch {
	case err == io.EOF:
		b.eof.Store(true)
		for field := range b.trailer {
			b.trailer[field] = b.r.Trailer[field]
		}
	case err != nil:
		b.err.Store(&err)
	}
	return n, err
}

// Close implements io.Closer for the transport. It does nothing, because the HTTP server owns the
// body.
func (b *upload) Close() error { return nil }

// failed returns the error of reading from the sandbox, or nil.
func (b *upload) failed() error {
	if err := b.err.Load(); err != nil {
		return *err
	}
	return nil
}

// stop waits until no read is in progress, and fails later reads. A body that was not read to its
// end is the last data on its connection.
func (b *upload) stop(c *client) {
	if b.eof.Load() {
		return
	}
	c.unread.Store(true)
	c.SetReadDeadline(time.Unix(1, 0))
	b.mu.Lock()
	b.dead = true
	b.mu.Unlock()
}
