package service

import (
	"log/slog"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

func TestOwnerChangeDuringStartFails(t *testing.T) {
	dir := t.TempDir()
	s := &service{config: config.Config{StateDir: dir}, log: slog.New(slog.DiscardHandler), owner: "oearlier"}
	if _, err := store.EnsureOwner(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if st, err := s.openState(t.Context(), dir); !errdefs.IsUnavailable(err) {
		t.Errorf("openState = %v, %v; want Unavailable", st, err)
	}
}
