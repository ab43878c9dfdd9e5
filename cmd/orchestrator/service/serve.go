// Package service has the commands that run and check the service on this host: serve, doctor and
// down. serve owns every goroutine it starts and ends them before it returns.
package service

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/internal/api"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestbin"
	"github.com/sandbox-orchestrator/orchestrator/internal/metrics"
	"github.com/sandbox-orchestrator/orchestrator/internal/servertls"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/tracing"
	"github.com/sandbox-orchestrator/orchestrator/internal/ui"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/docker"
	"github.com/sandbox-orchestrator/orchestrator/runtime/kubernetes"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// handoverTime is how long running calls may take after SIGTERM. Then they are cut.
const handoverTime = 10 * time.Second

type serveOptions struct {
	listen, runtime     string
	logLevel, logFormat string
	allowRemote         bool
	ephemeral           bool
	adoptNone           bool
	adoptOlder          bool
}

// NewServeCommand returns "orchestrator serve".
func NewServeCommand(a *cli.App) *cobra.Command {
	var o serveOptions
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the service",
		Long: `Run the service until SIGTERM or SIGINT.

These signals hand over: running calls get 10 seconds, sandboxes and background
commands keep running, and the next server on the same state directory adopts
them. ` + "`orchestrator down`" + ` destroys everything instead. A second signal ends
the process at once, which loses nothing either. SIGHUP reloads the configuration:
docs/configuration.md says which keys a running service applies. Templates and TLS
files are also reloaded when they change.`,
		Example: `  orchestrator serve
  orchestrator serve --config /etc/orchestrator.yaml --runtime oci
  orchestrator serve --listen 127.0.0.1:7070 --token-file /etc/orchestrator.token`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runServe(cmd.Context(), a, cmd, o) },
	}
	f := c.Flags()
	f.StringVar(&o.listen, "listen", "", "unix:`PATH` or HOST:PORT (ORCHESTRATOR_LISTEN)")
	f.StringVar(
		&o.runtime,
		"runtime",
		"",
		"runtime `NAME`: auto, docker, containerd, oci or kubernetes (ORCHESTRATOR_RUNTIME)",
	)
	f.BoolVar(&o.allowRemote, "allow-remote", false, "allow an address that is not loopback without TLS")
	f.BoolVar(
		&o.ephemeral,
		"ephemeral",
		false,
		"destroy everything and remove the state directory at the end, also when standard input ends; needs --state-dir",
	)
	f.BoolVar(
		&o.adoptNone,
		"adopt-none",
		false,
		"if state.db was lost, create a new one: destroy the sandboxes, keep workspaces and the audit log",
	)
	f.BoolVar(
		&o.adoptOlder,
		"adopt-older",
		false,
		"accept a state.db that is older than the one last used: destroy the sandboxes it does not know",
	)
	f.StringVar(&o.logLevel, "log-level", "", "log `LEVEL`: debug, info, warn or error (ORCHESTRATOR_LOG_LEVEL)")
	f.StringVar(&o.logFormat, "log-format", "", "log `FORMAT`: text or json (ORCHESTRATOR_LOG_FORMAT)")
	return c
}

func runServe(ctx context.Context, a *cli.App, cmd *cobra.Command, o serveOptions) (err error) {
	settings := func() (config.Config, error) {
		return o.settings(a, cmd.Flags().Changed("allow-remote"))
	}
	c, err := settings()
	if err != nil {
		return err
	}
	if err := checkListen(c); err != nil {
		return err
	}
	if o.ephemeral {
		if err := checkEphemeral(a, cmd, c.StateDir); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, removeEphemeral(c.StateDir, err)) }()
	}
	token := ""
	if c.TokenFile != "" {
		if token, err = cli.ReadToken(c.TokenFile); err != nil {
			return err
		}
	}
	a.Serving.Store(true)
	s := &service{
		app:        a,
		config:     c,
		token:      token,
		settings:   settings,
		ephemeral:  o.ephemeral,
		adoptNone:  o.adoptNone,
		adoptOlder: o.adoptOlder,
	}
	if err := s.level.UnmarshalText([]byte(c.Log.Level)); err != nil {
		return err
	}
	s.log = standalone.LeveledLogger(a.Stderr, c.Log.Format, &s.level)
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx); err != nil {
		return startError(ctx, err)
	}
	return s.run(ctx)
}

// service is an open server. Its fields are in the order of opening.
type service struct {
	app    *cli.App
	config config.Config
	token  string
	log    *slog.Logger
	level  slog.LevelVar // of log
	// settings reads the configuration again.
	settings func() (config.Config, error)
	// ephemeral services hand nothing over.
	ephemeral             bool
	adoptNone, adoptOlder bool // what to do about a lost state.db

	undo      []func() error        // in the order of opening
	candidate *kubernetes.Candidate // nil without an election
	standby   *standby              // nil without an election
	owner     string                // whose Lease this process holds; "" without an election
	epoch     int64                 // of the election
	tls       *servertls.Source     // nil without TLS
	listener  net.Listener
	store     *store.Store
	marker    *store.Marker
	volumes   *volumes.Manager
	driver    runtime.Driver
	engine    *engine.Engine
	governed  *standalone.Governance
	metrics   *metrics.Metrics
	scrapes   *metricsServer  // nil without metrics.listen
	tracer    *tracing.Tracer // nil without tracing.endpoint
	api       *api.Server     // set by run
	sessions  *ui.Sessions    // of the dashboard
	why       string
}

func (s *service) onClose(undo func() error) { s.undo = append(s.undo, undo) }

// close releases everything in reverse order. Sandboxes keep running.
func (s *service) close() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// open wins the election and takes the locks first, so that no other process changes the state. The
// socket is next, before anything else creates files. Clients that connect wait until the service
// is ready.
func (s *service) open(ctx context.Context) error {
	dir := s.config.StateDir
	if err := s.openTLS(); err != nil {
		return err
	}
	if err := standalone.MakeStateDir(dir); err != nil {
		return err
	}
	if err := s.elect(ctx, dir); err != nil {
		return err
	}
	if err := s.lockDir(ctx, dir); err != nil {
		return err
	}
	for name, why := range map[string]string{
		standalone.ImagesLock:     "another command uses the images: wait for its end",
		standalone.WorkspacesLock: "a command without a server uses the workspaces: wait for its end",
	} {
		if err := s.awaitLock(ctx, name, why); err != nil {
			return err
		}
	}
	if err := s.openListener(ctx); err != nil {
		return err
	}
	var err error
	if s.scrapes, err = listenMetrics(ctx, s.config, s.tlsConfig()); err != nil {
		return err
	}
	s.onClose(s.scrapes.close)
	if s.store, err = s.openState(ctx, dir); err != nil {
		return err
	}
	s.onClose(s.store.Close)
	if s.sessions, err = openSessions(dir); err != nil {
		return err
	}
	return s.openEngine(ctx, dir)
}

// openState opens the database of the state directory. If it was lost, openState refuses unless
// nothing else is left, or --adopt-none has the rest destroyed.
func (s *service) openState(ctx context.Context, dir string) (*store.Store, error) {
	x, err := store.Examine(ctx, dir)
	if err == nil {
		err = s.checkOwner(x)
	}
	if err != nil {
		return nil, err
	}
	switch x.Condition {
	case store.Whole:
		if s.adoptNone || s.adoptOlder {
			s.note("state.db is the one that was last used: --adopt-none and --adopt-older change nothing")
		}
	case store.Older:
		if s.adoptOlder {
			s.log.Warn("starting with an older state.db", "problem", x.Problem())
			x.Accept("")
		}
	case store.New, store.Lost:
		if err := s.acceptLost(ctx, x, dir); err != nil {
			return nil, err
		}
	case store.Damaged, store.Foreign: // Open refuses them.
	}
	st, err := x.Open(ctx)
	if err != nil {
		return nil, err
	}
	s.marker = x.Marker(st)
	if err := s.marker.Mark(ctx); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// awaitLock takes a lock that commands hold for a short time.
func (s *service) awaitLock(ctx context.Context, name, why string) error {
	dir := s.config.StateDir
	for deadline := time.Now().Add(10 * time.Second); ; {
		f, err := standalone.LockFile(dir+"/"+name, unix.LOCK_EX)
		if err == nil {
			s.onClose(f.Close)
			return nil
		}
		if !errdefs.IsUnavailable(err) || time.Now().After(deadline) {
			return fmt.Errorf("%w: %s", err, why)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *service) openEngine(ctx context.Context, dir string) error {
	dirs := engine.DirsOf(dir)
	library, err := images.Open(images.Options{Dir: dirs.Images, Log: s.log})
	if err != nil {
		return err
	}
	puller, err := standalone.NewPuller(s.config.Images, library, s.log)
	if err != nil {
		return err
	}
	s.onClose(puller.Close)
	if s.volumes, err = volumes.Open(dirs.Workspaces, standalone.VolumeOptions(s.config, s.log)); err != nil {
		return err
	}
	s.onClose(s.volumes.Close)
	guest, hash, err := guestbin.Write(dirs.Guest)
	if err != nil {
		return err
	}
	if err := s.openDriver(ctx, dir, guest); err != nil {
		return err
	}
	sweepGuests(dirs.Guest, hash, s.log)
	opts, err := standalone.EngineOptions(s.app, s.config, hash)
	if err != nil {
		return err
	}
	opts.Driver, opts.Store, opts.Images, opts.Volumes, opts.Why, opts.Log = s.driver, s.store, library, s.volumes, s.why, s.log
	opts.ImageBounds, opts.Builder = standalone.ImageBounds(s.config.Images), docker.Builder{Host: s.config.Docker.Host}
	opts.Puller, opts.FetchImage = puller, standalone.ImageFetcher(s.config.Images, puller, s.log)
	opts.JobsDir, opts.LoadTemplates = dirs.Jobs, s.loadTemplates
	opts.Quotas = standalone.Quotas(s.config.Callers)
	if err := errors.Join(s.openTracer(ctx, &opts), s.openGovernance(ctx, dir, &opts)); err != nil {
		return err
	}
	if opts.Egress, err = standalone.EgressOptions(s.config.Egress, s.log); err != nil {
		return err
	}
	if opts.Web, err = standalone.WebOptions(s.config, s.governed.Redactor.Add); err != nil {
		return err
	}
	if opts.Browser, err = standalone.BrowserOptions(s.config); err != nil {
		return err
	}
	if s.engine, err = engine.Open(ctx, opts); err != nil {
		return err
	}
	if err := s.engine.Callers.CheckCertificates(certificates(s.config.TLS)); err != nil {
		return err
	}
	s.engine.Callers.SetCertificates(certificates(s.config.TLS))
	s.noteNotReady(ctx)
	s.noteListening(opts.Cgroup)
	return nil
}

func listenAddress(l net.Listener, c config.Config) string {
	if network, _ := config.SplitListen(c.Listen); network == "unix" {
		return c.Listen
	}
	return l.Addr().String() // the system may have chosen the port
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// sweepLeftovers removes what commands without a server, doctors and workspaces of killed processes
// left behind.
func (s *service) sweepLeftovers(ctx context.Context) {
	err := errors.Join(
		standalone.SweepRuns(ctx, s.config.StateDir, s.log),
		standalone.SweepBuilds(s.config.StateDir),
		sweepDoctors(ctx, s.config, s.log),
		s.volumes.Sweep(ctx),
	)
	if err != nil && ctx.Err() == nil {
		s.log.Warn("leftovers of earlier commands not all removed", "error", err)
	}
}

// run serves until ctx ends or a client asks to take everything down.
func (s *service) run(ctx context.Context) error {
	var once sync.Once
	down := make(chan struct{})
	front, endFront := context.WithCancel(ctx)
	defer endFront()
	// The engine outlives the listener: running calls need it.
	back, endBack := context.WithCancel(context.WithoutCancel(ctx))
	defer endBack()
	defer context.AfterFunc(front, s.engine.HandOver)()
	talk, server := s.interfaces(func() {
		once.Do(func() {
			s.log.Info("taking everything down")
			close(down)
			endFront()
		})
	})
	defer context.AfterFunc(front, talk.Stop)()
	s.api = server
	if s.ephemeral {
		go func() { // ends with standard input, or with the process
			_, _ = io.Copy(io.Discard, s.app.Stdin)
			endFront()
		}()
	}
	var work sync.WaitGroup
	var engineErr error
	work.Go(func() { // waited for below
		engineErr = s.engine.Serve(back)
		endFront()
	})
	s.startUpkeep(back, &work)
	notify(s.log, daemon.SdNotifyReady)
	defer context.AfterFunc(front, func() { notify(s.log, daemon.SdNotifyStopping) })()
	serveErr := server.Serve(front, s.listener, handoverTime)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), handoverTime)
	if err := talk.Close(ending); err != nil {
		s.log.Warn("sessions not all ended", "error", err)
	}
	cancel()
	endBack()
	work.Wait()
	if s.ephemeral {
		once.Do(func() { close(down) })
	}
	select {
	case <-down:
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		defer cancel()
		err := standalone.TakeDown(end, s.driver, s.store, s.log)
		if err == nil { // else a process may still write
			err = s.volumes.Down(end)
		}
		return errors.Join(serveErr, engineErr, err)
	default:
		s.log.Info("stopped; sandboxes live on", "cause", context.Cause(ctx))
		return errors.Join(serveErr, engineErr)
	}
}
