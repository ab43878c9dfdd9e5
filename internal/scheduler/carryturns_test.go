package scheduler

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Whose workspace takes long to be made good keeps nobody else from theirs.
func TestCarriedWorkspacesAreRecoveredBesideOneAnother(t *testing.T) {
	s, slow, other := &Scheduler{}, t.TempDir(), t.TempDir()
	leave, err := recovering.enter(t.Context(), slow)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.recoverCarried(ctx, other); err != nil {
		t.Errorf("another workspace: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.recoverCarried(gone, slow); !errors.Is(err, context.Canceled) {
		t.Errorf("who has gone still waits: %v", err)
	}
	leave()
	if err := s.recoverCarried(ctx, slow); err != nil {
		t.Errorf("after that: %v", err)
	}
	if len(recovering.taken) != 0 {
		t.Errorf("%d turns are left", len(recovering.taken))
	}
}
