package registry

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
)

// strict is the way of every request, of those for tokens and after redirects
// as well: no plain HTTP to hosts that are not listed, bodies bounded in size
// and in how slow they may be, and patience with a registry that is busy.
type strict struct {
	inner   http.RoundTripper
	options *Options
}

// roomKey is where a request's context says how long its answer may be.
type roomKey struct{}

func withRoom(ctx context.Context, bytes int64) context.Context {
	return context.WithValue(ctx, roomKey{}, bytes)
}

// tries is how often something is asked for.
const tries = 5

// RoundTrip carries a request out.
func (s *strict) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !s.options.insecure(r.URL.Host) {
		return nil, fmt.Errorf("%s does not speak TLS or leads to %s without it: list it in images.insecure to speak plain HTTP to it: %w", r.URL.Host, r.URL.Scheme, errdefs.ErrFailedPrecondition)
	}
	// The library has taken credentials out of the header by now. A body goes on
	// as it is, and that of a request for a token is credentials.
	if before := r.Response; before != nil && r.Body != nil && (before.Request == nil || before.Request.URL.Host != r.URL.Host) {
		return nil, fmt.Errorf("a token server leads to another host, %s, with the credentials: %w", r.URL.Host, errdefs.ErrFailedPrecondition)
	}
	pause := s.options.Pause
	for try := 1; ; try++ {
		resp, err := s.once(r)
		busy := err == nil && (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500 && resp.StatusCode != http.StatusNotImplemented)
		if !busy || r.Body != nil && r.GetBody == nil {
			return resp, err
		}
		wait, asked := retryAfter(resp)
		if !asked {
			wait = pause/2 + rand.N(pause) //nolint:gosec // spreads load, no secret
		}
		if try == tries || wait > s.options.Patience {
			return resp, nil
		}
		resp.Body.Close()
		s.options.Log.Info("registry is busy", "host", r.URL.Host, "status", resp.StatusCode, "wait", wait)
		if err := sleep(r.Context(), wait); err != nil {
			return nil, err
		}
		pause *= 2
		if r.GetBody != nil {
			if r.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		}
	}
}

// retryAfter is how long an answer asks to wait.
func retryAfter(resp *http.Response) (time.Duration, bool) {
	said := resp.Header.Get("Retry-After")
	if n, err := strconv.Atoi(said); err == nil && n >= 0 {
		return time.Duration(min(n, 86400)) * time.Second, true
	}
	if at, err := http.ParseTime(said); err == nil {
		return max(0, time.Until(at)), true
	}
	return 0, false
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// once is one try. The answer's body ends the watch over it when it is closed.
func (s *strict) once(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	resp, err := s.inner.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel(err)
		return nil, err
	}
	room, ok := r.Context().Value(roomKey{}).(int64)
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		room = maxError // its end is not needed
	case !ok:
		room = maxAnswer
	}
	resp.Body = &body{ReadCloser: resp.Body, left: room, refused: resp.StatusCode > 299, ctx: ctx, cancel: cancel, stall: s.options.Stall}
	return resp, nil
}

// body is an answer's: it fails when more comes than there is room for, and
// when next to nothing comes for the stall time.
type body struct {
	io.ReadCloser
	left    int64
	refused bool
	ctx     context.Context
	cancel  context.CancelCauseFunc
	stall   time.Duration
	watch   *time.Timer
	came    int64 // since the watch was set
}

func (b *body) Read(p []byte) (int, error) {
	if b.left <= 0 && b.refused {
		return 0, io.EOF
	}
	if b.watch == nil {
		b.watch = time.AfterFunc(b.stall, func() {
			b.cancel(fmt.Errorf("the registry sent less than %d bytes in %s: %w", stallBytes, b.stall, errdefs.ErrUnavailable))
		})
	}
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	if b.came += int64(n); b.came >= stallBytes {
		b.came = 0
		b.watch.Reset(b.stall)
	}
	switch {
	case b.left < 0 && b.refused:
		return n + int(b.left), io.EOF
	case b.left < 0:
		return n + int(b.left), fmt.Errorf("the registry sends more than it may: %w", errLonger)
	case err != nil && err != io.EOF && context.Cause(b.ctx) != nil:
		return n, context.Cause(b.ctx)
	}
	return n, err
}

// Close ends the request.
func (b *body) Close() error {
	if b.watch != nil {
		b.watch.Stop()
	}
	err := b.ReadCloser.Close()
	b.cancel(context.Canceled)
	return err
}

// errLonger is for a body with more bytes than there is room for.
var errLonger = fmt.Errorf("longer than allowed: %w", errdefs.ErrFailedPrecondition)
