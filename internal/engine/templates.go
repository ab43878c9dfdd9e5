package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Limits of the backoff for templates that are not ready.
const (
	retryMin = 2 * time.Second
	retryMax = time.Minute
)

// TemplateSource is a template from the configuration. It is complete except for its image's ID.
type TemplateSource struct {
	scheduler.Template
	// File is the template's file, or "" for a built-in template.
	File string
	// Err is the reason why the source is invalid. Only Name is set then.
	Err error
}

// templates holds the state of all templates, ready or not. turn serializes changes.
type templates struct {
	turn chan struct{} // a lock; capacity 1
	wake chan struct{} // requests a retry; capacity 1

	mu    sync.Mutex
	known map[string]*template
	err   error // the last error of LoadTemplates
}

// template is the state of one template. templates.mu guards it.
type template struct {
	want  TemplateSource
	since time.Time // when the version in use became ready; zero if there is none
	err   error     // why want is not in use
	seq   int       // counts changes of this state
	tries int
	next  time.Time // time of the next retry; zero: wait for a change
}

func newTemplates() *templates {
	return &templates{turn: make(chan struct{}, 1), wake: make(chan struct{}, 1), known: map[string]*template{}}
}

func (t *templates) lock(ctx context.Context) error {
	select {
	case t.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t *templates) unlock() { <-t.turn }

// retryNow retries the templates that are not ready.
func (t *templates) retryNow() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// openTemplates prepares all templates and returns those that are ready. With Options.Templates, a
// template that is not ready is an error.
func (e *Engine) openTemplates(ctx context.Context) ([]scheduler.Template, error) {
	var sources []TemplateSource
	for _, t := range e.opts.Templates {
		sources = append(sources, TemplateSource{Template: t})
	}
	if e.opts.LoadTemplates != nil {
		list, err := e.opts.LoadTemplates()
		if sources = list; err != nil {
			e.templates.err = err
			e.log.Error("failed to read all templates", "error", err)
		}
	}
	var ready []scheduler.Template
	for _, src := range sources {
		t, err := e.prepareSource(ctx, src)
		if err != nil && e.opts.LoadTemplates == nil {
			return nil, fmt.Errorf("template %s: %w", src.Name, err)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if e.noteTemplate(src, err); err == nil {
			ready = append(ready, t)
		}
	}
	return ready, nil
}

// prepareSource prepares a source's template for use.
func (e *Engine) prepareSource(ctx context.Context, src TemplateSource) (scheduler.Template, error) {
	if src.Err != nil {
		return scheduler.Template{}, src.Err
	}
	t := src.Template
	err := e.prepare(ctx, &t)
	return t, err
}

// noteTemplate stores the outcome of preparing a source and schedules a retry after a failure. A
// new failure is logged and published.
func (e *Engine) noteTemplate(src TemplateSource, err error) {
	e.templates.mu.Lock()
	defer e.templates.mu.Unlock()
	t := e.templates.known[src.Name]
	if t == nil {
		t = &template{}
		e.templates.known[src.Name] = t
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
		e.Events.Publish(v1.ServiceEvent{Type: "template.not_ready", Template: src.Name, Reason: singleLine(err)})
		e.log.Error("template not ready", "template", src.Name, "file", src.File, "version_in_use", !t.since.IsZero(), "error", err)
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
func (e *Engine) Reload(ctx context.Context) (Reload, error) {
	r := Reload{Failed: map[string]error{}}
	if e.opts.LoadTemplates == nil {
		return r, usererror.Errorf(errdefs.ErrFailedPrecondition, "templates of this service cannot be reloaded")
	}
	if err := e.templates.lock(ctx); err != nil {
		return r, err
	}
	defer e.templates.unlock()
	sources, err := e.opts.LoadTemplates()
	e.templates.mu.Lock()
	e.templates.err = err
	e.templates.mu.Unlock()
	for _, src := range sources {
		e.reloadOne(ctx, src, &r)
		if ctx.Err() != nil {
			return r, context.Cause(ctx)
		}
	}
	if err != nil {
		e.log.Error("failed to read all templates", "error", err)
		return r, err
	}
	r.Removed = e.forgetOthers(sources)
	if len(r.Added)+len(r.Changed)+len(r.Resized)+len(r.Removed) > 0 {
		e.log.Info("templates reloaded", "added", r.Added, "changed", r.Changed, "resized", r.Resized, "removed", r.Removed, "failed", len(r.Failed))
	}
	return r, nil
}

func (e *Engine) reloadOne(ctx context.Context, src TemplateSource, r *Reload) {
	t, err := e.prepareSource(ctx, src)
	if err != nil {
		e.noteTemplate(src, err)
		r.Failed[src.Name] = err
		return
	}
	change := e.sched.Put(t)
	if change == scheduler.Same && e.isReady(src) {
		return
	}
	e.noteTemplate(src, nil)
	switch change {
	case scheduler.Added:
		r.Added = append(r.Added, src.Name)
		e.Events.Publish(v1.ServiceEvent{Type: "template.ready", Template: src.Name})
	case scheduler.Changed:
		r.Changed = append(r.Changed, src.Name)
		e.Events.Publish(v1.ServiceEvent{Type: "template.changed", Template: src.Name})
	case scheduler.Resized:
		r.Resized = append(r.Resized, src.Name)
		e.Events.Publish(v1.ServiceEvent{Type: "template.resized", Template: src.Name})
	case scheduler.Same: // the file may have moved or become valid again
	}
}

// isReady reports whether the source's state already says that it is ready.
func (e *Engine) isReady(src TemplateSource) bool {
	e.templates.mu.Lock()
	defer e.templates.mu.Unlock()
	t := e.templates.known[src.Name]
	return t != nil && t.err == nil && t.want.File == src.File
}

// forgetOthers removes the templates that are not among the sources.
func (e *Engine) forgetOthers(sources []TemplateSource) (removed []string) {
	e.templates.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(e.templates.known)) {
		if !slices.ContainsFunc(sources, func(s TemplateSource) bool { return s.Name == name }) {
			delete(e.templates.known, name)
			removed = append(removed, name)
		}
	}
	e.templates.mu.Unlock()
	for _, name := range removed {
		e.sched.Drop(name)
		e.Events.Publish(v1.ServiceEvent{Type: "template.removed", Template: name})
	}
	return removed
}

// runTemplates retries templates that are not ready until ctx ends. Images are fetched
// concurrently, so that a slow registry delays only its own templates.
func (e *Engine) runTemplates(ctx context.Context) error {
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
		case <-e.templates.wake:
			now = true
		case ref := <-came:
			fetching[ref]()
			delete(fetching, ref)
		case <-t.C:
		}
		e.cancelUnwantedFetches(fetching)
		for _, t := range e.dueTemplates(now) {
			ref := t.want.Spec.Image.Ref
			if fetching[ref] != nil {
				continue
			}
			if !e.canFetch(ref) {
				e.retryTemplate(ctx, t)
				continue
			}
			one, cancel := context.WithCancel(ctx)
			fetching[ref] = cancel
			work.Go(func() { // waited for above
				e.retryTemplate(one, t)
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
func (e *Engine) canFetch(ref string) bool {
	_, err := e.opts.Images.Resolve(ref)
	return e.opts.FetchImage != nil && errdefs.IsNotFound(err)
}

// cancelUnwantedFetches cancels the fetches that no template needs any more.
func (e *Engine) cancelUnwantedFetches(fetching map[string]context.CancelFunc) {
	wanted := slices.Collect(maps.Values(e.templates.images()))
	for ref, cancel := range fetching {
		if !slices.Contains(wanted, ref) {
			cancel()
		}
	}
}

// dueTemplates returns copies of the templates to retry now.
func (e *Engine) dueTemplates(now bool) (out []template) {
	e.templates.mu.Lock()
	defer e.templates.mu.Unlock()
	for _, t := range e.templates.known {
		if !t.next.IsZero() && (now || time.Now().After(t.next)) {
			out = append(out, *t)
		}
	}
	return out
}

// retryTemplate fetches a template's image if needed and prepares the template. It fetches without
// the lock.
func (e *Engine) retryTemplate(ctx context.Context, was template) {
	src := was.want
	if e.canFetch(src.Spec.Image.Ref) {
		if err := e.opts.FetchImage(ctx, src.Spec.Image.Ref); err != nil {
			if ctx.Err() == nil && e.unchanged(was) {
				e.noteTemplate(src, err)
			}
			return
		}
	}
	if err := e.templates.lock(ctx); err != nil {
		return
	}
	defer e.templates.unlock()
	if !e.unchanged(was) {
		return // the template was reloaded during the fetch
	}
	t, err := e.prepareSource(ctx, src)
	if ctx.Err() != nil {
		return
	}
	if e.noteTemplate(src, err); err == nil {
		e.sched.Put(t)
		e.log.Info("template ready", "template", src.Name)
		e.Events.Publish(v1.ServiceEvent{Type: "template.ready", Template: src.Name})
	}
}

// unchanged reports whether the template's state is the same as in was.
func (e *Engine) unchanged(was template) bool {
	e.templates.mu.Lock()
	defer e.templates.mu.Unlock()
	t := e.templates.known[was.want.Name]
	return t != nil && t.seq == was.seq
}

// NotReady returns why a template cannot be leased, or nil.
func (e *Engine) NotReady(name string) error {
	e.templates.mu.Lock()
	defer e.templates.mu.Unlock()
	if t := e.templates.known[name]; t != nil && t.since.IsZero() {
		return t.err
	}
	return nil
}

// checkTemplate returns an *InvalidError if a template does not exist or is not ready. Only
// operators see why it is not ready.
func (e *Engine) checkTemplate(p caller.Principal, name string) error {
	known := e.sched.Templates()
	if slices.Contains(known, name) {
		return nil
	}
	why := e.NotReady(name)
	if why == nil {
		return &usererror.InvalidError{Field: "template", Message: fmt.Sprintf("%q is not known: use one of %v", name, known), Class: errdefs.ErrNotFound}
	}
	text := "try again later"
	if p.Operator {
		text = strings.TrimSpace(singleLine(why))
	}
	return &usererror.InvalidError{Field: "template", Message: fmt.Sprintf("%q is not ready: %s; ready are %v", name, text, known), Class: errdefs.ErrUnavailable}
}

func singleLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// templateUsing returns the name of a template that uses the image, or "".
func (e *Engine) templateUsing(id string) string {
	for _, name := range e.sched.Templates() {
		if t, ok := e.sched.Template(name); ok && t.Spec.Image.ID == id {
			return name
		}
	}
	return ""
}
