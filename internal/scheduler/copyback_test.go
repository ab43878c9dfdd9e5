package scheduler

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A slow recovery of one workspace does not delay another.
func TestWorkspaceRecoveryLocksPerDirectory(t *testing.T) {
	s, slow, other := &Scheduler{}, t.TempDir(), t.TempDir()
	leave, err := s.recoverLocks.Lock(t.Context(), slow)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.recoverWorkspace(ctx, other); err != nil {
		t.Errorf("recoverWorkspace of another workspace: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.recoverWorkspace(gone, slow); !errors.Is(err, context.Canceled) {
		t.Errorf("recoverWorkspace for a caller that left: %v, want %v", err, context.Canceled)
	}
	leave()
	if err := s.recoverWorkspace(ctx, slow); err != nil {
		t.Errorf("recoverWorkspace after the lock was released: %v", err)
	}
}
