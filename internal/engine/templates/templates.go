// Package templates keeps the configured templates ready: it resolves their images, reloads them
// and retries those that are not ready.
package templates

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/eventhub"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Limits of the backoff for templates that are not ready.
const (
	retryMin = 2 * time.Second
	retryMax = time.Minute
)

// Source is a template from the configuration. It is complete except for its image's ID.
type Source struct {
	scheduler.Template
	// File is the template's file, or "" for a built-in template.
	File string
	// Err is the reason why the source is invalid. Only Name is set then.
	Err error
}

// Options configures a Service.
type Options struct {
	Driver runtime.Driver
	Images *images.Store
	Events *eventhub.Hub
	// Templates, LoadTemplates and FetchImage are those of the engine's options.
	Templates     []scheduler.Template
	LoadTemplates func() ([]Source, error)
	FetchImage    func(ctx context.Context, ref string) error
	// DefaultTemplate serves requests that name no template.
	DefaultTemplate string
	// MaxMemory is the memory of all sandboxes together, in bytes.
	MaxMemory int64
	Log       *slog.Logger
}

// Service keeps the configured templates ready for leases. It holds the state of all templates,
// ready or not. turn serializes changes. Its methods may be called concurrently after Use.
type Service struct {
	opts  Options
	sched *scheduler.Scheduler

	turn chan struct{} // a lock; capacity 1
	wake chan struct{} // requests a retry; capacity 1

	mu    sync.Mutex
	known map[string]*template
	err   error // the last error of LoadTemplates
}

// template is the state of one template. templates.mu guards it.
type template struct {
	want  Source
	since time.Time // when the version in use became ready; zero if there is none
	err   error     // why want is not in use
	seq   int       // counts changes of this state
	tries int
	next  time.Time // time of the next retry; zero: wait for a change
}

// New returns a Service without templates. Prepare reads them.
func New(opts Options) *Service {
	return &Service{opts: opts, turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), known: map[string]*template{}}
}

// Use sets the scheduler that gets the templates which become ready later.
func (s *Service) Use(sched *scheduler.Scheduler) { s.sched = sched }

// Lock keeps templates from changing until Unlock.
func (s *Service) Lock(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Unlock ends Lock.
func (s *Service) Unlock() { <-s.turn }

// RetryNow retries the templates that are not ready. It returns when those whose image is in the
// store have been tried, or when ctx ends. Run retries the others, and those that ctx left out.
func (s *Service) RetryNow(ctx context.Context) {
	for _, t := range s.dueTemplates(true) {
		if ctx.Err() == nil && !s.canFetch(t.want.Spec.Image.Ref) {
			s.retryTemplate(ctx, t)
		}
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Prepare prepares all templates and returns those that are ready. With Options.Templates, a
// template that is not ready is an error.
func (s *Service) Prepare(ctx context.Context) ([]scheduler.Template, error) {
	var sources []Source
	for _, t := range s.opts.Templates {
		sources = append(sources, Source{Template: t})
	}
	if s.opts.LoadTemplates != nil {
		list, err := s.opts.LoadTemplates()
		if sources = list; err != nil {
			s.err = err
			s.opts.Log.Error("failed to read all templates", "error", err)
		}
	}
	var ready []scheduler.Template
	for _, src := range sources {
		t, err := s.prepareSource(ctx, src)
		if err != nil && s.opts.LoadTemplates == nil {
			return nil, fmt.Errorf("template %s: %w", src.Name, err)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if s.noteTemplate(src, err); err == nil {
			ready = append(ready, t)
		}
	}
	return ready, nil
}

// prepareSource prepares a source's template for use.
func (s *Service) prepareSource(ctx context.Context, src Source) (scheduler.Template, error) {
	if src.Err != nil {
		return scheduler.Template{}, src.Err
	}
	t := src.Template
	err := s.prepare(ctx, &t)
	return t, err
}

// noteTemplate stores the outcome of preparing a source and schedules a retry after a failure. A
// new failure is logged and published.
func (s *Service) noteTemplate(src Source, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.known[src.Name]
	if t == nil {
		t = &template{}
		s.known[src.Name] = t
	}
	told := t.err != nil && err != nil && t.err.Error() == err.Error()
	t.want, t.err = src, err
	t.seq++
	if err == nil {
		t.since, t.tries, t.next = time.Now(), 0, time.Time{}
		return
	}
	t.next = time.Time{}
	if src.Err == nil { // The file is valid, so retry: the host is not ready.
		t.next = time.Now().Add(min(retryMax, retryMin<<min(t.tries, 10)))
		t.tries++
	}
	if !told {
		s.opts.Events.Publish(v1.ServiceEvent{Type: "template.not_ready", Template: src.Name, Reason: singleLine(err)})
		s.opts.Log.Error(
			"template not ready",
			"template",
			src.Name,
			"file",
			src.File,
			"version_in_use",
			!t.since.IsZero(),
			"error",
			err,
		)
	}
}

// Reload is the outcome of a reload, by template name.
type Reload struct {
	Added, Changed, Resized, Removed []string
	// Failed holds the templates whose new version is not in use, and why.
	Failed map[string]error
}

// Reload reads the templates again and applies the changes; see scheduler.Scheduler.Put and Drop.
// If a new version is invalid, the last good version stays in use. An error means that the list may
// be incomplete; then no template is removed. Reload is for signals and file watchers and checks no
// caller.
func (s *Service) Reload(ctx context.Context) (Reload, error) {
	r := Reload{Failed: map[string]error{}}
	if s.opts.LoadTemplates == nil {
		return r, usererror.Errorf(errdefs.ErrFailedPrecondition, "templates of this service cannot be reloaded")
	}
	if err := s.Lock(ctx); err != nil {
		return r, err
	}
	defer s.Unlock()
	sources, err := s.opts.LoadTemplates()
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	for _, src := range sources {
		s.reloadOne(ctx, src, &r)
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
	}
	if err != nil {
		s.opts.Log.Error("failed to read all templates", "error", err)
		return r, err
	}
	r.Removed = s.forgetOthers(sources)
	if len(r.Added)+len(r.Changed)+len(r.Resized)+len(r.Removed) > 0 {
		s.opts.Log.Info(
			"templates reloaded",
			"added",
			r.Added,
			"changed",
			r.Changed,
			"resized",
			r.Resized,
			"removed",
			r.Removed,
			"failed",
			len(r.Failed),
		)
	}
	return r, nil
}

func (s *Service) reloadOne(ctx context.Context, src Source, r *Reload) {
	t, err := s.prepareSource(ctx, src)
	if err != nil {
		s.noteTemplate(src, err)
		r.Failed[src.Name] = err
		return
	}
	change := s.sched.Put(t)
	if change == scheduler.Same && s.isReady(src) {
		return
	}
	s.noteTemplate(src, nil)
	switch change {
	case scheduler.Added:
		r.Added = append(r.Added, src.Name)
		s.opts.Events.Publish(v1.ServiceEvent{Type: "template.ready", Template: src.Name})
	case scheduler.Changed:
		r.Changed = append(r.Changed, src.Name)
		s.opts.Events.Publish(v1.ServiceEvent{Type: "template.changed", Template: src.Name})
	case scheduler.Resized:
		r.Resized = append(r.Resized, src.Name)
		s.opts.Events.Publish(v1.ServiceEvent{Type: "template.resized", Template: src.Name})
	case scheduler.Same: // the file may have moved or become valid again
	}
}

// isReady reports whether the source's state already says that it is ready.
func (s *Service) isReady(src Source) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.known[src.Name]
	return t != nil && t.err == nil && t.want.File == src.File
}

// forgetOthers removes the templates that are not among the sources.
func (s *Service) forgetOthers(sources []Source) (removed []string) {
	s.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(s.known)) {
		if !slices.ContainsFunc(sources, func(one Source) bool { return one.Name == name }) {
			delete(s.known, name)
			removed = append(removed, name)
		}
	}
	s.mu.Unlock()
	for _, name := range removed {
		s.sched.Drop(name)
		s.opts.Events.Publish(v1.ServiceEvent{Type: "template.removed", Template: name})
	}
	return removed
}

// Run retries templates that are not ready until ctx ends. Images are fetched
// concurrently, so that a slow registry delays only its own templates.
func (s *Service) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	fetching := map[string]context.CancelFunc{} // by image
	came := make(chan string)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		now := false
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			now = true
		case ref := <-came:
			fetching[ref]()
			delete(fetching, ref)
		case <-t.C:
		}
		s.cancelUnwantedFetches(fetching)
		for _, t := range s.dueTemplates(now) {
			ref := t.want.Spec.Image.Ref
			if fetching[ref] != nil {
				continue
			}
			if !s.canFetch(ref) {
				s.retryTemplate(ctx, t)
				continue
			}
			one, cancel := context.WithCancel(ctx)
			fetching[ref] = cancel
			work.Go(func() { // waited for above
				s.retryTemplate(one, t)
				select {
				case came <- ref:
				case <-ctx.Done():
					cancel()
				}
			})
		}
	}
}

// canFetch reports whether an image is missing and can be fetched.
func (s *Service) canFetch(ref string) bool {
	_, err := s.opts.Images.Resolve(ref)
	return s.opts.FetchImage != nil && errdefs.IsNotFound(err)
}

// cancelUnwantedFetches cancels the fetches that no template needs any more.
func (s *Service) cancelUnwantedFetches(fetching map[string]context.CancelFunc) {
	wanted := slices.Collect(maps.Values(s.WantedImages()))
	for ref, cancel := range fetching {
		if !slices.Contains(wanted, ref) {
			cancel()
		}
	}
}

// dueTemplates returns copies of the templates to retry now.
func (s *Service) dueTemplates(now bool) (out []template) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.known {
		if !t.next.IsZero() && (now || time.Now().After(t.next)) {
			out = append(out, *t)
		}
	}
	return out
}

// retryTemplate fetches a template's image if needed and prepares the template. It fetches without
// the lock.
func (s *Service) retryTemplate(ctx context.Context, was template) {
	src := was.want
	if s.canFetch(src.Spec.Image.Ref) {
		if err := s.opts.FetchImage(ctx, src.Spec.Image.Ref); err != nil {
			if ctx.Err() == nil && s.unchanged(was) {
				s.noteTemplate(src, err)
			}
			return
		}
	}
	if err := s.Lock(ctx); err != nil {
		return
	}
	defer s.Unlock()
	if !s.unchanged(was) {
		return // the template was reloaded during the fetch
	}
	t, err := s.prepareSource(ctx, src)
	if ctx.Err() != nil {
		return
	}
	if s.noteTemplate(src, err); err == nil {
		s.sched.Put(t)
		s.opts.Log.Info("template ready", "template", src.Name)
		s.opts.Events.Publish(v1.ServiceEvent{Type: "template.ready", Template: src.Name})
	}
}

// unchanged reports whether the template's state is the same as in was.
func (s *Service) unchanged(was template) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.known[was.want.Name]
	return t != nil && t.seq == was.seq
}

// NotReady returns why a template cannot be leased, or nil.
func (s *Service) NotReady(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.known[name]; t != nil && t.since.IsZero() {
		return t.err
	}
	return nil
}

// Check returns an *InvalidError if a template does not exist or is not ready. Only
// operators see why it is not ready.
func (s *Service) Check(p caller.Principal, name string) error {
	known := s.sched.Templates()
	if slices.Contains(known, name) {
		return nil
	}
	why := s.NotReady(name)
	if why == nil {
		return &usererror.InvalidError{
			Field:   "template",
			Message: fmt.Sprintf("%q is not known: %s", name, readyTemplates(known)),
			Class:   errdefs.ErrNotFound,
		}
	}
	text := "try again later"
	if p.Operator {
		text = strings.TrimSpace(singleLine(why))
	}
	return &usererror.InvalidError{
		Field:   "template",
		Message: fmt.Sprintf("%q is not ready: %s; %s", name, text, readyTemplates(known)),
		Class:   errdefs.ErrUnavailable,
	}
}

// readyTemplates says which templates can be used instead.
func readyTemplates(names []string) string {
	if len(names) == 0 {
		return "no template is ready"
	}
	return "ready: " + strings.Join(names, ", ")
}

func singleLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// Using returns the name of a template that uses the image, or "".
func (s *Service) Using(id string) string {
	for _, name := range s.sched.Templates() {
		if t, ok := s.sched.Template(name); ok && t.Spec.Image.ID == id {
			return name
		}
	}
	return ""
}

// WantedImages returns the image name of each valid template.
func (s *Service) WantedImages() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]string{}
	for name, known := range s.known {
		if known.want.Err == nil {
			out[name] = known.want.Spec.Image.Ref
		}
	}
	return out
}
