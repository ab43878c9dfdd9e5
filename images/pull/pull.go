// Package pull brings images from registries into the store: what may be
// pulled, what must be signed, the variant for this host, the layers that are
// missing, and one download for all who ask for the same.
//
// A pull goes on while somebody waits for it, and stops with the last who did;
// what came of it by then stays in the store's blobs and is taken up by the
// next. Nothing of an image is unpacked before its signature has been checked.
// Each pull has a goroutine of its own, and up to Parallel more that fetch;
// Close ends and awaits them.
//
// Errors are of class PermissionDenied (not allowed, not signed), NotFound,
// FailedPrecondition (the registry refuses us or sends what cannot be right; a
// digest is required), Unavailable (it cannot be reached), InvalidArgument or
// ResourceExhausted (over a bound, disk full).
package pull

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/ref"
	"github.com/sandbox-orchestrator/orchestrator/images/registry"
	"github.com/sandbox-orchestrator/orchestrator/images/signature"
)

// Parallel is how many layers of an image are fetched at once.
const Parallel = 3

// Options of a Puller.
type Options struct {
	Store    *images.Store
	Registry *registry.Client
	// Allow are the references that may be pulled; empty is every one.
	Allow ref.List
	// RequireDigest refuses what has no digest.
	RequireDigest bool
	// Keys are those of which one must have signed an image in Signed, whose
	// patterns name repositories; empty is every one, if there is a key.
	Keys   []signature.Key
	Signed ref.List
	// Log may be nil.
	Log *slog.Logger
}

// Phases of a pull.
const (
	Resolving = "resolving" // what the reference names, and whether it may be had
	Fetching  = "fetching"
	Importing = "importing" // checking and storing what came
	Done      = "done"
)

// Progress is how far a pull has come.
type Progress struct {
	Phase string
	// Digest is of what the reference names, "" until that is known.
	Digest string
	// Layers are those of the image, bottom first and each once.
	Layers []Layer
}

// Layer is one layer on its way.
type Layer struct {
	Digest string
	Size   int64 // of its blob
	Have   int64 // bytes that are here
	// Here says that another image has its content already.
	Here bool
}

// Puller pulls images. It may be used concurrently.
type Puller struct {
	o   Options
	ctx context.Context
	end context.CancelCauseFunc

	mu      sync.Mutex
	flights map[string]*flight
	work    sync.WaitGroup
}

// New returns a Puller; Close ends it.
func New(o Options) *Puller {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Puller{o: o, flights: map[string]*flight{}}
	p.ctx, p.end = context.WithCancelCause(context.Background())
	return p
}

var errClosed = fmt.Errorf("the service is stopping: %w", errdefs.ErrUnavailable)

// Close ends what is under way, and waits for that.
func (p *Puller) Close() error {
	p.mu.Lock()
	p.end(errClosed)
	p.mu.Unlock()
	p.work.Wait()
	p.o.Registry.Close()
	return nil
}

// flight is one pull, for all who wait for it.
type flight struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when image and err are there
	image  images.Image
	err    error

	mu       sync.Mutex
	waiting  int
	progress Progress
	changed  chan struct{} // closed at each change, and made anew
}

func (f *flight) now() (Progress, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.progress
	p.Layers = slices.Clone(p.Layers)
	return p, f.changed
}

func (f *flight) change(do func(*Progress)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(&f.progress)
	close(f.changed)
	f.changed = make(chan struct{})
}

// Active says whether anything is under way.
func (p *Puller) Active() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.flights) > 0
}

// errLeft ends a pull that nobody waits for.
var errLeft = fmt.Errorf("nobody waits for the image any more: %w", context.Canceled)

// between two reports of progress lies this time at least.
const between = 100 * time.Millisecond

// Pull brings an image into the store, and returns it. Who asks for what is
// being pulled already waits for that. watch, which may be nil, is told how far
// it is, from Pull's own goroutine.
func (p *Puller) Pull(ctx context.Context, text string, watch func(Progress)) (images.Image, error) {
	r, err := ref.Parse(text)
	if err != nil {
		return images.Image{}, err
	}
	if !p.o.Allow.Has(r) {
		return images.Image{}, fmt.Errorf("image %s may not be pulled: images.allow has %s: %w", r, p.o.Allow, errdefs.ErrPermissionDenied)
	}
	f, err := p.join(r)
	if err != nil {
		return images.Image{}, err
	}
	defer p.leave(r, f)
	for {
		progress, changed := f.now()
		if watch != nil {
			watch(progress)
		}
		select {
		case <-changed:
		case <-f.done:
			return f.image, f.err
		case <-ctx.Done():
			return images.Image{}, context.Cause(ctx)
		}
		select {
		case <-time.After(between):
		case <-f.done:
		case <-ctx.Done():
		}
	}
}

// join finds the flight for a reference, or starts it.
func (p *Puller) join(r ref.Reference) (*flight, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil, errClosed
	}
	if f := p.flights[r.String()]; f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.waiting++
		return f, nil
	}
	f := &flight{waiting: 1, done: make(chan struct{}), changed: make(chan struct{}), progress: Progress{Phase: Resolving}}
	ctx, cancel := context.WithCancelCause(p.ctx)
	f.cancel = cancel
	p.flights[r.String()] = f
	p.work.Go(func() { // Close waits for it
		f.image, f.err = p.pull(ctx, r, f)
		cancel(nil)
		p.drop(r, f)
		close(f.done)
	})
	return f, nil
}

func (p *Puller) drop(r ref.Reference, f *flight) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flights[r.String()] == f {
		delete(p.flights, r.String())
	}
}

// leave ends the flight with the last one who waits; whoever asks from then on
// starts another.
func (p *Puller) leave(r ref.Reference, f *flight) {
	p.mu.Lock()
	f.mu.Lock()
	f.waiting--
	last := f.waiting == 0
	if last && p.flights[r.String()] == f {
		delete(p.flights, r.String())
	}
	f.mu.Unlock()
	p.mu.Unlock()
	if last {
		f.cancel(errLeft)
	}
}

// pull is the whole way of one image.
func (p *Puller) pull(ctx context.Context, r ref.Reference, f *flight) (images.Image, error) {
	began := time.Now()
	plan, err := p.resolve(ctx, r)
	if err != nil {
		return images.Image{}, err
	}
	f.change(func(progress *Progress) { progress.Digest = plan.digest })
	image, err := p.o.Store.Recognise(plan.id, plan.name, plan.digests)
	if errdefs.IsNotFound(err) {
		image, err = p.fetch(ctx, plan, f)
	}
	if err != nil {
		return images.Image{}, said(err)
	}
	f.change(func(progress *Progress) { progress.Phase = Done })
	p.o.Log.Info("image pulled", "ref", r.String(), "digest", plan.digest, "image", image.ID, "took", time.Since(began))
	return image, nil
}

// said gives what a context's end was about instead of what it broke.
func said(err error) error {
	if errors.Is(err, errClosed) {
		return errClosed
	}
	return err
}
