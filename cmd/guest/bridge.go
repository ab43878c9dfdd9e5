package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

// bridgeDial bounds how long a bridge waits for the guest's socket.
const bridgeDial = 10 * time.Second

// runBridge connects the host's connection on stdin and stdout to the guest's socket.
func runBridge(ctx context.Context) error {
	keepThreads(bridgeThreads)
	dialCtx, cancel := context.WithTimeout(ctx, bridgeDial)
	defer cancel()
	nc, err := dialAt(dialCtx, bridgeSocket())
	if err != nil {
		return err
	}
	return guestconn.Pipe(os.Stdin, os.Stdout, nc)
}

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
