package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestBridgeWaitsForGuest(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := dialAt(short, path); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("dialAt without a guest = %v, want ENOENT", err)
	}
	l := make(chan net.Listener, 1)
	go func() {
		time.Sleep(20 * time.Millisecond) // it has most likely tried by then
		made, err := net.Listen("unix", path)
		if err != nil {
			t.Error(err)
		}
		l <- made
	}()
	ctx, stop := context.WithTimeout(t.Context(), bound)
	defer stop()
	nc, err := dialAt(ctx, path)
	if err != nil {
		t.Error(err)
	} else {
		nc.Close()
	}
	if made := <-l; made != nil {
		made.Close()
	}
}
