package eventhub

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

var errEnough = errors.New("enough")

// A slow reader gets a gap event and continues.
func TestSlowEventReaderGetsGap(t *testing.T) {
	h := New()
	op := caller.Local("")
	h.Publish(v1.ServiceEvent{Type: "first"})
	seen, gaps, last := 0, 0, int64(0)
	err := h.Watch(t.Context(), op, Query{Follow: true}, func(ev v1.ServiceEvent) error {
		if ev.ID <= last {
			t.Fatalf("event id = %d, want more than %d", ev.ID, last)
		}
		last = ev.ID
		switch ev.Type {
		case "first":
			for range 2 * maxEvents {
				h.Publish(v1.ServiceEvent{Type: "many"})
			}
			h.Publish(v1.ServiceEvent{Type: "end"})
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
		t.Errorf("Watch: %v, %d gaps, %d events; want %v, 1, %d", err, gaps, seen, errEnough, maxEvents-1)
	}
	// A position of an earlier process, and one of a clock that was ahead.
	for _, id := range []int64{5, last + 1e12} {
		var first string
		err := h.Watch(t.Context(), op, Query{After: id}, func(ev v1.ServiceEvent) error {
			first = ev.Type
			return errEnough
		})
		if !errors.Is(err, errEnough) || first != "gap" {
			t.Errorf("Watch after %d: first event %q, %v; want gap, %v", id, first, err, errEnough)
		}
	}
	if err := h.Watch(t.Context(), op, Query{After: -1}, func(ev v1.ServiceEvent) error {
		t.Errorf("Watch after -1 sent %+v, want no event", ev)
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// The events and shells of one caller do not displace another's events.
func TestEventsOfOneCallerKeepOthers(t *testing.T) {
	h := New()
	list := func(p caller.Principal, after int64) (kinds []string, last int64) {
		t.Helper()
		err := h.Watch(t.Context(), p, Query{After: after}, func(ev v1.ServiceEvent) error {
			if !p.Operator && ev.Type != "gap" && ev.Caller != p.Caller {
				t.Errorf("%s got %+v, want only its own events", p.Caller, ev)
			}
			kinds, last = append(kinds, ev.Type), ev.ID
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return kinds, last
	}
	ann, hog := caller.Principal{Caller: "ann"}, caller.Principal{Caller: "hog"}
	h.Publish(v1.ServiceEvent{Type: "shell.started", Caller: "ann", Sandbox: "a", Shell: "s"})
	h.Publish(v1.ServiceEvent{Type: "first", Caller: "hog"})
	_, first := list(hog, 0)
	for i := range 2 * maxOpen {
		h.Publish(v1.ServiceEvent{Type: "shell.started", Caller: "hog", Sandbox: "h", Shell: fmt.Sprint("h", i)})
	}
	if kinds, _ := list(ann, first-2); !slices.Equal(kinds, []string{"shell.started"}) {
		t.Errorf("events of another caller = %v, want only shell.started", kinds)
	}
	kinds, last := list(hog, first)
	if len(kinds) != maxEvents || kinds[0] != "gap" || kinds[1] != "shell.started" {
		t.Errorf("the caller got %d events, first %.40v; want %d: gap, shell.started", len(kinds), kinds, maxEvents)
	}
	if kinds, _ := list(caller.Local(""), first); len(kinds) != maxEvents || kinds[0] != "gap" {
		t.Errorf("operators got %d events, first %.40v; want %d with gap first", len(kinds), kinds, maxEvents)
	}
	if n := h.events.Len(); n != maxEvents {
		t.Errorf("%d events are kept, want %d", n, maxEvents)
	}
	h.Publish(v1.ServiceEvent{Type: "shell.started", Caller: "ann", Sandbox: "a", Shell: "t"})
	h.Publish(v1.ServiceEvent{Type: "shell.ended", Shell: "t"})
	h.Publish(v1.ServiceEvent{Type: "sandbox.gone", Caller: "ann", Sandbox: "a"})
	want := []string{"shell.started", "shell.ended", "shell.ended", "sandbox.gone"}
	if kinds, _ := list(ann, last); !slices.Equal(kinds, want) {
		t.Errorf("events of another caller among others' shells = %v, want %v", kinds, want)
	}
	h.Publish(v1.ServiceEvent{Type: "sandbox.gone", Caller: "hog", Sandbox: "h"})
	if len(h.open) != 0 || len(h.openOf) != 0 {
		t.Errorf("%d open shells of %d callers are kept, want 0", len(h.open), len(h.openOf))
	}
}

// A caller without events gets at most one gap event.
func TestEventGapIsReportedOnce(t *testing.T) {
	h := New()
	gaps := 0
	err := h.Watch(
		t.Context(),
		caller.Principal{Caller: "ann"},
		Query{After: 5, Follow: true},
		func(ev v1.ServiceEvent) error {
			if ev.Type != "gap" {
				return errEnough
			}
			gaps++
			h.Publish(v1.ServiceEvent{Type: "x", Caller: "bob"})
			if gaps == 1 {
				h.Publish(v1.ServiceEvent{Type: "x", Caller: "ann"})
			}
			return nil
		},
	)
	if !errors.Is(err, errEnough) || gaps != 1 {
		t.Errorf("Watch: %v, %d gaps; want %v, 1", err, gaps, errEnough)
	}
}
