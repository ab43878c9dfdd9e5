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
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Times of templates that are not ready.
const (
	retryMin = 2 * time.Second
	retryMax = time.Minute
)

// TemplateSource is a template as it was found where templates are kept. It is
// complete but for its image's ID.
type TemplateSource struct {
	scheduler.Template
	// File is where it stands; empty: the program has it.
	File string
	// Err is why it cannot be used; of the rest only the name counts then.
	Err error
}

// templates is what is known of all templates: those that the scheduler has,
// and those that are not ready. Who changes them has the turn.
type templates struct {
	turn chan struct{} // holds one
	wake chan struct{} // holds one: try again now

	mu    sync.Mutex
	known map[string]*template
	err   error // why the last look at them was not whole
}

// template is one of them. The lock guards it.
type template struct {
	want  TemplateSource
	since time.Time // of the version that is leased; zero: there is none
	err   error     // why want is not what is leased
	seq   int       // of what is known of it
	tries int
	next  time.Time // when it is tried again; zero: when it changes
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

// retryNow makes those that are not ready be tried at once.
func (t *templates) retryNow() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// openTemplates prepares all templates and returns those that are ready. Where
// they are given and not looked up, one that is not is an error.
func (e *Engine) openTemplates(ctx context.Context) ([]scheduler.Template, error) {
	var sources []TemplateSource
	for _, t := range e.opts.Templates {
		sources = append(sources, TemplateSource{Template: t})
	}
	if e.opts.LoadTemplates != nil {
		list, err := e.opts.LoadTemplates()
		if sources = list; err != nil {
			e.templates.err = err
			e.log.Error("templates not all read", "error", err)
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

// prepareSource is a source made ready to be leased.
func (e *Engine) prepareSource(ctx context.Context, src TemplateSource) (scheduler.Template, error) {
	if src.Err != nil {
		return scheduler.Template{}, src.Err
	}
	t := src.Template
	err := e.prepare(ctx, &t)
	return t, err
}

// noteTemplate records what became of a source.
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
	if src.Err == nil { // what is in the file is good: it is the host that is not ready
		t.next = time.Now().Add(min(retryMax, retryMin<<min(t.tries, 10)))
		t.tries++
	}
	if !told {
		e.events.publish(v1.ServiceEvent{Type: "template.not_ready", Template: src.Name, Reason: singleLine(err)})
		e.log.Error("template not ready", "template", src.Name, "file", src.File, "version_in_use", !t.since.IsZero(), "error", err)
	}
}

// Reload is what a reload of templates did, by names.
type Reload struct {
	Added, Changed, Resized, Removed []string
	// Failed are those whose new version is not in use, and why.
	Failed map[string]error
}

// Reload reads the templates again and puts them to use: see
// scheduler.Scheduler.Put and Drop. One that cannot be used leaves its last
// good version as it is. The error means that they could not all be read; then
// none is removed. It is for signals and for who watches the files.
func (e *Engine) Reload(ctx context.Context) (Reload, error) {
	r := Reload{Failed: map[string]error{}}
	if e.opts.LoadTemplates == nil {
		return r, usererror.Errorf(errdefs.ErrFailedPrecondition, "this service's templates cannot be reloaded")
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
		e.log.Error("templates not all read", "error", err)
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
		e.events.publish(v1.ServiceEvent{Type: "template.ready", Template: src.Name})
	case scheduler.Changed:
		r.Changed = append(r.Changed, src.Name)
		e.events.publish(v1.ServiceEvent{Type: "template.changed", Template: src.Name})
	case scheduler.Resized:
		r.Resized = append(r.Resized, src.Name)
		e.events.publish(v1.ServiceEvent{Type: "template.resized", Template: src.Name})
	case scheduler.Same: // its file may have moved, or is good again
	}
}

// isReady says whether nothing is to be noted about a source that changed
// nothing.
func (e *Engine) isReady(src TemplateSource) bool {
	e.templates.mu.Lock()
	defer e.templates.mu.Unlock()
	t := e.templates.known[src.Name]
	return t != nil && t.err == nil && t.want.File == src.File
}

// forgetOthers drops what is not among the sources.
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
		e.events.publish(v1.ServiceEvent{Type: "template.removed", Template: name})
	}
	return removed
}

// runTemplates tries those again that are not ready, until ctx ends. Images are
// fetched beside that: what one registry keeps waiting is its own.
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

// canFetch says whether an image is not here and can be fetched.
func (e *Engine) canFetch(ref string) bool {
	_, err := e.opts.Images.Resolve(ref)
	return e.opts.FetchImage != nil && errdefs.IsNotFound(err)
}

// cancelUnwantedFetches ends those that no template waits for any more.
func (e *Engine) cancelUnwantedFetches(fetching map[string]context.CancelFunc) {
	wanted := slices.Collect(maps.Values(e.templates.images()))
	for ref, cancel := range fetching {
		if !slices.Contains(wanted, ref) {
			cancel()
		}
	}
}

// dueTemplates are copies of those to be tried again.
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

// retryTemplate makes one ready that was not, and gets its image if it can. What takes
// long is done without the turn.
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
		return // it was reloaded meanwhile
	}
	t, err := e.prepareSource(ctx, src)
	if ctx.Err() != nil {
		return
	}
	if e.noteTemplate(src, err); err == nil {
		e.sched.Put(t)
		e.log.Info("template ready", "template", src.Name)
		e.events.publish(v1.ServiceEvent{Type: "template.ready", Template: src.Name})
	}
}

// unchanged says whether nothing more is known of a template since.
func (e *Engine) unchanged(was template) bool {
	e.templates.mu.Lock()
	defer e.templates.mu.Unlock()
	t := e.templates.known[was.want.Name]
	return t != nil && t.seq == was.seq
}

// NotReady is why a template cannot be leased, or nil.
func (e *Engine) NotReady(name string) error {
	e.templates.mu.Lock()
	defer e.templates.mu.Unlock()
	if t := e.templates.known[name]; t != nil && t.since.IsZero() {
		return t.err
	}
	return nil
}

// checkTemplate refuses one that is not there or not ready, with the way out.
func (e *Engine) checkTemplate(call Call, name string) error {
	known := e.sched.Templates()
	if slices.Contains(known, name) {
		return nil
	}
	why := e.NotReady(name)
	if why == nil {
		return &InvalidError{Field: "template", Message: fmt.Sprintf("%q is not known: use one of %v", name, known), Class: errdefs.ErrNotFound}
	}
	text := "try again later"
	if call.Operator {
		text = strings.TrimSpace(singleLine(why))
	}
	return &InvalidError{Field: "template", Message: fmt.Sprintf("%q is not ready: %s; ready are %v", name, text, known), Class: errdefs.ErrUnavailable}
}

func singleLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// templateUsing names a template that uses an image, or "".
func (e *Engine) templateUsing(id string) string {
	for _, name := range e.sched.Templates() {
		if t, ok := e.sched.Template(name); ok && t.Spec.Image.ID == id {
			return name
		}
	}
	return ""
}
