package main

import (
	"errors"
	"testing"

	"github.com/containerd/errdefs"

	client "github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// host opens streams to a guest with an epoch.
type host struct {
	client.Opener
	epoch int64
}

// Epoch implements guest.Fenced.
func (h host) Epoch() int64 { return h.epoch }

// TestGuestRefusesReplacedHost checks that a newer host ends the command of an older one, that the
// older one can do nothing from then on, and that its shells go on.
func TestGuestRefusesReplacedHost(t *testing.T) {
	t.Parallel()
	s := startGuest(t)
	older, newer := client.New(host{s.l, 1}), client.New(host{s.l, 2})
	if _, err := older.Start(t.Context(), wire.Command{ID: "on", Argv: []string{"sleep", "300"}, Cwd: "/"}); err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := older.Exec(t.Context(), wire.Command{Argv: []string{"sleep", "300"}, Cwd: "/"},
			client.IO{Started: func(wire.Started) { close(begun) }})
		ended <- err
	}()
	<-begun
	pong, err := newer.Ping(t.Context())
	if err != nil || pong.Commands != 1 {
		t.Errorf("Ping of the newer host = %+v, %v; want the shell only", pong, err)
	}
	if err := <-ended; !errors.Is(err, client.ErrLost) {
		t.Errorf("Exec of the older host = %v, want ErrLost", err)
	}
	for what, do := range map[string]func() error{
		"ping":  func() error { _, err := older.Ping(t.Context()); return err },
		"claim": func() error { return older.Claim(t.Context(), wire.Claim{Lease: "old"}) },
		"exec": func() error {
			_, err := older.Exec(t.Context(), wire.Command{Argv: []string{"true"}, Cwd: "/"}, client.IO{})
			return err
		},
		"end": func() error { return older.End(t.Context()) },
	} {
		if refused, ok := errors.AsType[*client.Error](do()); !ok || refused.Field != wire.FieldEpoch || !errdefs.IsFailedPrecondition(refused) {
			t.Errorf("%s of the older host = %v, want FailedPrecondition of field epoch", what, refused)
		}
	}
	if err := newer.Claim(t.Context(), wire.Claim{Lease: "new"}); err != nil {
		t.Errorf("Claim of the newer host: %v", err)
	}
}
