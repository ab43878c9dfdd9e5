package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

var errEnough = errors.New("enough")

// upTo collects the types of events up to the event last.
func (s *service) upTo(t *testing.T, p Principal, q EventQuery, last string) (kinds []string, at int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	q.Follow = true
	err := s.Events(ctx, p, q, func(e v1.ServiceEvent) error {
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
	op := Local("")
	id := s.lease(t)
	sh, err := s.StartShell(t.Context(), me, id, v1.ShellRequest{Exec: v1.Exec{Argv: []string{"x"}}})
	if err != nil {
		t.Fatal(err)
	}
	kinds, at := s.upTo(t, op, EventQuery{}, "shell.started")
	for _, want := range []string{"sandbox.creating", "sandbox.leased"} {
		if !slices.Contains(kinds, want) {
			t.Errorf("no %s in %v", want, kinds)
		}
	}
	if err := s.Remove(t.Context(), me, id); err != nil {
		t.Fatal(err)
	}
	var mine []string
	own := Principal{Caller: LocalCaller}
	err = s.Events(t.Context(), own, EventQuery{After: at}, func(e v1.ServiceEvent) error {
		if e.Sandbox != id || e.Caller != LocalCaller || e.Type == "shell.ended" && e.Shell != sh.ID || e.Type == "sandbox.gone" && e.Reason != "removed" {
			t.Errorf("%+v", e)
		}
		mine = append(mine, e.Type)
		return nil
	})
	if err != nil || !slices.Equal(mine, []string{"sandbox.stopping", "shell.ended", "sandbox.gone"}) {
		t.Errorf("%v, %v", mine, err)
	}
	if err := s.Events(t.Context(), Principal{Caller: "you"}, EventQuery{}, func(e v1.ServiceEvent) error { t.Errorf("another is told %+v", e); return nil }); err != nil {
		t.Error(err)
	}
	if err := s.Events(t.Context(), op, EventQuery{Since: time.Now().Add(time.Hour)}, func(e v1.ServiceEvent) error { t.Errorf("too old: %+v", e); return nil }); err != nil {
		t.Error(err)
	}
}

// A slow reader gets a gap event and continues.
func TestSlowEventReaderGetsGap(t *testing.T) {
	e := &Engine{events: newEventHub()}
	op := Local("")
	e.events.publish(v1.ServiceEvent{Type: "first"})
	seen, gaps, last := 0, 0, int64(0)
	err := e.Events(t.Context(), op, EventQuery{Follow: true}, func(ev v1.ServiceEvent) error {
		if ev.ID <= last {
			t.Fatalf("%d after %d", ev.ID, last)
		}
		last = ev.ID
		switch ev.Type {
		case "first":
			for range 2 * maxEvents {
				e.events.publish(v1.ServiceEvent{Type: "many"})
			}
			e.events.publish(v1.ServiceEvent{Type: "end"})
		case "gap":
			gaps++
		case "many":
			seen++
		case "end":
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) || gaps != 1 || seen != maxEvents-1 {
		t.Errorf("%v, %d gaps, %d seen", err, gaps, seen)
	}
	// A position of an earlier process, and one of a clock that was ahead.
	for _, id := range []int64{5, last + 1e12} {
		var first string
		if err := e.Events(t.Context(), op, EventQuery{After: id}, func(ev v1.ServiceEvent) error { first = ev.Type; return errEnough }); !errors.Is(err, errEnough) || first != "gap" {
			t.Errorf("after %d: %q, %v", id, first, err)
		}
	}
	if err := e.Events(t.Context(), op, EventQuery{After: -1}, func(ev v1.ServiceEvent) error { t.Errorf("told %+v", ev); return nil }); err != nil {
		t.Error(err)
	}
}

// The events and shells of one caller do not displace another's events.
func TestEventsOfOneCallerKeepOthers(t *testing.T) {
	e := &Engine{events: newEventHub()}
	list := func(p Principal, after int64) (kinds []string, last int64) {
		t.Helper()
		err := e.Events(t.Context(), p, EventQuery{After: after}, func(ev v1.ServiceEvent) error {
			if !p.Operator && ev.Type != "gap" && ev.Caller != p.Caller {
				t.Errorf("%s is told %+v", p.Caller, ev)
			}
			kinds, last = append(kinds, ev.Type), ev.ID
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return kinds, last
	}
	ann, hog := Principal{Caller: "ann"}, Principal{Caller: "hog"}
	e.events.publish(v1.ServiceEvent{Type: "shell.started", Caller: "ann", Sandbox: "a", Shell: "s"})
	e.events.publish(v1.ServiceEvent{Type: "first", Caller: "hog"})
	_, first := list(hog, 0)
	for i := range 2 * maxOpen {
		e.events.publish(v1.ServiceEvent{Type: "shell.started", Caller: "hog", Sandbox: "h", Shell: fmt.Sprint("h", i)})
	}
	if kinds, _ := list(ann, first-2); !slices.Equal(kinds, []string{"shell.started"}) {
		t.Errorf("another caller is told %v", kinds)
	}
	kinds, last := list(hog, first)
	if len(kinds) != maxEvents || kinds[0] != "gap" || kinds[1] != "shell.started" {
		t.Errorf("the caller itself is told %d events, %.40v", len(kinds), kinds)
	}
	if kinds, _ := list(Local(""), first); len(kinds) != maxEvents || kinds[0] != "gap" {
		t.Errorf("operators are told %d events, %.40v", len(kinds), kinds)
	}
	if n := e.events.events.Len(); n != maxEvents {
		t.Errorf("%d events are kept, want %d", n, maxEvents)
	}
	e.events.publish(v1.ServiceEvent{Type: "shell.started", Caller: "ann", Sandbox: "a", Shell: "t"})
	e.events.publish(v1.ServiceEvent{Type: "shell.ended", Shell: "t"})
	e.events.publish(v1.ServiceEvent{Type: "sandbox.gone", Caller: "ann", Sandbox: "a"})
	if kinds, _ := list(ann, last); !slices.Equal(kinds, []string{"shell.started", "shell.ended", "shell.ended", "sandbox.gone"}) {
		t.Errorf("of shells with others' around, another caller is told %v", kinds)
	}
	e.events.publish(v1.ServiceEvent{Type: "sandbox.gone", Caller: "hog", Sandbox: "h"})
	if len(e.events.open) != 0 || len(e.events.openOf) != 0 {
		t.Errorf("%d shells of %d callers are still waited for", len(e.events.open), len(e.events.openOf))
	}
}

// A caller without events gets at most one gap event.
func TestEventGapIsReportedOnce(t *testing.T) {
	e := &Engine{events: newEventHub()}
	gaps := 0
	err := e.Events(t.Context(), Principal{Caller: "ann"}, EventQuery{After: 5, Follow: true}, func(ev v1.ServiceEvent) error {
		if ev.Type != "gap" {
			return errEnough
		}
		gaps++
		e.events.publish(v1.ServiceEvent{Type: "x", Caller: "bob"})
		if gaps == 1 {
			e.events.publish(v1.ServiceEvent{Type: "x", Caller: "ann"})
		}
		return nil
	})
	if !errors.Is(err, errEnough) || gaps != 1 {
		t.Errorf("%v, told %d times", err, gaps)
	}
}
