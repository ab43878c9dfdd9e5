package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

// presence is how often a bridge reports a present host to the guest, even if the host sends
// nothing. It must be short compared to the guest's orphan timeout, which can be a few seconds.
const presence = time.Second

// runBridge connects the host's mux on stdin and stdout to the guest's socket.
func runBridge(ctx context.Context) error {
	keepThreads(bridgeThreads)
	ctx, cancel := context.WithCancel(ctx)
	var pings sync.WaitGroup
	defer pings.Wait()
	defer cancel()
	pings.Go(func() {
		tick := time.NewTicker(presence)
		defer tick.Stop()
		for {
			ping(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return guestconn.Bridge(ctx, os.Stdin, os.Stdout, dialGuest)
}

func dialGuest(ctx context.Context) (net.Conn, error) { return dialAt(ctx, bridgeSocket()) }

// dialAt connects to the guest's socket and waits until the guest listens. On a busy host, an
// engine may start a bridge before that.
func dialAt(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		nc, err := d.DialContext(context.WithoutCancel(ctx), "unix", path) // connecting to a unix socket does not block
		if err == nil {
			return nc, nil
		}
		err = fmt.Errorf("connect to the guest: %w", err)
		if !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.EAGAIN) {
			return nil, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// ping opens a stream, which shows the guest that a host is present.
func ping(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, presence)
	defer cancel()
	nc, err := dialGuest(ctx)
	if err != nil {
		return
	}
	defer nc.Close()
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	defer stop()
	c := wire.NewConn(nc)
	if c.WriteJSON(wire.KindRequest, wire.Request{Version: wire.Version, Op: wire.OpPing}) == nil {
		_, _, _ = c.ReadFrame() // the host notices a guest that does not answer
	}
}
