package guest

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

func TestStreamsBecomeConnections(t *testing.T) {
	started := jsonFrame(wire.KindStarted, wire.Started{Beside: -1})
	for name, c := range map[string]struct {
		script func(*wire.Conn, net.Conn, wire.Request)
		want   error
	}{
		"bytes with the frame": {say(started, []byte("hello")), nil},
		"refused": {say(jsonFrame(wire.KindFailure, wire.Failure{Code: wire.NotFound, Field: "port"})),
			errdefs.ErrNotFound},
		"another frame": {hold(frame(wire.KindStdout, "x")), ErrProtocol},
		"no JSON":       {hold(frame(wire.KindStarted, "x")), ErrProtocol},
		"an end":        {say(), ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			nc, err := talk(t, &peer{script: c.script}).Dial(soon(t), 80)
			if !errors.Is(err, c.want) {
				t.Fatalf("Dial: %v, want %v", err, c.want)
			}
			if c.want != nil {
				return
			}
			defer nc.Close()
			if got, err := io.ReadAll(nc); err != nil || string(got) != "hello" {
				t.Errorf("read = %q, %v; want %q and no error", got, err, "hello")
			}
		})
	}
}

func TestAcceptWaitsUntilContextEnds(t *testing.T) {
	p := &peer{script: hold()}
	c := talk(t, p)
	ctx, cancel := context.WithCancelCause(soon(t))
	gone := errors.New("the sandbox is given back")
	go func() { p.pinged(1); cancel(gone) }()
	if _, err := c.Accept(ctx); !errors.Is(err, gone) {
		t.Errorf("Accept: %v, want %v", err, gone)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pings == 0 {
		t.Error("silent guest got no ping, want at least one")
	}
}
