//go:build linux

package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestPooledGuestWaitsForItsFirstHost checks that only a guest which has had a host ends without
// one.
func TestPooledGuestWaitsForItsFirstHost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &guest{}
		g.ctx, g.stop = context.WithCancelCause(t.Context())
		go g.watch(time.Minute, true)
		time.Sleep(time.Hour)
		if err := context.Cause(g.ctx); err != nil {
			t.Errorf("pooled guest before its first host ended with %v, want it running", err)
		}
		g.hostSeen()
		time.Sleep(2 * time.Minute)
		if err := context.Cause(g.ctx); !errors.Is(err, errOrphaned) {
			t.Errorf("pooled guest after its host ended with %v, want %v", err, errOrphaned)
		}
	})
}
