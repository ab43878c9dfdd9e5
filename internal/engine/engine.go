// Package engine processes requests. It validates a request, leases a sandbox, runs the command or
// tool, and answers. Adapters (HTTP, MCP, command line) decode a request, call a method of Engine
// and encode the answer; they make no decisions.
//
// Open compares the recorded state with the sandboxes that exist. Serve runs until its context ends
// and then hands over: background commands keep running, and the next process adopts their
// sandboxes.
//
// Errors are classed by errdefs. An *InvalidError names the field of a request.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/pull"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/egress"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/imageadmin"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/templates"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/workspaces"
	"github.com/sandbox-orchestrator/orchestrator/internal/eventhub"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/jobs"
	"github.com/sandbox-orchestrator/orchestrator/internal/metrics"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/tracing"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/sandboxed"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Options configures an Engine.
type Options struct {
	// Driver, Store, Images and Volumes are open. The caller closes them after Serve has returned.
	Driver runtime.Driver
	Store  *store.Store
	Images *images.Store
	// Puller pulls images from registries, or is nil.
	Puller *pull.Puller
	// Builder builds images, or is nil.
	Builder runtime.ImageBuilder
	// ImageBounds limits the disk usage and age of images.
	ImageBounds imageadmin.Bounds
	Volumes     *volumes.Manager
	// Templates are complete except for the image's ID, which is resolved. LoadTemplates, if set,
	// replaces Templates at the start and at each reload; a template that is not ready then does
	// not prevent the start. Its error means that the list may be incomplete.
	Templates       []scheduler.Template
	LoadTemplates   func() ([]templates.Source, error)
	DefaultTemplate string
	// FetchImage fetches an image that a template lacks. If it is nil, missing images are not
	// fetched.
	FetchImage func(ctx context.Context, ref string) error
	Limits
	// Quotas apply to callers whose tokens set none.
	Quotas caller.Quotas
	// Keys limits the stored idempotency keys of each caller. Zero fields take the defaults.
	Keys store.KeyBounds
	// CheckProfile returns an *InvalidError of the field "profile" if a profile does not exist. If
	// it is nil, every name is accepted.
	CheckProfile func(name string) error
	// Governance configures tool calls. If it is nil, tools are disabled.
	Governance *governed.Config
	// Egress configures what sandboxes may reach. If it is nil, they reach nothing.
	Egress *egress.Config
	// Web configures the web tools. If it is nil, they reach nothing.
	Web *sandboxed.WebOptions
	// Browser configures browser.open. If it is nil, browser.open is disabled.
	Browser *sandboxed.BrowserOptions
	// JobsDir is the directory of jobs' outputs and files. If it is "", jobs are refused.
	JobsDir string
	// Jobs bounds jobs. Zero fields take the defaults.
	Jobs jobs.Limits
	Program
	// Metrics counts what the engine does. If it is nil, nothing is counted.
	Metrics *metrics.Metrics
	// Tracer makes a trace of each call. If it is nil, there are none.
	Tracer *tracing.Tracer
	Log    *slog.Logger
}

// Limits holds the limits and defaults of requests.
type Limits struct {
	TTL, MaxTTL, Idle    time.Duration
	Timeout, MaxTimeout  time.Duration
	MaxOutput, OutputCap int64
	Wait                 time.Duration
	MaxSandboxes, Queue  int
	MaxMemory            int64
}

// Program describes this process. Version and Build identify the program. Why says why this runtime
// was chosen, Cgroup is the cgroup mode.
type Program struct{ Version, Build, Why, Cgroup string }

// Engine processes requests. Its methods may be called concurrently.
type Engine struct {
	limits  Limits
	program Program
	driver  runtime.Driver
	store   *store.Store
	volumes *volumes.Manager
	log     *slog.Logger
	sched   *scheduler.Scheduler
	metrics *metrics.Metrics // may be nil
	stages  stage.Observer   // may be nil

	// Callers identifies callers and holds their quotas.
	Callers *caller.Service

	idem *idempotency.Keys // idempotency keys, and locks by name
	// Templates keeps templates ready.
	Templates *templates.Service
	// Images serves requests about images.
	Images *imageadmin.Service
	// Workspaces serves requests about workspaces, overlays and snapshots.
	Workspaces *workspaces.Service
	// Jobs runs jobs.
	Jobs *jobs.Service
	// Governed runs tool calls and serves requests about approvals and the audit log.
	Governed *governed.Service
	// Events holds the latest events.
	Events *eventhub.Hub
	// Egress serves requests about what sandboxes may reach.
	Egress    *egress.Service
	recovered []store.Sandbox // sandboxes of an earlier process
	attached  attachedCount   // clients attached to terminals

	mu sync.Mutex
	// sessions holds the sandbox id of each session, keyed by sessionKey.
	sessions map[caller.Principal]string

	handing context.Context // ends when a hand-over begins
	handOff context.CancelFunc
	closing chan struct{} // closed when Serve ends
	work    sync.WaitGroup
	ready   bool
}

// Open prepares the images of all templates and recovers the sandboxes and requests of an earlier
// process.
func Open(ctx context.Context, opts Options) (*Engine, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	e := &Engine{
		limits: opts.Limits, program: opts.Program, driver: opts.Driver, store: opts.Store, volumes: opts.Volumes,
		metrics: opts.Metrics, log: opts.Log, sessions: map[caller.Principal]string{},
		closing: make(chan struct{}), Events: eventhub.New(),
	}
	e.observe(opts)
	e.handing, e.handOff = context.WithCancel(context.Background())
	if err := e.makeServices(ctx, opts); err != nil {
		return nil, err
	}
	got, err := e.sched.Recover(ctx)
	if err != nil {
		return nil, err
	}
	e.log.Info("recovered",
		"warm", got.Warm, "leased", got.Leased, "lost", got.Lost, "removed", got.Removed, "unknown", got.Unknown,
		"queued", got.Queued)
	if err := errors.Join(e.recoverKeys(ctx), e.Jobs.Recover(ctx)); err != nil {
		return nil, err
	}
	if e.recovered, err = e.store.Live(ctx); err != nil {
		return nil, err
	}
	if err := e.Egress.Start(); err != nil {
		return nil, err
	}
	e.watchMetrics(opts)
	return e, nil
}

// makeServices makes the services, each from those before it.
func (e *Engine) makeServices(ctx context.Context, opts Options) (err error) {
	e.idem = idempotency.Open(e.store, opts.Keys, e.log)
	if e.Callers, err = caller.Open(ctx, e.callerOptions(opts)); err != nil {
		return err
	}
	e.Templates = templates.New(templates.Options{
		Driver: e.driver, Images: opts.Images, Events: e.Events, Templates: opts.Templates,
		LoadTemplates: opts.LoadTemplates, FetchImage: opts.FetchImage, DefaultTemplate: opts.DefaultTemplate,
		MaxMemory: opts.MaxMemory, Log: e.log,
	})
	ready, err := e.Templates.Prepare(ctx)
	if err != nil {
		return err
	}
	e.sched = scheduler.New(scheduler.Options{
		Driver: e.driver, Store: e.store, Volumes: e.volumes, Templates: ready, OnStateChange: e.publishStateChange,
		Stages: e.stages, OnLease: e.metrics.Lease, OnProbe: e.metrics.RoundTrip,
		MaxSandboxes: opts.MaxSandboxes, MaxMemory: opts.MaxMemory, Queue: opts.Queue, Build: opts.Build, Log: e.log,
	})
	e.Templates.Use(e.sched)
	e.Workspaces = workspaces.New(workspaces.Options{
		Store: e.store, Volumes: e.volumes, Scheduler: e.sched, Callers: e.Callers, Keys: e.idem, Events: e.Events,
		Log: e.log,
	})
	e.Egress = egress.New(e.egressOptions(opts))
	if e.Governed, err = governed.New(e.governedOptions(opts)); err != nil {
		return err
	}
	e.Images = imageadmin.New(imageadmin.Options{
		Driver: e.driver, Store: e.store, Images: opts.Images, Puller: opts.Puller, Builder: opts.Builder,
		Bounds: opts.ImageBounds, Scheduler: e.sched, Templates: e.Templates, Events: e.Events, Log: e.log,
	})
	e.Jobs = jobs.New(e.jobOptions(opts))
	return nil
}

// egressOptions returns the options of the service of egress.
func (e *Engine) egressOptions(opts Options) egress.Options {
	o := egress.Options{
		Config: opts.Egress, Leases: sandboxes{e}, Rows: e.store, Locks: e.idem,
		OnConnection: func(c netpolicy.Connection) { e.metrics.Connection(c.Allowed, c.Sent, c.Received) },
		MaxSandboxes: e.limits.MaxSandboxes, Log: e.log,
	}
	if g := opts.Governance; g != nil {
		o.Audit, o.AdmitRecord, o.Redact = g.Audit, g.AdmitRecord, g.Redactor.Add
	}
	return o
}

// governedOptions returns the options of the service of tool calls.
func (e *Engine) governedOptions(opts Options) governed.Options {
	return governed.Options{
		Config: opts.Governance,
		Web: sandboxed.New(sandboxed.Options{
			Web: opts.Web, Browser: opts.Browser, Sandboxes: sandboxes{e}, Scheduler: e.sched, Gateway: e.Egress,
			MaxTimeout: e.limits.MaxTimeout, Log: e.log,
		}),
		Store: e.store, Volumes: e.volumes, Scheduler: e.sched, Callers: e.Callers, Keys: e.idem,
		Workspaces: e.Workspaces, Sandboxes: sandboxes{e}, HandingOver: e.handing,
		Stages: e.stages, OnEnd: e.countToolCall, OnVerdict: e.countVerdict,
		Wait: e.limits.Wait, MaxOutput: e.limits.MaxOutput, Log: e.log,
	}
}

// callerOptions returns the options of the service of callers.
func (e *Engine) callerOptions(opts Options) caller.Options {
	check := opts.CheckProfile
	if check == nil {
		check = func(name string) error { return e.Governed.CheckProfile(name) } // made later
	}
	return caller.Options{
		Store: e.store, Defaults: opts.Quotas, Log: e.log, CheckProfile: check,
		Record: func(ctx context.Context, p caller.Principal, action string, input any, cause error) {
			e.Governed.RecordOperator(ctx, p, audit.Record{Action: action}, input, cause)
		},
	}
}

// Serve runs until ctx ends and then waits for running work.
func (e *Engine) Serve(ctx context.Context) error {
	e.setReady(true)
	defer e.setReady(false)
	defer e.work.Wait()
	defer close(e.closing)
	defer e.Egress.Close()
	e.Egress.Resume(e.recovered)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return e.sched.Run(ctx) })
	g.Go(func() error { return e.Callers.Run(ctx) })
	g.Go(func() error { return e.volumes.Run(ctx) })
	g.Go(func() error { return e.Workspaces.Run(ctx) })
	g.Go(func() error { return e.Templates.Run(ctx) })
	g.Go(func() error { return e.Images.Run(ctx) })
	g.Go(func() error { return e.Governed.Run(ctx) })
	g.Go(func() error { return e.Jobs.Run(ctx) })
	return g.Wait()
}

// HandOver ends the calls that only wait for approval. Their callers are told to retry, and the
// approval requests stay pending.
func (e *Engine) HandOver() { e.handOff() }

func (e *Engine) setReady(v bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ready = v
}

// Down destroys every sandbox of this state directory. It must not run together with Serve.
func Down(ctx context.Context, d runtime.Driver, st *store.Store, log *slog.Logger) error {
	s := scheduler.New(scheduler.Options{Driver: d, Store: st, Log: log, MaxSandboxes: 1})
	return s.DestroyAll(ctx)
}

// Version describes the program and its runtime. Only operators see the build, the reason for the
// runtime and its capabilities.
func (e *Engine) Version(p caller.Principal) v1.Version {
	if !p.Operator {
		return v1.Version{Version: e.program.Version, Runtime: e.driver.Name(), Capabilities: map[string]string{}}
	}
	caps := map[string]string{}
	for k, v := range e.driver.Capabilities("") {
		caps[string(k)] = v
	}
	return v1.Version{
		Version: e.program.Version, Build: e.program.Build, Runtime: e.driver.Name(),
		Why: e.program.Why, Cgroup: e.program.Cgroup, Capabilities: caps,
	}
}

// leasedByKey returns the leased sandboxes whose request had an idempotency key, by caller and key.
func (e *Engine) leasedByKey(ctx context.Context) (map[string]store.Sandbox, error) {
	rows, err := e.store.Live(ctx)
	if err != nil {
		return nil, err
	}
	leased := map[string]store.Sandbox{}
	for _, r := range rows {
		if r.Lease.Key != "" && r.State == store.Leased {
			leased[r.Caller+"\x00"+r.Lease.Key] = r
		}
	}
	return leased, nil
}

// recoverKeys completes the idempotency keys of requests that an earlier process left open. A lease
// that was handed out becomes the answer, and an interrupted command was lost. A request that
// created nothing may be repeated.
func (e *Engine) recoverKeys(ctx context.Context) error {
	open, err := e.store.OpenKeys(ctx)
	if err != nil {
		return err
	}
	leased, err := e.leasedByKey(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, k := range open {
		var answer any
		switch row, ok := leased[k.Caller+"\x00"+k.Key]; {
		case k.Op == opLease && ok:
			if l := e.sched.Live(row.ID); l != nil && l.Ended() == "" {
				answer = e.sandbox(row)
			}
		case k.Op == workspaces.OpWorkspace:
			if w, err := e.Workspaces.Find(caller.Principal{Caller: k.Caller}, k.Ref); err == nil && !w.CreatedAt.Before(k.Created) {
				answer = workspaces.PresentWorkspace(w) // its directory exists completely or not at all
			}
		case k.Op == opExec || k.Op == opRun || k.Op == opSessionExec:
			answer = present(k.Ref, runtime.Result{Ending: runtime.SandboxLost, ExitCode: -1, Detail: "the orchestrator stopped while it ran"})
		case k.Op == governed.OpTool:
			if answer, err = e.Governed.Recover(ctx, k); err != nil {
				return err
			}
		case k.Op == jobs.Op:
			if answer, err = e.Jobs.RecoverKey(ctx, k); err != nil {
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
				continue // Leave the key open: a retry is refused, and nothing runs twice.
			}
			if sh.ID != "" {
				answer = sh
			}
		}
		if answer == nil {
			errs = append(errs, e.store.DropKey(ctx, k.Caller, k.Key))
			continue
		}
		body, err := marshal(answer)
		errs = append(errs, err, e.idem.Finish(ctx, k, body))
	}
	return errors.Join(errs...)
}

// Dirs holds the subdirectories of a state directory.
type Dirs struct{ Images, Workspaces, Guest, Jobs string }

// DirsOf returns the subdirectories of the state directory dir.
func DirsOf(dir string) Dirs {
	return Dirs{
		Images: filepath.Join(dir, "images"), Workspaces: filepath.Join(dir, "workspaces"), Guest: filepath.Join(dir, "guest"),
		Jobs: filepath.Join(dir, "jobs"),
	}
}
