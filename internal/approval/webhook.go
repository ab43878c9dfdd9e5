package approval

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
)

// Headers of a delivery. The signature is "sha256=" and the hex HMAC-SHA256 of the timestamp (Unix
// seconds), a dot and the body.
const (
	HeaderTimestamp = "X-Orchestrator-Timestamp"
	HeaderSignature = "X-Orchestrator-Signature"
	// HeaderDelivery is the same for every attempt to deliver one event.
	HeaderDelivery = "X-Orchestrator-Delivery"
)

// Webhook receives events as JSON by POST, in order. URL must be https, or http to a loopback
// address. Secret is the signing key; without one, deliveries are not signed. If the receiver does
// not respond, events are dropped and logged. Delivery never blocks a caller.
type Webhook struct {
	URL    string
	Secret []byte
	// Client is for tests (default: a client that follows no redirects).
	Client *http.Client
}

const (
	hookQueue   = 1024
	hookTimeout = 5 * time.Second // per attempt
	hookTries   = 4
	hookBackoff = 500 * time.Millisecond // after the first attempt, doubled after each
)

// webhookSender delivers events. A nil sender does nothing.
type webhookSender struct {
	Webhook
	log     *slog.Logger
	queue   chan Event
	dropped atomic.Int64
}

func newWebhookSender(w Webhook, log *slog.Logger) (*webhookSender, error) {
	if w.URL == "" {
		return nil, nil
	}
	u, err := url.Parse(w.URL)
	switch {
	case err != nil || u.Host == "":
		return nil, fmt.Errorf("approvals.webhook must be a URL: %w", errdefs.ErrInvalidArgument)
	case u.Scheme == "https":
	case u.Scheme == "http" && isLoopback(u.Hostname()):
	default:
		return nil,
			fmt.Errorf("approvals.webhook must be https, or http to a loopback address: approval requests would "+
				"cross the network unencrypted: %w", errdefs.ErrInvalidArgument)
	}
	if w.Client == nil {
		w.Client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}
	}
	return &webhookSender{Webhook: w, log: log, queue: make(chan Event, hookQueue)}, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// enqueue never blocks.
func (h *webhookSender) enqueue(e Event) {
	if h == nil {
		return
	}
	select {
	case h.queue <- e:
	default:
		h.dropped.Add(1)
	}
}

func (h *webhookSender) run(ctx context.Context) error {
	if h == nil {
		return nil
	}
	defer h.Client.CloseIdleConnections()
	for {
		var e Event
		select {
		case <-ctx.Done():
			return nil
		case e = <-h.queue:
		}
		if lost := h.dropped.Swap(0); lost > 0 {
			h.log.Warn("dropped events: the webhook is too slow", "events", lost)
		}
		if err := h.deliver(ctx, e); err != nil && ctx.Err() == nil {
			h.log.Warn("failed to deliver an event to the webhook", "approval", e.Request.ID, "event", e.Type,
				"error", err)
		}
	}
}

// deliver retries a few times, but not if the receiver rejects the event.
func (h *webhookSender) deliver(ctx context.Context, e Event) error {
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	id := fmt.Sprintf("%s-%s-%d", e.Request.ID, e.Type, e.Request.Expires.Unix())
	wait := hookBackoff
	for try := 1; ; try++ {
		again, err := h.post(ctx, id, body)
		if err == nil || !again || try == hookTries {
			return err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		case <-t.C:
		}
		wait *= 2
	}
}

func (h *webhookSender) post(ctx context.Context, id string, body []byte) (again bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, hookTimeout, fmt.Errorf("no answer in %s", hookTimeout))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(HeaderDelivery, id)
	req.Header.Set(HeaderTimestamp, stamp)
	if len(h.Secret) > 0 {
		req.Header.Set(HeaderSignature, sign(h.Secret, stamp, body))
	}
	resp, err := h.Client.Do(req)
	if err != nil {
		// Strip the URL from the error: it may contain a secret.
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err
		}
		return true, err
	}
	defer resp.Body.Close() // it was read as far as it matters
	// Read the rest, so that the connection can be reused.
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	switch {
	case resp.StatusCode < 300:
		return false, nil
	case resp.StatusCode == http.StatusTooManyRequests, resp.StatusCode == http.StatusRequestTimeout,
		resp.StatusCode >= 500:
		return true, fmt.Errorf("the webhook answered %s", resp.Status)
	}
	return false, fmt.Errorf("the webhook answered %s", resp.Status)
}

func sign(secret []byte, stamp string, body []byte) string {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(stamp + "."))
	m.Write(body)
	return "sha256=" + hex.EncodeToString(m.Sum(nil))
}
