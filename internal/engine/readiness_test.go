package engine

import (
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
)

// states returns "NAME STATE" of each template, and the error of Ready.
func (s *service) states(t *testing.T, p caller.Principal) (string, error) {
	t.Helper()
	list, err := s.Ready(t.Context(), p)
	words := make([]string, 0, len(list))
	for _, one := range list {
		words = append(words, one.Name+" "+one.State)
	}
	return strings.Join(words, ", "), err
}

func TestReadyNeedsOneUsableTemplate(t *testing.T) {
	w := newWorld(t)
	kept := &shelf{}
	kept.set(nil, from("default", "not/there:1", 1), broken("odd"))
	s := w.startOptions(t, func(o *Options) { o.Templates, o.LoadTemplates = nil, kept.load })
	eventually(t, "the service runs", func() bool {
		list, _ := s.Ready(t.Context(), me)
		return len(list) > 0
	})
	got, err := s.states(t, caller.Local(""))
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "not/there:1") ||
		got != "default not_ready, odd not_ready" {
		t.Errorf("Ready without an image = %s, %v; want Unavailable that names the image", got, err)
	}
	if _, err = s.Ready(t.Context(), caller.Principal{}); err == nil || strings.Contains(err.Error(), "not/there:1") {
		t.Errorf("Ready for an unknown client: %v, want an error without the reason", err)
	}
	// The import returns when the template can be leased.
	if _, err := s.Images.Import(t.Context(), caller.Local(""), otherArchive(t), "not/there:1"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.states(t, me); err != nil || got != "default ready, odd not_ready" {
		t.Errorf("Ready right after the import = %s, %v; want one template ready", got, err)
	}
	s.HandOver()
	if _, err := s.Ready(t.Context(), me); !errdefs.IsUnavailable(err) {
		t.Errorf("Ready during a hand-over: %v, want Unavailable", err)
	}
}

// Sandboxes that callers have still serve them, so failed creations count only without any.
func TestReadyCountsFailedCreations(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	held := s.lease(t)
	w.host.SetHook(fake.Fail(errors.New("the engine is broken"), -1, fake.OpCreate))
	for {
		row, err := s.Lease(t.Context(), me, v1.SandboxRequest{WhenEmpty: string(pool.Wait)})
		if err != nil {
			break
		}
		if err := s.Remove(t.Context(), me, row.ID); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the template is failing", func() bool {
		got, err := s.states(t, me)
		return got == "default failing" && err == nil
	})
	if err := s.Remove(t.Context(), me, held); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the service is not ready", func() bool {
		_, err := s.states(t, caller.Local(""))
		return errdefs.IsUnavailable(err) && strings.Contains(err.Error(), "the engine is broken")
	})
	w.host.SetHook(nil)
	eventually(t, "the service is ready again", func() bool {
		got, err := s.states(t, me)
		return got == "default ready" && err == nil
	})
}
