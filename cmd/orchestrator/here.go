package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestbin"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// localOrphanTimeout is how long a guest of a run without a server lives without its
// host: the janitor is quicker, and this is for the case that it was killed as
// well.
const localOrphanTimeout = 15 * time.Second

// sweepTime bounds what a run does for earlier ones.
const sweepTime = 10 * time.Second

// runLocally is a run in this process: its own state directory S/runs/<id> for
// everything that is made, the images and workspaces of S. A janitor is there
// before anything is made, and cleans up whatever becomes of us.
func (a *app) runLocally(ctx context.Context, c config.Config, req v1.Run, st engine.Stream) (r v1.ExecResult, err error) {
	log := logger(a.stderr, c.Log)
	if req.Template == "" {
		if req.Template, err = a.templateOfClass(c, req.Class); err != nil {
			return r, err
		}
	}
	if c, err = a.withTemplate(c, req.Template); err != nil {
		return r, err
	}
	if err := makeStateDir(c.StateDir); err != nil {
		return r, err
	}
	h := &localRun{app: a, config: c, log: log, template: req.Template, reaches: req.Egress != nil}
	defer func() { err = errors.Join(err, h.close(ctx)) }()
	if err := h.open(ctx, req.Workspace); err != nil {
		return r, err
	}
	req.WhenEmpty = "cold" // there is no pool
	back, end := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan error, 1)
	go func() { done <- h.engine.Serve(back) }() // waited for below
	r, err = h.engine.Run(ctx, engine.Local(""), req, st)
	end()
	return r, errors.Join(err, <-done)
}

func sortedKeys[T any](m map[string]T) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// localRun is a run in this process: what it holds.
type localRun struct {
	app      *app
	config   config.Config
	log      *slog.Logger
	template string
	governs  bool // tools are called, not only commands run
	reaches  bool // it has egress rules

	dir     string     // S/runs/<id>
	locks   []*os.File // the janitor has them too: they are held until both have ended
	janitor *janitor
	store   *store.Store
	driver  runtime.Driver
	volumes *volumes.Manager
	rules   *governance
	engine  *engine.Engine
}

// runRecord is what a janitor has to know of a run.
type runRecord struct {
	Docker     config.Docker     `json:"docker"`
	Containerd config.Containerd `json:"containerd"`
	OCI        config.OCI        `json:"oci"`
	Guest      string            `json:"guest"`
	// Workspaces: the run has them, and its janitor after it.
	Workspaces bool `json:"workspaces"`
}

const recordFile = "run.json"

func (h *localRun) open(ctx context.Context, workspace string) error {
	dir := h.config.StateDir
	using, err := waitForLock(ctx, dir, imagesUse, unix.LOCK_SH)
	if err != nil {
		return err
	}
	h.locks = append(h.locks, using)
	if workspace != "" {
		lock, err := lockFile(filepath.Join(dir, workspacesLock), unix.LOCK_EX)
		if err != nil {
			return workspaceHeld(dir, err)
		}
		h.locks = append(h.locks, lock)
		if err := leftHolding(ctx, dir, workspace); err != nil {
			return err
		}
	}
	guest, hash, err := guestbin.Write(engine.DirsOf(dir).Guest)
	if err != nil {
		return err
	}
	sweep, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	if err := sweepRuns(sweep, dir, h.log); err != nil {
		h.log.Warn("leftovers of earlier runs not removed", "error", err)
	}
	if err := h.makeDir(dir); err != nil {
		return err
	}
	if h.janitor, err = startJanitor(h.dir, h.locks); err != nil {
		return err
	}
	return h.openEngine(ctx, guest, hash, workspace != "")
}

func workspaceHeld(dir string, err error) error {
	if !errdefs.IsUnavailable(err) {
		return err
	}
	if pid := serverOf(dir); pid != "" {
		return &servedError{refuse(errdefs.ErrUnavailable, "the workspaces in %s are held by the server with pid %s: use that server (--address), and no --no-server", dir, pid)}
	}
	return refuse(errdefs.ErrUnavailable, "the workspaces in %s are used by another command without a server: wait for its end, or start a server for more than one at a time",
		dir)
}

// makeDir makes S/runs/<id> and takes its lock before the folder has the name
// that sweepRuns looks for.
func (h *localRun) makeDir(stateDir string) (err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	parent := filepath.Join(stateDir, runsDir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return fmt.Errorf("folder of runs: %w", err)
	}
	fresh, err := scratch.Make(parent, newRun)
	if err != nil {
		return fmt.Errorf("folder of runs: %w", err)
	}
	defer func() { err = errors.Join(err, fresh.Release()) }()
	lock, err := lockFile(filepath.Join(fresh.Path, "lock"), unix.LOCK_EX)
	if err != nil {
		return errors.Join(err, os.RemoveAll(fresh.Path))
	}
	h.locks = append(h.locks, lock)
	dir := filepath.Join(parent, id.String())
	if err := os.Rename(fresh.Path, dir); err != nil {
		return errors.Join(fmt.Errorf("folder of runs: %w", err), os.RemoveAll(fresh.Path))
	}
	h.dir = dir
	return nil
}

// openEngine has the images only until theirs is unpacked and known to the
// driver.
func (h *localRun) openEngine(ctx context.Context, guest, hash string, workspace bool) error {
	dirs := engine.DirsOf(h.config.StateDir)
	d := drivers{config: h.config, stateDir: h.dir, guest: guest, log: h.log}
	var err error
	if h.store, err = store.Open(ctx, h.dir); err != nil {
		return err
	}
	// Before there is a driver: making one may leave something already.
	if err := writeRecord(h.dir, runRecord{Docker: h.config.Docker, Containerd: h.config.Containerd, OCI: h.config.OCI, Guest: guest, Workspaces: workspace}); err != nil {
		return err
	}
	var why string
	if h.driver, why, err = d.choose(ctx, nil); err != nil {
		return err
	}
	if !workspace {
		dirs.Workspaces = filepath.Join(h.dir, "workspaces") // none is asked for, and S's may be held
	}
	if h.volumes, err = volumes.Open(dirs.Workspaces, volumeOptions(h.config, h.log)); err != nil {
		return err
	}
	opts, err := h.app.engineOptions(h.config, hash)
	if err != nil {
		return err
	}
	h.config.Guest.OrphanTimeout = config.Duration(localOrphanTimeout)
	opts.Templates = templates(h.config, h.template)
	for i := range opts.Templates {
		opts.Templates[i].Pool.Min = 0
	}
	opts.Driver, opts.Store, opts.Volumes, opts.Why, opts.Log = h.driver, h.store, h.volumes, why, h.log
	if h.reaches || h.governs { // else nobody needs the files with secrets
		if opts.Egress, err = egressOf(h.config.Egress, h.log); err != nil {
			return err
		}
	}
	if h.governs {
		if h.rules, err = openGovernance(ctx, h.config, h.dir, h.store, h.log); err != nil {
			return err
		}
		opts.Governance = h.rules.Governance
	}
	lock, err := waitForLock(ctx, h.config.StateDir, imagesLock, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	if opts.Images, err = images.Open(images.Options{Dir: dirs.Images, Log: h.log}); err != nil {
		return err
	}
	h.engine, err = engine.Open(ctx, opts)
	return imageHint(err)
}

func writeRecord(dir string, r runRecord) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, recordFile), b, 0o600); err != nil {
		return fmt.Errorf("record of a run: %w", err)
	}
	return nil
}

func readRecord(dir string) (r runRecord, found bool, err error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err != nil {
		return r, false, fmt.Errorf("record of a run: %w", err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, false, fmt.Errorf("record of a run: %w", err)
	}
	return r, true, nil
}

// close removes what the run made, and waits for the janitor, which finds
// nothing left to do. What cannot be removed here is left to it.
func (h *localRun) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTime)
	defer cancel()
	var err error
	if h.driver != nil {
		err = errors.Join(takeDown(ctx, h.driver, h.store, h.log), h.driver.Close())
	}
	if h.volumes != nil && err == nil { // else something may still write
		h.volumes.ReleaseAll()
		err = h.volumes.Close()
	}
	if h.rules != nil {
		err = errors.Join(err, h.rules.close())
	}
	if h.store != nil {
		err = errors.Join(err, h.store.Close())
	}
	if h.dir != "" && err == nil {
		err = removeRun(ctx, h.dir)
	}
	for _, l := range h.locks {
		err = errors.Join(err, l.Close())
	}
	if h.janitor != nil {
		err = errors.Join(err, h.janitor.wait(ctx))
	}
	return err
}
