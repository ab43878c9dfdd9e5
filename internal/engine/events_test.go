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
		t.Fatalf("%v after %v", err, kinds)
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
			t.Errorf("no %s in %v", want, kinds)
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
			t.Errorf("%+v", e)
		}
		mine = append(mine, e.Type)
		return nil
	})
	if err != nil || !slices.Equal(mine, []string{"sandbox.stopping", "shell.ended", "sandbox.gone"}) {
		t.Errorf("%v, %v", mine, err)
	}
	if err := s.Events.Watch(t.Context(), caller.Principal{Caller: "you"}, eventhub.Query{},
		func(e v1.ServiceEvent) error { t.Errorf("another is told %+v", e); return nil }); err != nil {
		t.Error(err)
	}
	if err := s.Events.Watch(t.Context(), op, eventhub.Query{Since: time.Now().Add(time.Hour)},
		func(e v1.ServiceEvent) error { t.Errorf("too old: %+v", e); return nil }); err != nil {
		t.Error(err)
	}
}
