package service

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// manager receives what a service sends to systemd.
func manager(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return c
}

// received returns the next message, or "" if none arrives in time.
func received(t *testing.T, c *net.UnixConn, wait time.Duration) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 256)
	n, err := c.Read(buf)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestWatchdogConfirmsWhileCheckSucceeds(t *testing.T) {
	c := manager(t)
	t.Setenv("WATCHDOG_USEC", strconv.Itoa(30_000))
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	for _, fails := range []bool{false, true} {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			watchdog(ctx, slog.New(slog.DiscardHandler), func(context.Context) error {
				if fails {
					return errors.New("no database")
				}
				return nil
			})
		}()
		want, wait := "WATCHDOG=1", 10*time.Second
		if fails {
			want, wait = "", 200*time.Millisecond
		}
		if got := received(t, c, wait); got != want {
			t.Errorf("check fails: %v: message %q, want %q", fails, got, want)
		}
		cancel()
		<-done
		for received(t, c, time.Millisecond) != "" { // those that were sent before
		}
	}
}

func TestWatchdogWithoutUnitReturns(t *testing.T) {
	t.Setenv("WATCHDOG_USEC", "")
	watchdog(t.Context(), slog.New(slog.DiscardHandler), nil) // would call nil
}
