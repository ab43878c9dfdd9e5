// Package engine is the call: the one place where a request is checked, gets a
// sandbox, runs, answers, and where what it made is given back. Adapters
// (HTTP, command line) decode, call an Engine's method, and encode; they hold
// no rule of their own.
//
// Open compares the state directory's content with what the container engine
// has. Serve works until its context ends and then hands over: shells go on,
// and the next process takes them up.
// Errors are classed by errdefs; *InvalidError names the field of a request.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/pull"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Options of an Engine.
type Options struct {
	// Driver, Store, Images and Volumes are open, and closed by their opener
	// after Serve has returned.
	Driver runtime.Driver
	Store  *store.Store
	Images *images.Store
	// Puller brings images from registries; nil: none are pulled.
	Puller *pull.Puller
	// Builder builds images; nil: none are built.
	Builder runtime.ImageBuilder
	// ImageBounds are what images may take of the disk.
	ImageBounds ImageBounds
	Volumes     *volumes.Manager
	// Templates are complete but for the image's ID, which is looked up.
	// LoadTemplates, if set, gives them instead, at the start and at each reload;
	// then one that is not ready keeps nobody from starting. An error means that
	// more may be missing from the list.
	Templates       []scheduler.Template
	LoadTemplates   func() ([]TemplateSource, error)
	DefaultTemplate string
	// FetchImage gets an image that a template lacks; nil: nobody does.
	FetchImage func(ctx context.Context, ref string) error
	// Bounds and defaults of requests.
	TTL, MaxTTL, Idle    time.Duration
	Timeout, MaxTimeout  time.Duration
	MaxOutput, OutputCap int64
	Wait                 time.Duration
	MaxSandboxes, Queue  int
	MaxMemory            int64
	// Quotas bound callers with tokens that say nothing else.
	Quotas Quotas
	// Keys bound what is kept of each caller's idempotency keys; zero values take
	// the defaults.
	Keys store.KeyBounds
	// CheckProfile says whether a profile is known, with an *InvalidError of the
	// field "profile"; nil takes every name.
	CheckProfile func(name string) error
	// Governance is what tool calls need; nil: there are none.
	Governance *Governance
	// Egress is what sandboxes may reach; nil: nothing.
	Egress *EgressOptions
	// Web is what tools of the web have beside that; nil: they reach nothing.
	Web *WebOptions
	// Browser is what browser.open has; nil: there is no browser.
	Browser *BrowserOptions
	// Version and Build of the program, Why this runtime, and the cgroup mode.
	Version, Build, Why, Cgroup string
	Log                         *slog.Logger
}

// Quotas are a caller's bounds; zero is none. Waiting is how many calls wait
// for a sandbox at once.
type Quotas struct {
	Sandboxes   int
	MemoryBytes int64
	DiskBytes   int64 // of workspaces together
	Calls       int64 // of tools in a day (UTC)
	Waiting     int
}

// Engine carries calls out. Its methods may be called concurrently.
type Engine struct {
	opts  Options
	log   *slog.Logger
	sched *scheduler.Scheduler

	callers   *callers
	templates *templates
	events    *eventHub
	egress    *egressService  // nil: sandboxes reach nothing
	recovered []store.Sandbox // what an earlier process had
	attached  attachedCount   // to terminals

	mu   sync.Mutex
	keys map[string]chan struct{} // idempotency keys under way
	// sessions are the sandboxes of sessions, by sessionKey.
	sessions map[Call]string
	outputs  *outputs // nil where no tools are called

	newImage chan struct{} // holds one: an image came

	handing context.Context // ends when a hand-over begins
	handOff context.CancelFunc
	closing chan struct{} // closed when Serve ends
	work    sync.WaitGroup
	noBash  map[string]bool // images without bash, by ID
	ready   bool
}

// Open prepares the images of all templates and recovers what an earlier
// process left.
func Open(ctx context.Context, opts Options) (*Engine, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Keys.Answers = cmp.Or(opts.Keys.Answers, defaultKeys.Answers)
	opts.Keys.Bytes = cmp.Or(opts.Keys.Bytes, defaultKeys.Bytes)
	opts.Keys.Keys = cmp.Or(opts.Keys.Keys, defaultKeys.Keys)
	e := &Engine{opts: opts, log: opts.Log, keys: map[string]chan struct{}{}, sessions: map[Call]string{}, noBash: map[string]bool{}, closing: make(chan struct{}), newImage: make(chan struct{}, 1), templates: newTemplates(), events: newEventHub()}
	e.handing, e.handOff = context.WithCancel(context.Background())
	var err error
	if e.callers, err = newCallers(ctx, opts.Store); err != nil {
		return nil, err
	}
	ready, err := e.openTemplates(ctx)
	if err != nil {
		return nil, err
	}
	if g := opts.Governance; g != nil {
		if e.outputs, err = openOutputs(g.Outputs); err != nil {
			return nil, err
		}
	}
	e.sched = scheduler.New(scheduler.Options{
		Driver: opts.Driver, Store: opts.Store, Volumes: opts.Volumes, Templates: ready, Step: e.publishStateChange,
		MaxSandboxes: opts.MaxSandboxes, MaxMemory: opts.MaxMemory, Queue: opts.Queue, Build: opts.Build, Log: opts.Log,
	})
	got, err := e.sched.Recover(ctx)
	if err != nil {
		return nil, err
	}
	e.log.Info("recovered", "warm", got.Warm, "leased", got.Leased, "lost", got.Lost, "removed", got.Removed, "unknown", got.Unknown)
	if err := e.recoverKeys(ctx); err != nil {
		return nil, err
	}
	if e.recovered, err = opts.Store.Live(ctx); err != nil {
		return nil, err
	}
	if e.egress, err = openEgress(opts.Egress, e); err != nil {
		return nil, err
	}
	return e, nil
}

// prepare finds a template's image and makes it usable.
func (e *Engine) prepare(ctx context.Context, t *scheduler.Template) error {
	img, err := e.opts.Images.Resolve(t.Spec.Image.Ref)
	if err != nil {
		return err
	}
	// Only the embedded runtime needs the unpacked root; for the others a Root
	// that comes and goes would look like another template after a restart.
	img.Root = ""
	if e.opts.Driver.Name() == "oci" {
		if img.Root, err = e.opts.Images.Root(ctx, img); err != nil {
			return err
		}
	}
	t.Spec.Image = img
	t.Spec.Limits = t.Spec.Limits.WithDefaults()
	// Only this class is asked for: to find out about all of them takes a driver seconds on a host that it does not know yet.
	if class := t.Spec.Class.OrDefault(); e.opts.Driver.Capabilities(class) == nil {
		return fmt.Errorf("class %s: runtime %s makes none of it on this host, but %v: %w", class, e.opts.Driver.Name(), e.opts.Driver.Classes(), errdefs.ErrFailedPrecondition)
	}
	if need := t.Spec.Limits.MemoryBytes; need > e.opts.MaxMemory {
		return fmt.Errorf("limits.memory is %d bytes and admission.max_memory %d: no sandbox of it could ever be made: %w", need, e.opts.MaxMemory, errdefs.ErrFailedPrecondition)
	}
	if err := checkMountPoints(img, t.Spec.Tmpfs); err != nil {
		return err
	}
	return e.opts.Driver.Prepare(ctx, img)
}

// Serve works until ctx ends, and then waits for what is under way.
func (e *Engine) Serve(ctx context.Context) error {
	e.setReady(true)
	defer e.setReady(false)
	defer e.work.Wait()
	defer close(e.closing)
	defer e.closeEgress()
	e.resumeEgress(e.recovered)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.sched.Run(ctx) })
	g.Go(func() error { return e.callers.run(ctx, e.log) })
	g.Go(func() error { return e.opts.Volumes.Run(ctx) })
	g.Go(func() error { return e.runSpace(ctx) })
	g.Go(func() error { return e.runTemplates(ctx) })
	g.Go(func() error { return e.runImages(ctx) })
	if gov := e.opts.Governance; gov != nil {
		g.Go(func() error { return gov.Gate.Run(ctx) })
		g.Go(func() error { return e.outputs.run(ctx) })
	}
	return g.Wait()
}

// HandOver lets go of calls that only wait for somebody's consent: they are
// told to come back, and the questions stay.
func (e *Engine) HandOver() { e.handOff() }

func (e *Engine) setReady(v bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = v
}

// Down destroys every sandbox of this state directory. It is for use without
// Serve.
func Down(ctx context.Context, d runtime.Driver, st *store.Store, log *slog.Logger) error {
	s := scheduler.New(scheduler.Options{Driver: d, Store: st, Log: log, MaxSandboxes: 1})
	return s.DestroyAll(ctx)
}

// Ready says whether calls can be served now.
func (e *Engine) Ready(ctx context.Context) error {
	e.mu.Lock()
	ready := e.ready
	e.mu.Unlock()
	if !ready {
		return fmt.Errorf("the service is starting or stopping: %w", errdefs.ErrUnavailable)
	}
	return e.opts.Store.Ping(ctx)
}

// Version says what this is and what it runs on. How that was found out is for
// operators.
func (e *Engine) Version(call Call) v1.Version {
	if !call.Operator {
		return v1.Version{Version: e.opts.Version, Runtime: e.opts.Driver.Name(), Capabilities: map[string]string{}}
	}
	caps := map[string]string{}
	for k, v := range e.opts.Driver.Capabilities("") {
		caps[string(k)] = v
	}
	return v1.Version{
		Version: e.opts.Version, Build: e.opts.Build, Runtime: e.opts.Driver.Name(), Why: e.opts.Why, Cgroup: e.opts.Cgroup, Capabilities: caps,
	}
}

// recoverKeys settles the idempotency keys of requests that an earlier process
// did not finish: a lease that was handed out is the answer; a command was cut
// short with its stream and is lost; what made nothing may be tried again.
func (e *Engine) recoverKeys(ctx context.Context) error {
	open, err := e.opts.Store.OpenKeys(ctx)
	if err != nil {
		return err
	}
	rows, err := e.opts.Store.Live(ctx)
	if err != nil {
		return err
	}
	leased := map[string]store.Sandbox{}
	for _, r := range rows {
		if r.Lease.Key != "" && r.State == store.Leased {
			leased[r.Caller+"\x00"+r.Lease.Key] = r
		}
	}
	var errs []error
	for _, k := range open {
		var answer any
		switch row, ok := leased[k.Caller+"\x00"+k.Key]; {
		case k.Op == opLease && ok:
			if l := e.sched.Live(row.ID); l != nil && l.Ended() == "" {
				answer = e.sandbox(row)
			}
		case k.Op == opWorkspace:
			if w, err := e.findWorkspace(Call{Caller: k.Caller}, k.Ref); err == nil && !w.CreatedAt.Before(k.Created) {
				answer = presentWorkspace(w) // its folder is there whole or not
			}
		case k.Op == opExec || k.Op == opRun || k.Op == opSessionExec:
			answer = present(k.Ref, runtime.Result{Ending: runtime.SandboxLost, ExitCode: -1, Detail: "the orchestrator ended while it ran"})
		case k.Op == opTool:
			if answer, err = e.recoverTool(ctx, k); err != nil {
				return err
			}
		case k.Op == opSession:
			se, known := e.recoverShellSession(ctx, k)
			if !known {
				continue
			}
			if se.ID != "" {
				answer = se
			}
		case k.Op == opShell, k.Op == opTerminal:
			sh, known, err := e.recoverShell(ctx, k)
			if errs = append(errs, err); !known {
				continue // a later request gets a clear refusal, and nothing runs twice
			}
			if sh.ID != "" {
				answer = sh
			}
		}
		if answer == nil {
			errs = append(errs, e.opts.Store.DropKey(ctx, k.Caller, k.Key))
			continue
		}
		body, err := marshal(answer)
		errs = append(errs, err, e.opts.Store.FinishKey(ctx, k.Caller, k.Key, k.Ref, body, e.opts.Keys))
	}
	return errors.Join(errs...)
}

// Dirs are the parts of a state directory.
type Dirs struct{ Images, Workspaces, Guest string }

// DirsOf says where things are below dir.
func DirsOf(dir string) Dirs {
	return Dirs{Images: filepath.Join(dir, "images"), Workspaces: filepath.Join(dir, "workspaces"), Guest: filepath.Join(dir, "guest")}
}
