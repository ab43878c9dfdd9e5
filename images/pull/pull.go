// Package pull downloads images from registries into the store. It checks what may be pulled and
// what must be signed, selects the variant for this host, downloads missing layers, and shares one
// download among all callers that want the same image.
//
// A pull runs while a caller waits for it and stops with the last one. The downloaded blobs stay in
// the store, and the next pull resumes. No image is unpacked before its signature is checked. Each
// pull has one goroutine and up to Parallel more for downloads. Close stops and awaits them.
//
// Error classes are PermissionDenied (not allowed, not signed), NotFound, FailedPrecondition (the
// registry refuses access or sends invalid data; a digest is required), Unavailable (not
// reachable), InvalidArgument and ResourceExhausted (over a limit, disk full).
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

// Parallel is the number of layers of an image that are downloaded at once.
const Parallel = 3

// Options configures a Puller.
type Options struct {
	Store    *images.Store
	Registry *registry.Client
	// Allow lists the references that may be pulled; empty allows all.
	Allow ref.List
	// RequireDigest refuses references without a digest.
	RequireDigest bool
	// Keys are the accepted signers. An image in Signed must be signed by one of them. Signed has
	// patterns of repositories; empty means all, if there is a key.
	Keys   []signature.Key
	Signed ref.List
	// Log receives events; nil discards them.
	Log *slog.Logger
}

// Phases of a pull.
const (
	Resolving = "resolving" // find what the reference names and check that it may be pulled
	Fetching  = "fetching"
	Importing = "importing" // check and store the downloaded blobs
	Done      = "done"
)

// Progress is the state of a pull.
type Progress struct {
	Phase string
	// Digest is what the reference names; "" until it is known.
	Digest string
	// Layers are the distinct layers of the image, bottom first.
	Layers []Layer
}

// Layer is the state of one layer.
type Layer struct {
	Digest string
	Size   int64 // size of the blob in bytes
	Have   int64 // bytes already downloaded
	// Here reports that a stored image has the same content.
	Here bool
}

// Puller pulls images. It is safe for concurrent use.
type Puller struct {
	o   Options
	ctx context.Context
	end context.CancelCauseFunc

	mu     sync.Mutex
	active map[string]*sharedPull
	work   sync.WaitGroup
}

// New returns a Puller. The caller must call Close.
func New(o Options) *Puller {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Puller{o: o, active: map[string]*sharedPull{}}
	p.ctx, p.end = context.WithCancelCause(context.Background())
	return p
}

var errClosed = fmt.Errorf("the service is stopping: %w", errdefs.ErrUnavailable)

// Close cancels running pulls and waits for them.
func (p *Puller) Close() error {
	p.mu.Lock()
	p.end(errClosed)
	p.mu.Unlock()
	p.work.Wait()
	p.o.Registry.Close()
	return nil
}

// sharedPull is one pull, shared by all callers that wait for it.
type sharedPull struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when image and err are set
	image  images.Image
	err    error

	mu       sync.Mutex
	waiting  int
	progress Progress
	changed  chan struct{} // closed and replaced on each change
}

func (f *sharedPull) now() (Progress, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.progress
	p.Layers = slices.Clone(p.Layers)
	return p, f.changed
}

func (f *sharedPull) change(do func(*Progress)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do(&f.progress)
	close(f.changed)
	f.changed = make(chan struct{})
}

// Active reports whether a pull is running.
func (p *Puller) Active() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.active) > 0
}

// errAbandoned cancels a pull without callers.
var errAbandoned = fmt.Errorf("no caller waits for the image: %w", context.Canceled)

// between is the minimum time between two progress reports.
const between = 100 * time.Millisecond

// Pull adds an image to the store and returns it. Concurrent pulls of the same reference share one
// download. watch, which may be nil, receives the progress in the goroutine of the caller.
func (p *Puller) Pull(ctx context.Context, text string, watch func(Progress)) (images.Image, error) {
	r, err := ref.Parse(text)
	if err != nil {
		return images.Image{}, err
	}
	if !p.o.Allow.Has(r) {
		return images.Image{}, fmt.Errorf("image %s is not allowed: images.allow has %s: %w", r, p.o.Allow,
			errdefs.ErrPermissionDenied)
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

// join returns the pull of a reference and starts it if needed.
func (p *Puller) join(r ref.Reference) (*sharedPull, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx.Err() != nil {
		return nil, errClosed
	}
	if f := p.active[r.String()]; f != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.waiting++
		return f, nil
	}
	f := &sharedPull{waiting: 1, done: make(chan struct{}), changed: make(chan struct{}),
		progress: Progress{Phase: Resolving}}
	ctx, cancel := context.WithCancelCause(p.ctx)
	f.cancel = cancel
	p.active[r.String()] = f
	p.work.Go(func() { // Close waits for this goroutine
		f.image, f.err = p.pull(ctx, r, f)
		cancel(nil)
		p.drop(r, f)
		close(f.done)
	})
	return f, nil
}

func (p *Puller) drop(r ref.Reference, f *sharedPull) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active[r.String()] == f {
		delete(p.active, r.String())
	}
}

// leave cancels the pull if this was its last caller. Later callers start a new one.
func (p *Puller) leave(r ref.Reference, f *sharedPull) {
	p.mu.Lock()
	f.mu.Lock()
	f.waiting--
	last := f.waiting == 0
	if last && p.active[r.String()] == f {
		delete(p.active, r.String())
	}
	f.mu.Unlock()
	p.mu.Unlock()
	if last {
		f.cancel(errAbandoned)
	}
}

// pull runs one pull from start to end.
func (p *Puller) pull(ctx context.Context, r ref.Reference, f *sharedPull) (images.Image, error) {
	began := time.Now()
	plan, err := p.resolve(ctx, r)
	if err != nil {
		return images.Image{}, err
	}
	f.change(func(progress *Progress) { progress.Digest = plan.digest })
	image, err := p.o.Store.AddReference(plan.id, plan.name, plan.digests)
	if errdefs.IsNotFound(err) {
		image, err = p.fetch(ctx, plan, f)
	}
	if err != nil {
		return images.Image{}, stopCause(err)
	}
	f.change(func(progress *Progress) { progress.Phase = Done })
	p.o.Log.Info("image pulled", "ref", r.String(), "digest", plan.digest, "image", image.ID, "took", time.Since(began))
	return image, nil
}

// stopCause returns errClosed for errors caused by Close, and err otherwise.
func stopCause(err error) error {
	if errors.Is(err, errClosed) {
		return errClosed
	}
	return err
}
