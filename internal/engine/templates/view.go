package templates

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// States of a template in the API.
const (
	Ready    = "ready"
	NotReady = "not_ready"
)

// Default returns the name of the template that serves requests which name none.
func (s *Service) Default() string { return s.opts.DefaultTemplate }

// List describes all templates, sorted by name.
func (s *Service) List(_ context.Context, p caller.Principal) []v1.Template {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]v1.Template, 0, len(s.known))
	for _, name := range slices.Sorted(maps.Keys(s.known)) {
		out = append(out, s.presentTemplate(p, s.known[name]))
	}
	return out
}

// Get describes a template.
func (s *Service) Get(_ context.Context, p caller.Principal, name string) (v1.Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.known[name]
	if t == nil {
		return v1.Template{}, usererror.Errorf(
			errdefs.ErrNotFound,
			"template %q not found: use one of %s",
			name,
			strings.Join(slices.Sorted(maps.Keys(s.known)), ", "),
		)
	}
	return s.presentTemplate(p, t), nil
}

// ReloadFor calls Reload. Only operators may call it.
func (s *Service) ReloadFor(ctx context.Context, p caller.Principal) (v1.TemplateReload, error) {
	if err := p.Operate("reload templates"); err != nil {
		return v1.TemplateReload{}, err
	}
	r, err := s.Reload(ctx)
	out := v1.TemplateReload{
		Added: nonNil(
			r.Added,
		), Changed: nonNil(r.Changed), Resized: nonNil(r.Resized), Removed: nonNil(r.Removed), Failed: map[string]string{},
	}
	for name, why := range r.Failed {
		out.Failed[name] = singleLine(why)
	}
	return out, err
}

func nonNil(names []string) []string { return append([]string{}, names...) }

// presentTemplate converts the version in use, or else the configured one, to its API form. The
// caller holds templates.mu.
func (s *Service) presentTemplate(p caller.Principal, t *template) v1.Template {
	shown, state := t.want.Template, NotReady
	live, ready := s.sched.Template(t.want.Name)
	if ready {
		shown, state = live, Ready
	}
	out := describe(shown)
	out.State = state
	if ready {
		since := t.since.UTC()
		out.ReadyAt = &since
	}
	if p.Operator {
		out.File = t.want.File
		if t.err != nil {
			out.Error = singleLine(t.err)
		}
	}
	return out
}

func describe(t scheduler.Template) v1.Template {
	l, p := t.Spec.Limits, t.Pool
	out := v1.Template{
		Name: t.Name, Image: t.Spec.Image.Ref, ImageID: t.Spec.Image.ID, Class: string(t.Spec.Class.OrDefault()), Entrypoint: t.Spec.Entrypoint,
		UserNamespace: t.Spec.UserNamespace,
		Limits: v1.Limits{
			MemoryBytes:  l.MemoryBytes,
			CPUs:         l.CPUs,
			Pids:         l.Pids,
			TmpBytes:     l.TmpBytes,
			ScratchBytes: l.ScratchBytes,
			OpenFiles:    l.OpenFiles,
		},
		Tmpfs: t.Spec.Tmpfs, Ulimits: t.Spec.Ulimits, Env: slices.Sorted(maps.Keys(t.Env)), User: t.User,
		Pool: v1.PoolSettings{
			Min:      p.Min,
			Max:      p.Max,
			Rate:     p.Rate,
			Parallel: p.Parallel,
			MaxAgeMS: p.MaxAge.Milliseconds(),
			SettleMS: p.RefillDelay.Milliseconds(),
			Adaptive: p.Adaptive,
		},
	}
	for _, h := range t.Warmup {
		out.Warmup = append(
			out.Warmup,
			v1.WarmupHook{Argv: h.Argv, TimeoutMS: h.Timeout.Milliseconds(), Background: h.Background},
		)
	}
	return out
}
