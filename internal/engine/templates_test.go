package engine

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/templates"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// shelf is the template source of a test.
type shelf struct {
	mu   sync.Mutex
	list []templates.Source
	err  error
}

func (s *shelf) set(err error, list ...templates.Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list, s.err = list, err
}

func (s *shelf) load() ([]templates.Source, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list, s.err
}

func from(name, image string, low int) templates.Source {
	return templates.Source{File: "/t/" + name + ".yaml", Template: scheduler.Template{
		Name: name, Spec: runtime.Spec{Image: runtime.Image{Ref: image}}, Pool: pool.Settings{Min: low, Max: 10, Rate: 1000, Parallel: 2},
	}}
}

func broken(name string) templates.Source {
	return templates.Source{
		File:     "/t/" + name + ".yaml",
		Template: scheduler.Template{Name: name},
		Err:      errors.New("line 3 is bad"),
	}
}

const here = "test/image:latest"

func TestReloadAppliesChanges(t *testing.T) {
	w := newWorld(t)
	kept := &shelf{}
	kept.set(nil, from("default", here, 1), from("far", "not/there:1", 1), broken("odd"))
	s := w.startOptions(t, func(o *Options) { o.Templates, o.LoadTemplates = nil, kept.load })
	op := caller.Local("")
	s.lease(t)
	show := func(name string) v1.Template {
		t.Helper()
		got, err := s.Templates.Get(t.Context(), op, name)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if d := show("default"); d.State != "ready" || d.Error != "" || d.File != "/t/default.yaml" || d.ReadyAt == nil {
		t.Errorf("%+v", d)
	}
	if f := show("far"); f.State != "not_ready" || !strings.Contains(f.Error, "not/there:1") || f.ReadyAt != nil {
		t.Errorf("%+v", f)
	}
	if o := show("odd"); o.State != "not_ready" || o.Error != "line 3 is bad" {
		t.Errorf("%+v", o)
	}
	for p, want := range map[*caller.Principal]string{&op: "not/there:1", {Caller: "you"}: "try again later"} {
		_, err := s.Lease(t.Context(), *p, v1.SandboxRequest{Template: "far"})
		if e, ok := errors.AsType[*usererror.InvalidError](err); !ok || e.Field != "template" ||
			!errdefs.IsUnavailable(err) ||
			!strings.Contains(e.Message, want) ||
			!strings.Contains(e.Message, "[default]") {
			t.Error(err)
		}
	}
	if list := s.Templates.List(t.Context(), caller.Principal{Caller: "you"}); len(list) != 3 || list[1].Error != "" ||
		list[1].File != "" {
		t.Errorf("for another: %+v", list)
	}
	if _, err := s.Templates.ReloadFor(t.Context(), caller.Principal{Caller: "you"}); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}

	// An invalid version leaves the last good one in use; other templates change.
	kept.set(nil, broken("default"), from("odd", here, 0))
	got, err := s.Templates.ReloadFor(t.Context(), op)
	if err != nil || len(got.Added) != 1 || got.Added[0] != "odd" || len(got.Removed) != 1 || got.Removed[0] != "far" ||
		got.Failed["default"] != "line 3 is bad" {
		t.Errorf("%+v, %v", got, err)
	}
	if d := show("default"); d.State != "ready" || d.Error != "line 3 is bad" || d.Image != here {
		t.Errorf("%+v", d)
	}
	s.lease(t)

	// If the list is incomplete, no template is removed.
	kept.set(errors.New("the directory cannot be read"))
	if _, err := s.Templates.ReloadFor(t.Context(), op); err == nil {
		t.Error("no error")
	}
	s.lease(t)

	kept.set(nil, from("default", here, 3), from("odd", here, 0))
	got, err = s.Templates.ReloadFor(t.Context(), op)
	if err != nil || len(got.Resized) != 1 || len(got.Failed)+len(got.Added)+len(got.Changed)+len(got.Removed) != 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if d := show("default"); d.Error != "" || d.Pool.Min != 3 {
		t.Errorf("%+v", d)
	}
	if got, err = s.Templates.ReloadFor(t.Context(), op); err != nil ||
		len(got.Resized)+len(got.Changed)+len(got.Failed) != 0 {
		t.Errorf("nothing changed: %+v, %v", got, err)
	}
}

// A new image makes its template ready without a request.
func TestTemplateWaitsForImage(t *testing.T) {
	w := newWorld(t)
	kept := &shelf{}
	kept.set(nil, from("default", "other/image:1", 1))
	s := w.startOptions(t, func(o *Options) { o.Templates, o.LoadTemplates = nil, kept.load })
	if err := s.Templates.NotReady("default"); !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	if _, err := s.Images.Import(t.Context(), caller.Local(""), testenv.Rootfs(t), "other/image:1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is ready", func() bool { return s.Templates.NotReady("default") == nil })
	s.lease(t)
	if err := s.Images.Remove(t.Context(), caller.Local(""), "other/image:1"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("an image in use: %v", err)
	}
}

func TestUnsupportedClassIsNotReady(t *testing.T) {
	w := newWorld(t)
	kept := &shelf{}
	strong := from("strong", here, 1)
	strong.Spec.Class = runtime.ClassVM
	kept.set(nil, from("default", here, 1), strong)
	s := w.startOptions(t, func(o *Options) { o.Templates, o.LoadTemplates = nil, kept.load })
	if err := s.Templates.NotReady("strong"); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "class vm") {
		t.Error(err)
	}
}

// A registry that never answers delays only its own template.
func TestSlowRegistryDelaysOnlyItsTemplates(t *testing.T) {
	w := newWorld(t)
	kept := &shelf{}
	kept.set(nil, from("default", here, 1), from("slow", "slow/image:1", 1))
	began, ended := make(chan struct{}, 1), make(chan struct{})
	s := w.startOptions(t, func(o *Options) {
		o.Templates, o.LoadTemplates = nil, kept.load
		o.FetchImage = func(ctx context.Context, ref string) error {
			if ref != "slow/image:1" {
				_, err := o.Images.Import(ctx, testenv.Rootfs(t), ref)
				return err
			}
			began <- struct{}{}
			<-ctx.Done()
			close(ended)
			return ctx.Err()
		}
	})
	wait := func(what string, c <-chan struct{}) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(30 * time.Second):
			t.Fatal("never: " + what)
		}
	}
	wait("the slow one is asked", began)
	kept.set(nil, from("default", here, 1), from("slow", "slow/image:1", 1), from("quick", "quick/image:1", 1))
	if _, err := s.Templates.ReloadFor(t.Context(), caller.Local("")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the quick one is ready", func() bool { return s.Templates.NotReady("quick") == nil })
	if s.Templates.NotReady("slow") == nil {
		t.Error("the slow one is ready")
	}
	kept.set(nil, from("default", here, 1))
	if _, err := s.Templates.ReloadFor(t.Context(), caller.Local("")); err != nil {
		t.Fatal(err)
	}
	wait("the slow one is let go", ended)
}
