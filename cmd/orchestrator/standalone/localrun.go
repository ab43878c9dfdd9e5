//go:build linux

package standalone

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

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestbin"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// localOrphanTimeout is how long the guest of a local run lives without its host. The janitor is
// faster; this applies if it was killed as well.
const localOrphanTimeout = 15 * time.Second

// sweepTime bounds the cleaning up after earlier runs.
const sweepTime = 10 * time.Second

// RunLocally calls do with a client of an engine in this process, which can run one command, and
// with the request completed for it. The engine has its own state directory S/runs/<id> for
// everything that it makes, and the images and workspaces of S. A janitor is started before
// anything is made, and cleans up however this process ends.
func RunLocally(
	ctx context.Context,
	a *cli.App,
	c config.Config,
	req v1.Run,
	do func(*client.Client, v1.Run) error,
) (err error) {
	log := Logger(a.Stderr, c.Log)
	if req.Template == "" {
		if req.Template, err = templateOfClass(a, c, req.Class); err != nil {
			return err
		}
	}
	if c, err = SelectTemplate(a, c, req.Template); err != nil {
		return err
	}
	if err := MakeStateDir(c.StateDir); err != nil {
		return err
	}
	h := &LocalRun{App: a, Config: c, Log: log, Template: req.Template, hasEgress: req.Egress != nil}
	defer func() { err = errors.Join(err, h.Close(ctx)) }()
	if err := h.Open(ctx, req.Workspace); err != nil {
		return err
	}
	req.WhenEmpty = "cold" // without a pool
	return h.Serve(ctx, func() error {
		return withClient(ctx, h.Engine, func(cl *client.Client) error { return do(cl, req) })
	})
}

// Serve runs the engine until do has returned.
func (h *LocalRun) Serve(ctx context.Context, do func() error) error {
	back, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	done := make(chan error, 1)
	go func() { done <- h.Engine.Serve(back) }() // waited for below
	err := do()
	end()
	return errors.Join(err, <-done)
}

// SortedKeys returns the keys of m in order.
func SortedKeys[T any](m map[string]T) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// LocalRun is an engine in this process with its own sandboxes. Set the exported fields but Engine,
// then call Open.
type LocalRun struct {
	App       *cli.App
	Config    config.Config
	Log       *slog.Logger
	Template  string
	Governed  bool // tools are called too
	hasEgress bool // the run has egress rules

	dir     string     // S/runs/<id>
	locks   []*os.File // also held by the janitor: they are released when both have ended
	janitor *janitor
	store   *store.Store
	driver  runtime.Driver
	volumes *volumes.Manager
	rules   *Governance
	Engine  *engine.Engine
}

// runRecord tells the janitor how to clean up.
type runRecord struct {
	Docker     config.Docker     `json:"docker"`
	Containerd config.Containerd `json:"containerd"`
	OCI        config.OCI        `json:"oci"`
	Kubernetes config.Kubernetes `json:"kubernetes"`
	Guest      string            `json:"guest"`
	// Workspaces says that the run, and then its janitor, holds the lock of the workspaces.
	Workspaces bool `json:"workspaces"`
}

const recordFile = "run.json"

// Open takes the locks, starts the janitor and opens the engine. Call Close after it, also if it
// fails.
func (h *LocalRun) Open(ctx context.Context, workspace string) error {
	dir := h.Config.StateDir
	using, err := waitForLock(ctx, dir, ImagesUse, unix.LOCK_SH)
	if err != nil {
		return err
	}
	h.locks = append(h.locks, using)
	if workspace != "" {
		lock, err := LockFile(filepath.Join(dir, WorkspacesLock), unix.LOCK_EX)
		if err != nil {
			return ExplainHeld(dir, err)
		}
		h.locks = append(h.locks, lock)
		if err := CheckUnheld(ctx, dir, workspace); err != nil {
			return err
		}
	}
	guest, hash, err := guestbin.Write(engine.DirsOf(dir).Guest)
	if err != nil {
		return err
	}
	sweep, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	if err := SweepRuns(sweep, dir, h.Log); err != nil {
		h.Log.Warn("leftovers of earlier runs not removed", "error", err)
	}
	if err := h.makeDir(dir); err != nil {
		return err
	}
	if h.janitor, err = startJanitor(h.dir, h.locks); err != nil {
		return err
	}
	return h.openEngine(ctx, guest, hash, workspace != "")
}

// ExplainHeld says which process holds the workspaces if err is that their lock is taken. It
// returns other errors unchanged.
func ExplainHeld(dir string, err error) error {
	if !errdefs.IsUnavailable(err) {
		return err
	}
	if pid := cli.ServerPID(dir); pid != "" {
		return &HeldByServerError{
			cli.Refuse(
				errdefs.ErrUnavailable,
				"the workspaces in %s are held by the server with pid %s: use that server (--address) without --no-server",
				dir,
				pid,
			),
		}
	}
	return cli.Refuse(
		errdefs.ErrUnavailable,
		"the workspaces in %s are used by another command without a server: wait for its end, or start a server",
		dir,
	)
}

// makeDir makes S/runs/<id> and takes its lock.
func (h *LocalRun) makeDir(stateDir string) error {
	dir, lock, err := makeRunDir(stateDir)
	if err != nil {
		return err
	}
	h.dir, h.locks = dir, append(h.locks, lock)
	return nil
}

// makeRunDir makes S/runs/<id> and takes its lock. SweepRuns must not see the directory unlocked,
// so it gets its name last.
func makeRunDir(stateDir string) (dir string, lock *os.File, err error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", nil, err
	}
	parent := filepath.Join(stateDir, RunsDir)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return "", nil, fmt.Errorf("directory of runs: %w", err)
	}
	fresh, err := scratch.Make(parent, newRunPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("directory of runs: %w", err)
	}
	defer func() { err = errors.Join(err, fresh.Release()) }()
	if lock, err = LockFile(filepath.Join(fresh.Path, "lock"), unix.LOCK_EX); err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(fresh.Path))
	}
	dir = filepath.Join(parent, id.String())
	if err := os.Rename(fresh.Path, dir); err != nil {
		return "", nil, errors.Join(fmt.Errorf("directory of runs: %w", err), os.RemoveAll(fresh.Path), lock.Close())
	}
	return dir, lock, nil
}

// openEngine opens the parts and the engine. It holds the images' lock only until the image is
// unpacked and the driver knows it.
func (h *LocalRun) openEngine(ctx context.Context, guest, hash string, workspace bool) error {
	dirs := engine.DirsOf(h.Config.StateDir)
	d := Drivers{Config: h.Config, StateDir: h.dir, Guest: guest, Log: h.Log}
	var err error
	if h.store, err = store.Open(ctx, h.dir); err != nil {
		return err
	}
	// Write it before opening a driver, which may create something already.
	if err := writeRecord(h.dir, runRecord{
		Docker: h.Config.Docker, Containerd: h.Config.Containerd, OCI: h.Config.OCI,
		Kubernetes: h.Config.Kubernetes, Guest: guest, Workspaces: workspace,
	}); err != nil {
		return err
	}
	var why string
	if h.driver, why, err = d.Choose(ctx, nil); err != nil {
		return err
	}
	if !workspace {
		dirs.Workspaces = filepath.Join(h.dir, "workspaces") // not used by this run; the lock of the shared one may be taken
	}
	if h.volumes, err = volumes.Open(dirs.Workspaces, VolumeOptions(h.Config, h.Log)); err != nil {
		return err
	}
	opts, err := EngineOptions(h.App, h.Config, hash)
	if err != nil {
		return err
	}
	h.Config.Guest.OrphanTimeout = config.Duration(localOrphanTimeout)
	opts.Templates = configuredTemplates(h.Config, h.Template)
	for i := range opts.Templates {
		opts.Templates[i].Pool.Min = 0
	}
	opts.Driver, opts.Store, opts.Volumes, opts.Why, opts.Log = h.driver, h.store, h.volumes, why, h.Log
	if h.hasEgress || h.Governed { // else the files with secrets are not needed
		if opts.Egress, err = EgressOptions(h.Config.Egress, h.Log); err != nil {
			return err
		}
	}
	if h.Governed {
		if h.rules, err = OpenGovernance(ctx, h.Config, h.dir, h.store, nil, h.Log); err != nil {
			return err
		}
		opts.Governance = h.rules.Config
	}
	lock, err := waitForLock(ctx, h.Config.StateDir, ImagesLock, unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	if opts.Images, err = images.Open(images.Options{Dir: dirs.Images, Log: h.Log}); err != nil {
		return err
	}
	h.Engine, err = engine.Open(ctx, opts)
	return explainMissingImage(err)
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

// Close removes what the run created and waits for the janitor, which then has nothing to do. The
// janitor removes what Close cannot remove.
func (h *LocalRun) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), teardownTime)
	defer cancel()
	var err error
	if h.driver != nil {
		err = errors.Join(TakeDown(ctx, h.driver, h.store, h.Log), h.driver.Close())
	}
	if h.volumes != nil && err == nil { // else a process may still write
		h.volumes.ReleaseAll()
		err = h.volumes.Close()
	}
	if h.rules != nil {
		err = errors.Join(err, h.rules.Close())
	}
	if h.store != nil {
		err = errors.Join(err, h.store.Close())
	}
	if h.dir != "" && err == nil {
		err = RemoveRun(ctx, h.dir)
	}
	for _, l := range h.locks {
		err = errors.Join(err, l.Close())
	}
	if h.janitor != nil {
		err = errors.Join(err, h.janitor.wait(ctx))
	}
	return err
}
