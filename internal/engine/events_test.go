package engine

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/eventhub"
)

var errEnough = errors.New("enough")

// upTo collects the types of events up to the event last.
func (s *service) upTo(t *testing.T, p caller.Principal, q eventhub.Query, last string) (kinds []string, at int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	q.Follow = true
	err := s.Events.Watch(ctx, p, q, func(e v1.ServiceEvent) error {
		kinds, at = append(kinds, e.Type), e.ID
		if e.Type == last {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		t.Fatalf("Watch: %v after %v, want %v", err, kinds, errEnough)
	}
	return kinds, at
}

func TestEventsReportSandboxLifecycle(t *testing.T) {
	s := newWorld(t).start(t)
	op := caller.Local("")
	id := s.lease(t)
	sh := s.startX(t, id)
	kinds, at := s.upTo(t, op, eventhub.Query{}, "shell.started")
	for _, want := range []string{"sandbox.creating", "sandbox.leased"} {
		if !slices.Contains(kinds, want) {
			t.Errorf("events = %v, want %s among them", kinds, want)
		}
	}
	if err := s.Remove(t.Context(), me, id); err != nil {
		t.Fatal(err)
	}
	var mine []string
	own := caller.Principal{Caller: caller.LocalCaller}
	err := s.Events.Watch(t.Context(), own, eventhub.Query{After: at}, func(e v1.ServiceEvent) error {
		if e.Sandbox != id || e.Caller != caller.LocalCaller || e.Type == "shell.ended" && e.Shell != sh.ID ||
			e.Type == "sandbox.gone" && e.Reason != "removed" {
			t.Errorf("event = %+v, want one of sandbox %s, shell %s, reason removed", e, id, sh.ID)
		}
		mine = append(mine, e.Type)
		return nil
	})
	wantKinds := []string{"sandbox.stopping", "shell.ended", "sandbox.gone"}
	if err != nil || !slices.Equal(mine, wantKinds) {
		t.Errorf("Watch = %v after %v; want no error after %v", err, mine, wantKinds)
	}
	if err := s.Events.Watch(t.Context(), caller.Principal{Caller: "you"}, eventhub.Query{},
		func(e v1.ServiceEvent) error { t.Errorf("another caller got %+v, want no event", e); return nil }); err != nil {
		t.Error(err)
	}
	if err := s.Events.Watch(t.Context(), op, eventhub.Query{Since: time.Now().Add(time.Hour)},
		func(e v1.ServiceEvent) error { t.Errorf("got %+v, want no event that old", e); return nil }); err != nil {
		t.Error(err)
	}
}
