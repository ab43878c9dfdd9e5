// Package volumes owns workspaces: folders on the host that outlive sandboxes,
// what bounds them, who holds them now, their files while no sandbox is asked
// for them, what overlay leases changed of them, and their snapshots.
//
// It decides nothing about callers, and keeps holds in memory only (the store is
// the truth about leases: after a restart the scheduler acquires again what it
// promised, and then calls Sweep). It mounts file systems and overlays on the
// host; a driver binds what a Hold names. It starts no goroutine: Run is its
// caller's. One Manager per folder: the state directory's lock sees to that.
// Errors are classed by containerd/errdefs; besides, *BusyError and
// *ConflictError.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

// Names of folders that are being made or removed begin so.
const (
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
)

// Auto is the mechanism that is found out.
const Auto = "auto"

// Options of a Manager. The zero value bounds nothing and keeps no overlay for
// longer than it has to.
type Options struct {
	// Mechanism enforces quotas: Auto, or one of package disk; empty is
	// disk.None.
	Mechanism string
	// Quota is what a workspace holds that is made without a size; MaxQuota the
	// most that can be asked for, 0 without a bound.
	Quota, MaxQuota int64
	Overlays        Overlays
	// Snapshots is how many a workspace can have.
	Snapshots int
	// Idle is how long a file system stays mounted after its last use; zero is
	// DefaultIdle.
	Idle time.Duration
	Log  *slog.Logger
}

// Overlays bounds what overlay leases leave.
type Overlays struct {
	// Keep is how long the changes of a lease that is over are kept; zero is for
	// ever. Max is how many overlays, live and kept, a workspace can have; zero
	// is DefaultOverlays.
	Keep time.Duration
	Max  int
}

// Defaults of Options.
const (
	DefaultIdle     = 30 * time.Second
	DefaultOverlays = 32
)

// How often what is due is looked at, and how long an end of the process waits
// for what goes on.
const (
	tickTime  = 5 * time.Second
	closeTime = 20 * time.Second
)

// Manager keeps the workspaces of one folder. Methods may be called
// concurrently.
type Manager struct {
	dir  string
	opts Options
	log  *slog.Logger
	// left is what Open found of interrupted work; never changed after.
	left []string

	mechanism func() (quotadir.Mechanism, string)

	mu     sync.Mutex
	byName map[string]*entry
	unfree []string // what of deleted workspaces is left; see freeLater
	// settled: every lease of an earlier process that lives has its hold.
	settled bool
}

// entry is a workspace. The Manager's lock guards it but for what only who has
// the turn touches.
type entry struct {
	meta     meta
	busy     bool // being made or deleted: there for its name only
	holds    map[string]*Hold
	reading  map[int]int // open Files by generation
	writing  int         // those of them that write
	overlays map[string]*overlay
	state    state
	root     string    // of the mounted file system, else ""
	used     time.Time // the last turn
	ending   []ending
	late     []ending // those that failed, for the next tick
	waiting  []*waiter

	turn  chan struct{}
	found bool // it was mounted by another process, whose leases may have it
	swept bool // what an earlier process left on the file system was looked for
}

// ending is what is left to be done for a hold that was given back.
type ending func(ctx context.Context, g *ground) error

func newEntry(w meta) *entry {
	return &entry{
		meta: w, holds: map[string]*Hold{}, reading: map[int]int{}, overlays: map[string]*overlay{}, turn: make(chan struct{}, 1),
		state: state{Version: stateVersion},
	}
}

// Open loads the workspaces in dir, making dir where there is none. One whose
// metadata cannot be read is left alone, logged, and not offered. Nothing is
// removed: see Sweep.
func Open(dir string, opts Options) (*Manager, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("open workspaces: folder %q is not absolute: %w", dir, errdefs.ErrInvalidArgument)
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Idle == 0 {
		opts.Idle = DefaultIdle
	}
	if opts.Overlays.Max == 0 {
		opts.Overlays.Max = DefaultOverlays
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open workspaces: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open workspaces: %w", err)
	}
	m := &Manager{dir: dir, opts: opts, log: opts.Log, byName: map[string]*entry{}}
	m.mechanism = sync.OnceValues(m.detect)
	for _, f := range slices.DeleteFunc(entries, quotadir.IsProbe) { // see Sweep
		if strings.HasPrefix(f.Name(), newPrefix) || strings.HasPrefix(f.Name(), gonePrefix) {
			m.left = append(m.left, f.Name())
			continue
		}
		e, err := m.load(filepath.Join(dir, f.Name()))
		if err != nil {
			m.log.Warn("workspace not usable", "path", filepath.Join(dir, f.Name()), "error", err)
			continue
		}
		m.byName[e.meta.Name] = e
	}
	return m, nil
}

func (m *Manager) load(dir string) (*entry, error) {
	found, err := readMeta(dir)
	if err != nil {
		return nil, err
	}
	if other := m.byName[found.Name]; other != nil {
		return nil, fmt.Errorf("workspace %q is there as %s already", found.Name, other.meta.ID)
	}
	e := newEntry(found)
	if e.state, err = readState(m.content(found)); err != nil {
		return nil, err
	}
	e.overlays, err = m.readOverlays(found)
	return e, err
}

// detect finds out what enforces quotas here, and why it is nothing better.
func (m *Manager) detect() (quotadir.Mechanism, string) {
	switch m.opts.Mechanism {
	case "":
		return quotadir.None, ""
	case Auto:
		return quotadir.Detect(m.dir)
	}
	return quotadir.Mechanism(m.opts.Mechanism), ""
}

// Mechanism is what enforces the quotas of workspaces that are made now, and why
// it is nothing better. The first call may take a while.
func (m *Manager) Mechanism() (quotadir.Mechanism, string) { return m.mechanism() }

// Quotas are what a workspace holds that is made without a size, and the most
// that can be asked for; 0 is no bound.
func (m *Manager) Quotas() (usual, most int64) { return m.opts.Quota, m.opts.MaxQuota }

// Dir is the folder that all workspaces are in.
func (m *Manager) Dir() string { return m.dir }

func (m *Manager) folder(w meta) string { return filepath.Join(m.dir, w.ID) }

// content is the folder that a restore swaps.
func (m *Manager) content(w meta) string {
	dir := filepath.Join(m.folder(w), contentDir)
	if _, err := os.Lstat(dir); err != nil {
		return m.folder(w) // of an earlier version
	}
	return dir
}

// disk is the folder of a workspace's disk; ok is false where it has none.
func (m *Manager) disk(w meta) (dir string, ok bool) {
	content := m.content(w)
	return filepath.Join(content, diskDir), content != m.folder(w)
}

// on has do work on a workspace while nobody else does, with its file system
// mounted.
func (m *Manager) on(ctx context.Context, name string, do func(*ground) error) error {
	e, err := m.take(ctx, name)
	if err != nil {
		return err
	}
	defer m.pass(ctx, e)
	g, err := m.ground(ctx, e)
	if err != nil {
		return err
	}
	if err := g.end(ctx); err != nil {
		m.log.Warn("what a lease left is not put away yet", "workspace", e.meta.Name, "error", err)
	}
	return do(g)
}

// take waits for the turn of a workspace. Who gets it calls pass.
func (m *Manager) take(ctx context.Context, name string) (*entry, error) {
	m.mu.Lock()
	e, err := m.find(name)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	select {
	case e.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for workspace %s: %w", name, context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byName[name] != e || e.busy { // deleted meanwhile
		<-e.turn
		return nil, noWorkspace(name)
	}
	return e, nil
}

// pass gives the turn back, after what came up meanwhile.
func (m *Manager) pass(ctx context.Context, e *entry) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	for {
		m.endAll(ctx, e)
		<-e.turn
		m.mu.Lock()
		more := len(e.ending) > 0 && m.byName[e.meta.Name] == e && !e.busy
		m.wake(e)
		m.mu.Unlock()
		if !more {
			return
		}
		select {
		case e.turn <- struct{}{}:
		default: // whoever was quicker does it
			return
		}
	}
}

// endAll does what is left to be done for holds that were given back; what fails
// is left for the next tick.
func (m *Manager) endAll(ctx context.Context, e *entry) {
	m.mu.Lock()
	todo := len(e.ending) > 0 && m.byName[e.meta.Name] == e
	m.mu.Unlock()
	if !todo {
		return
	}
	g, err := m.ground(ctx, e)
	if err == nil {
		err = g.end(ctx)
	} else {
		m.mu.Lock()
		e.late, e.ending = append(e.late, e.ending...), nil
		m.mu.Unlock()
	}
	if err != nil {
		m.log.Warn("what a lease left is not put away yet", "workspace", e.meta.Name, "error", err)
	}
}

func (g *ground) end(ctx context.Context) error {
	var errs []error
	for {
		g.m.mu.Lock()
		todo := g.e.ending
		g.e.ending = nil
		g.m.mu.Unlock()
		if len(todo) == 0 {
			return errors.Join(errs...)
		}
		for _, end := range todo {
			if err := end(ctx, g); err != nil {
				errs = append(errs, err)
				g.m.mu.Lock()
				g.e.late = append(g.e.late, end)
				g.m.mu.Unlock()
			}
		}
	}
}

// later leaves something to be done, at once if nobody has the turn.
func (m *Manager) later(e *entry, do ending) {
	m.mu.Lock()
	e.ending = append(e.ending, do)
	m.mu.Unlock()
	select {
	case e.turn <- struct{}{}:
		m.pass(context.Background(), e)
	default: // whoever has it does this too
	}
}

// ground mounts the file system of a workspace. Who calls it has the turn.
func (m *Manager) ground(ctx context.Context, e *entry) (*ground, error) {
	g := &ground{m: m, e: e, root: e.root}
	if g.root == "" {
		g.root = m.folder(e.meta)
		if dir, ok := m.disk(e.meta); ok {
			m.mu.Lock()
			settled := m.settled
			m.mu.Unlock()
			if mounted, err := quotadir.Mounted(dir); err == nil {
				e.found = mounted && !settled
			}
			root, err := quotadir.Mount(ctx, dir)
			if err != nil {
				return nil, fmt.Errorf("files of workspace %s: %w", e.meta.Name, err)
			}
			g.root = root
		}
	}
	m.mu.Lock()
	e.root, e.used = g.root, time.Now()
	m.mu.Unlock()
	if e.swept {
		return g, nil
	}
	if err := g.prepare(ctx); err != nil {
		return nil, fmt.Errorf("files of workspace %s: %w", e.meta.Name, err)
	}
	e.swept = true
	return g, nil
}

// prepare removes what an interrupted change left on the file system, and makes
// the first folder of files where it is new.
func (g *ground) prepare(ctx context.Context) error {
	_, err := os.Lstat(g.current())
	if errors.Is(err, os.ErrNotExist) && g.e.state.Current == 0 {
		temp := filepath.Join(g.root, newGeneration)
		if err = g.m.remove(ctx, temp); err == nil {
			err = makeData(temp)
		}
		if err == nil {
			err = os.Rename(temp, g.current())
		}
	}
	if err != nil {
		return err
	}
	return errors.Join(g.tidy(ctx), g.sweepUppers(ctx), g.m.tidyFolder(ctx, g.e.meta))
}

// Sweep frees what an interrupted Create or Delete of an earlier process left,
// as Open found it, and ends the overlays whose leases did. It is to be called
// once all leases that live have been acquired again; it takes as long as the
// files are many, and may run beside everything else.
func (m *Manager) Sweep(ctx context.Context) error {
	var errs []error
	for _, name := range m.left {
		errs = append(errs, m.free(ctx, name))
	}
	m.mu.Lock()
	m.settled = true
	var stale []string
	for name, e := range m.byName {
		if !e.busy && (m.deserted(e) || e.state.Writer != nil || len(e.state.Pins) > 0) {
			stale = append(stale, name)
		}
	}
	m.mu.Unlock()
	for _, name := range stale {
		if err := m.on(ctx, name, func(g *ground) error { return g.settle(ctx) }); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, m.sweepDisks(ctx), quotadir.SweepProbes(ctx, m.dir))...)
}

// sweepDisks unmounts what an earlier process left mounted.
func (m *Manager) sweepDisks(ctx context.Context) error {
	return quotadir.Sweep(ctx, m.dir, func(dir string) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, e := range m.byName {
			if d, ok := m.disk(e.meta); ok && d == dir {
				return e.root != "" || e.busy || len(e.turn) > 0
			}
		}
		return false
	})
}

// free removes a folder of m.dir with all that commands left in it.
func (m *Manager) free(ctx context.Context, name string) error {
	if dir := filepath.Join(m.dir, name, contentDir, diskDir); exists(dir) {
		if err := quotadir.Unmount(ctx, dir); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("free workspace: %w", err)
		}
	}
	if err := m.remove(ctx, filepath.Join(m.dir, name)); err != nil {
		return fmt.Errorf("free workspace: %w", err)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Run looks after what is due until ctx ends: overlays that were kept for long
// enough, and file systems that nobody uses.
func (m *Manager) Run(ctx context.Context) error {
	t := time.NewTicker(min(tickTime, m.opts.Idle))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		m.tick(ctx, time.Now())
	}
}

func (m *Manager) tick(ctx context.Context, now time.Time) {
	m.mu.Lock()
	entries := make([]*entry, 0, len(m.byName))
	for _, e := range m.byName {
		if !e.busy {
			entries = append(entries, e)
		}
	}
	m.mu.Unlock()
	m.freeLeft(ctx)
	for _, e := range entries {
		m.retry(e)
		if err := m.expire(ctx, e, now); err != nil && ctx.Err() == nil {
			m.log.Warn("old overlay not removed", "workspace", e.meta.Name, "error", err)
		}
		if err := m.rest(ctx, e, now.Add(-m.opts.Idle)); err != nil {
			m.log.Warn("file system not unmounted", "workspace", e.meta.Name, "error", err)
		}
	}
}

// retry takes up again what failed.
func (m *Manager) retry(e *entry) {
	m.mu.Lock()
	late := e.late
	e.late = nil
	m.mu.Unlock()
	for _, end := range late {
		m.later(e, end)
	}
}

// rest unmounts a file system that was not used since before.
func (m *Manager) rest(ctx context.Context, e *entry, before time.Time) error {
	select {
	case e.turn <- struct{}{}:
	default:
		return nil
	}
	defer m.pass(ctx, e)
	m.mu.Lock()
	idle := e.root != "" && !e.inUse() && len(e.ending)+len(e.late) == 0 && e.used.Before(before)
	m.mu.Unlock()
	if !idle {
		return nil
	}
	return m.unmount(ctx, e)
}

// inUse is to be called with the lock held.
func (e *entry) inUse() bool {
	for _, users := range e.reading {
		if users > 0 {
			return true
		}
	}
	return len(e.holds) > 0 || e.writing > 0
}

// unmount is to be called with the turn.
func (m *Manager) unmount(ctx context.Context, e *entry) error {
	if dir, ok := m.disk(e.meta); ok {
		if err := quotadir.Unmount(ctx, dir); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e.root = ""
	return nil
}

// Close unmounts what no lease has. It is to be called when nothing else is any
// more; leases live on, and so do their mounts.
func (m *Manager) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	m.mu.Lock()
	var names []string
	for name, e := range m.byName {
		if e.root != "" || len(e.ending)+len(e.late) > 0 {
			names = append(names, name)
		}
	}
	m.mu.Unlock()
	var errs []error
	for _, name := range names {
		e, err := m.take(ctx, name)
		if err != nil {
			continue
		}
		m.retryHere(ctx, e)
		m.mu.Lock()
		used := e.inUse() || m.deserted(e) || e.found && !m.settled
		m.mu.Unlock()
		if !used {
			errs = append(errs, m.unmount(ctx, e))
		}
		<-e.turn
	}
	return errors.Join(errs...)
}

// retryHere tries what failed a last time.
func (m *Manager) retryHere(ctx context.Context, e *entry) {
	m.mu.Lock()
	e.ending, e.late = append(e.ending, e.late...), nil
	m.mu.Unlock()
	m.endAll(ctx, e)
}

// find is to be called with the lock held.
func (m *Manager) find(name string) (*entry, error) {
	e := m.byName[name]
	if e == nil || e.busy {
		return nil, noWorkspace(name)
	}
	return e, nil
}

func noWorkspace(name string) error {
	return fmt.Errorf("there is no workspace %q: %w", name, errdefs.ErrNotFound)
}

// hit is fault.Hit. The points of this package are died at in its own tests.
func hit(point string) { failpoint.Hit(point) }
