package engine

import (
	"context"
	"errors"
	"log/slog"
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

// reloadable starts a service with three templates: default is ready, far lacks its image and odd
// is invalid.
func reloadable(t *testing.T) (*service, *shelf) {
	t.Helper()
	kept := &shelf{}
	kept.set(nil, from("default", here, 1), from("far", "not/there:1", 1), broken("odd"))
	s := newWorld(t).startOptions(t, func(o *Options) { o.Templates, o.LoadTemplates = nil, kept.load })
	s.lease(t)
	return s, kept
}

// template returns the template as an operator sees it.
func (s *service) template(t *testing.T, name string) v1.Template {
	t.Helper()
	got, err := s.Templates.Get(t.Context(), caller.Local(""), name)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestTemplatesShowWhyTheyAreNotReady(t *testing.T) {
	s, _ := reloadable(t)
	if d := s.template(t, "default"); d.State != "ready" || d.Error != "" || d.File != "/t/default.yaml" ||
		d.ReadyAt == nil {
		t.Errorf("Get(default) = %+v, want state ready with its file and no error", d)
	}
	if f := s.template(t, "far"); f.State != "not_ready" || !strings.Contains(f.Error, "not/there:1") ||
		f.ReadyAt != nil {
		t.Errorf("Get(far) = %+v, want state not_ready with an error that names the image", f)
	}
	if o := s.template(t, "odd"); o.State != "not_ready" || o.Error != "line 3 is bad" {
		t.Errorf("Get(odd) = %+v, want state not_ready with the error of its file", o)
	}
	you := caller.Principal{Caller: "you"}
	for _, c := range []struct {
		by   caller.Principal
		want string
	}{{caller.Local(""), "not/there:1"}, {you, "try again later"}} {
		_, err := s.Lease(t.Context(), c.by, v1.SandboxRequest{Template: "far"})
		if e, ok := errors.AsType[*usererror.InvalidError](err); !ok || e.Field != "template" ||
			!errdefs.IsUnavailable(err) ||
			!strings.Contains(e.Message, c.want) ||
			!strings.HasSuffix(e.Message, "; ready: default") {
			t.Errorf("Lease of template far: %v, want Unavailable with %q and the ready templates", err, c.want)
		}
	}
	if list := s.Templates.List(t.Context(), you); len(list) != 3 || list[1].Error != "" || list[1].File != "" {
		t.Errorf("List by another caller = %+v, want 3, the second without its error and file", list)
	}
	if _, err := s.Templates.ReloadFor(t.Context(), you); !errdefs.IsPermissionDenied(err) {
		t.Errorf("ReloadFor by another caller: %v, want PermissionDenied", err)
	}
}

func TestReloadAppliesChanges(t *testing.T) {
	s, kept := reloadable(t)
	op := caller.Local("")

	// An invalid version leaves the last good one in use; other templates change.
	kept.set(nil, broken("default"), from("odd", here, 0))
	got, err := s.Templates.ReloadFor(t.Context(), op)
	if err != nil || len(got.Added) != 1 || got.Added[0] != "odd" || len(got.Removed) != 1 || got.Removed[0] != "far" ||
		got.Failed["default"] != "line 3 is bad" {
		t.Errorf("ReloadFor = %+v, %v; want odd added, far removed and default failed", got, err)
	}
	if d := s.template(t, "default"); d.State != "ready" || d.Error != "line 3 is bad" || d.Image != here {
		t.Errorf("Get(default) = %+v, want state ready with image %s and the error of its file", d, here)
	}
	s.lease(t)

	// If the list is incomplete, no template is removed.
	kept.set(errors.New("the directory cannot be read"))
	if _, err := s.Templates.ReloadFor(t.Context(), op); err == nil {
		t.Error("ReloadFor of an unreadable directory succeeded, want an error")
	}
	s.lease(t)

	kept.set(nil, from("default", here, 3), from("odd", here, 0))
	got, err = s.Templates.ReloadFor(t.Context(), op)
	if err != nil || len(got.Resized) != 1 || len(got.Failed)+len(got.Added)+len(got.Changed)+len(got.Removed) != 0 {
		t.Errorf("ReloadFor of a new size = %+v, %v; want one resized", got, err)
	}
	if d := s.template(t, "default"); d.Error != "" || d.Pool.Min != 3 {
		t.Errorf("Get(default) = %+v, want a minimum of 3 and no error", d)
	}
	if got, err = s.Templates.ReloadFor(t.Context(), op); err != nil ||
		len(got.Resized)+len(got.Changed)+len(got.Failed) != 0 {
		t.Errorf("ReloadFor without a change = %+v, %v; want nothing changed", got, err)
	}
}

// A new image makes its template ready without a request.
func TestTemplateWaitsForImage(t *testing.T) {
	w := newWorld(t)
	kept := &shelf{}
	kept.set(nil, from("default", "other/image:1", 1))
	s := w.startOptions(t, func(o *Options) { o.Templates, o.LoadTemplates = nil, kept.load })
	if err := s.Templates.NotReady("default"); !errdefs.IsNotFound(err) {
		t.Fatalf("NotReady: %v, want NotFound", err)
	}
	if _, err := s.Images.Import(t.Context(), caller.Local(""), testenv.Rootfs(t), "other/image:1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the template is ready", func() bool { return s.Templates.NotReady("default") == nil })
	s.lease(t)
	if err := s.Images.Remove(t.Context(), caller.Local(""), "other/image:1"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Remove of an image in use: %v, want FailedPrecondition", err)
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
		t.Errorf("NotReady: %v, want FailedPrecondition that names class vm", err)
	}
}

func TestUserNamespaceIsRefusedOrLeftOutByDriversWithout(t *testing.T) {
	s, shelf := reloadable(t)
	must, may := from("must", here, 0), from("may", here, 0)
	must.Spec.UserNamespace, may.AutoUserNamespace = true, true
	shelf.set(nil, from("default", here, 0), must, may)
	if _, err := s.Templates.ReloadFor(t.Context(), caller.Local("")); err != nil {
		t.Fatal(err)
	}
	if got := s.template(t, "must"); got.State != "not_ready" || !strings.Contains(got.Error, "user_namespace: runtime") {
		t.Errorf("template that needs user namespaces = %+v, want not_ready because of user_namespace", got)
	}
	if got := s.template(t, "may"); got.State != "ready" || got.UserNamespace {
		t.Errorf("template that may have user namespaces = %+v, want ready without", got)
	}
}

// logLines collects what a logger writes.
type logLines chan string

func (l logLines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestTemplateThatFallsBackToNoUserNamespaceIsLogged(t *testing.T) {
	warned, kept := make(logLines, 100), &shelf{}
	may := from("may", here, 0)
	may.AutoUserNamespace = true
	kept.set(nil, from("default", here, 0), may)
	newWorld(t).startOptions(t, func(o *Options) {
		o.Templates, o.LoadTemplates = nil, kept.load
		o.Log = slog.New(slog.NewTextHandler(warned, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	var lines []string
	for len(warned) > 0 {
		lines = append(lines, <-warned)
	}
	got := strings.Join(lines, "")
	if strings.Count(got, "without user namespaces") != 1 || !strings.Contains(got, "template=may") {
		t.Errorf("warnings = %q, want one that template may works without user namespaces", got)
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
			t.Fatalf("waited 30 seconds, want: %s", what)
		}
	}
	wait("the slow one is asked", began)
	kept.set(nil, from("default", here, 1), from("slow", "slow/image:1", 1), from("quick", "quick/image:1", 1))
	if _, err := s.Templates.ReloadFor(t.Context(), caller.Local("")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the quick one is ready", func() bool { return s.Templates.NotReady("quick") == nil })
	if s.Templates.NotReady("slow") == nil {
		t.Error("template slow is ready, want not ready")
	}
	kept.set(nil, from("default", here, 1))
	if _, err := s.Templates.ReloadFor(t.Context(), caller.Local("")); err != nil {
		t.Fatal(err)
	}
	wait("the slow one is let go", ended)
}
