package approval

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
)

func TestWebhookRequiresHTTPSOrLoopback(t *testing.T) {
	for address, ok := range map[string]bool{
		"https://example.com/x": true, "http://127.0.0.1:1/x": true, "http://[::1]:1": true, "http://localhost/x": true,
		"":                     true,
		"http://example.com/x": false, "http://10.0.0.1/": false, "ftp://localhost/": false, "localhost": false,
		"https://": false, "::": false,
		"http://localhost.example.com/": false, "file:///etc/passwd": false,
	} {
		_, err := newWebhookSender(Webhook{URL: address}, slog.New(slog.DiscardHandler))
		if ok != (err == nil) || !ok && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("newWebhookSender(%q): %v, want success %t or else InvalidArgument", address, err, ok)
		}
	}
}

func TestWebhookDeliversInOrderSigned(t *testing.T) {
	secret := []byte("s3cret")
	type told struct {
		event    Event
		delivery string
	}
	got := make(chan told, 10)
	fail := make(chan int, 1)
	fail <- http.StatusServiceUnavailable // the first attempt
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get(HeaderSignature) != sign(secret, r.Header.Get(HeaderTimestamp), body) {
			t.Error("the request has a wrong signature, want that of its body")
		}
		var e Event
		if err := json.Unmarshal(body, &e); err != nil {
			t.Error(err)
		}
		got <- told{e, r.Header.Get(HeaderDelivery)}
		select {
		case status := <-fail:
			w.WriteHeader(status)
		default:
		}
	}))
	defer srv.Close()
	w := newWorld(t, Options{Webhook: Webhook{URL: srv.URL, Secret: secret}})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	d := w.want(t, call("a", prompts(t)), OutcomeAsked)
	w.answer(t, d.Request.ID, Answer{Action: AnswerApprove})
	first, again, second := <-got, <-got, <-got
	if first.event.Type != "asked" || again.event.Type != "asked" || again.delivery != first.delivery ||
		second.event.Type != "decided" || second.event.Request.By != "bob" || second.delivery == first.delivery {
		t.Fatalf("deliveries =\n%+v\n%+v\n%+v\nwant asked twice with one id, then decided by bob", first, again, second)
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// dead is a webhook that never answers.
type dead struct{ tries int }

func (d *dead) RoundTrip(r *http.Request) (*http.Response, error) {
	d.tries++
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

func TestDeadWebhookDoesNotBlock(t *testing.T) {
	d := &dead{}
	o := Options{MaxPendingPerCaller: 5000, Webhook: Webhook{URL: "https://dead.example.com/secret",
		Client: &http.Client{Transport: d}}}
	synctest.Test(t, func(t *testing.T) {
		w, _ := runGate(t, o)
		begin := time.Now()
		r := Request{ID: "a", Caller: "ann"}
		for range 3 * hookQueue {
			w.mu.Lock()
			w.publish("asked", r)
			w.mu.Unlock()
		}
		if time.Since(begin) != 0 || w.hook.dropped.Load() == 0 {
			t.Fatalf("publish took %v and dropped %d events; want 0s and some", time.Since(begin), w.hook.dropped.Load())
		}
		time.Sleep(hookTries*hookTimeout + 7*hookBackoff + time.Millisecond)
		synctest.Wait()
		if d.tries != hookTries+1 {
			t.Fatalf("%d attempts, want %d", d.tries, hookTries+1)
		}
	})
}
