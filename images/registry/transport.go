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

// guardedTransport handles every request, including those for tokens and after redirects. It
// refuses plain HTTP to hosts that are not listed, bounds bodies in size and slowness, and retries
// while a registry is busy.
type guardedTransport struct {
	inner   http.RoundTripper
	options *Options
}

// bodyLimitKey is the context key for the maximum size of a response body, in bytes.
type bodyLimitKey struct{}

func withBodyLimit(ctx context.Context, bytes int64) context.Context {
	return context.WithValue(ctx, bodyLimitKey{}, bytes)
}

// tries is the maximum number of attempts.
const tries = 5

// RoundTrip implements http.RoundTripper.
func (s *guardedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !s.options.insecure(r.URL.Host) {
		return nil, fmt.Errorf("%s uses %s without TLS: add it to images.insecure to allow plain HTTP: %w",
			r.URL.Host, r.URL.Scheme, errdefs.ErrFailedPrecondition)
	}
	// The library removed credentials from the header. The body of a token request contains
	// credentials too and would be sent to the new host.
	if before := r.Response; before != nil && r.Body != nil &&
		(before.Request == nil || before.Request.URL.Host != r.URL.Host) {
		return nil, fmt.Errorf("token server redirects to another host %s, which would get the credentials: %w",
			r.URL.Host,
			errdefs.ErrFailedPrecondition)
	}
	pause := s.options.Pause
	for try := 1; ; try++ {
		resp, err := s.once(r)
		busy := err == nil && (resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500 &&
			resp.StatusCode != http.StatusNotImplemented)
		if !busy || r.Body != nil && r.GetBody == nil {
			return resp, err
		}
		wait, asked := retryAfter(resp)
		if !asked {
			wait = pause/2 + rand.N(pause) // spreads load; not a secret
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

// retryAfter returns how long a response asks to wait.
func retryAfter(resp *http.Response) (time.Duration, bool) {
	header := resp.Header.Get("Retry-After")
	if n, err := strconv.Atoi(header); err == nil && n >= 0 {
		return time.Duration(min(n, 86400)) * time.Second, true
	}
	if at, err := http.ParseTime(header); err == nil {
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

// once sends the request once. Closing the body of the response ends its supervision.
func (s *guardedTransport) once(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	resp, err := s.inner.RoundTrip(r.WithContext(ctx))
	if err != nil {
		cancel(err)
		return nil, err
	}
	room, ok := r.Context().Value(bodyLimitKey{}).(int64)
	switch {
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		room = maxError // the end of an error body is not needed
	case !ok:
		room = maxAnswer
	}
	resp.Body = &body{ReadCloser: resp.Body, left: room, refused: resp.StatusCode > 299, ctx: ctx, cancel: cancel,
		stall: s.options.Stall}
	return resp, nil
}

// body is a response body that fails if it is too long, or if it stalls: less than stallBytes
// arrive in the stall time.
type body struct {
	io.ReadCloser
	left    int64
	refused bool // the response is an error: longer bodies are cut
	ctx     context.Context
	cancel  context.CancelCauseFunc
	stall   time.Duration
	watch   *time.Timer
	came    int64 // bytes since the timer was reset
}

func (b *body) Read(p []byte) (int, error) {
	if b.left <= 0 && b.refused {
		return 0, io.EOF
	}
	if b.watch == nil {
		b.watch = time.AfterFunc(b.stall, func() {
			b.cancel(fmt.Errorf("registry sent less than %d bytes in %s: %w", stallBytes, b.stall,
				errdefs.ErrUnavailable))
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
		return n + int(b.left), fmt.Errorf("registry response is too long: %w", errLonger)
	case err != nil && err != io.EOF && context.Cause(b.ctx) != nil:
		return n, context.Cause(b.ctx)
	}
	return n, err
}

// Close implements io.Closer. It ends the request.
func (b *body) Close() error {
	if b.watch != nil {
		b.watch.Stop()
	}
	err := b.ReadCloser.Close()
	b.cancel(context.Canceled)
	return err
}

// errLonger reports a body over its limit.
var errLonger = fmt.Errorf("longer than allowed: %w", errdefs.ErrFailedPrecondition)
