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
	tickInterval   = 5 * time.Second
	cleanupTimeout = 20 * time.Second
)

// Manager keeps the workspaces of one folder. Methods may be called
// concurrently.
type Manager struct {
	dir  string
	opts Options
	log  *slog.Logger
	// interrupted is what Open found of interrupted work; never changed after.
	interrupted []string

	mechanism func() (quotadir.Mechanism, string)

	mu        sync.Mutex
	byName    map[string]*entry
	undeleted []string // what of deleted workspaces is left; see freeLater
	// leasesRestored: every lease of an earlier process that lives has its hold.
	leasesRestored bool
}

// entry is a workspace. The Manager's lock guards it but for what only who has
// the turn touches.
type entry struct {
	meta           meta
	creating       bool // being made or deleted: there for its name only
	holds          map[string]*Hold
	readers        map[int]int // open Files by generation
	writers        int         // those of them that write
	overlays       map[string]*overlay
	state          state
	root           string    // of the mounted file system, else ""
	lastUsed       time.Time // the last turn
	cleanups       []cleanup
	failedCleanups []cleanup // those that failed, for the next tick
	waiters        []*waiter

	lock          chan struct{}
	mountedBefore bool // it was mounted by another process, whose leases may have it
	prepared      bool // what an earlier process left on the file system was looked for
}

func newEntry(w meta) *entry {
	return &entry{
		meta: w, holds: map[string]*Hold{}, readers: map[int]int{}, overlays: map[string]*overlay{}, lock: make(chan struct{}, 1),
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
	m.mechanism = sync.OnceValues(m.detectMechanism)
	for _, f := range slices.DeleteFunc(entries, quotadir.IsProbe) { // see Sweep
		if strings.HasPrefix(f.Name(), newPrefix) || strings.HasPrefix(f.Name(), gonePrefix) {
			m.interrupted = append(m.interrupted, f.Name())
			continue
		}
		e, err := m.loadWorkspace(filepath.Join(dir, f.Name()))
		if err != nil {
			m.log.Warn("workspace not usable", "path", filepath.Join(dir, f.Name()), "error", err)
			continue
		}
		m.byName[e.meta.Name] = e
	}
	return m, nil
}

func (m *Manager) loadWorkspace(dir string) (*entry, error) {
	found, err := readMeta(dir)
	if err != nil {
		return nil, err
	}
	if other := m.byName[found.Name]; other != nil {
		return nil, fmt.Errorf("workspace %q is there as %s already", found.Name, other.meta.ID)
	}
	e := newEntry(found)
	if e.state, err = readState(m.contentPath(found)); err != nil {
		return nil, err
	}
	e.overlays, err = m.readOverlays(found)
	return e, err
}

// detectMechanism finds out what enforces quotas here, and why it is nothing better.
func (m *Manager) detectMechanism() (quotadir.Mechanism, string) {
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

func (m *Manager) workspacePath(w meta) string { return filepath.Join(m.dir, w.ID) }

// contentPath is the folder that a restore swaps.
func (m *Manager) contentPath(w meta) string {
	dir := filepath.Join(m.workspacePath(w), contentDir)
	if _, err := os.Lstat(dir); err != nil {
		return m.workspacePath(w) // of an earlier version
	}
	return dir
}

// diskPath is the folder of a workspace's disk; ok is false where it has none.
func (m *Manager) diskPath(w meta) (dir string, ok bool) {
	content := m.contentPath(w)
	return filepath.Join(content, diskDir), content != m.workspacePath(w)
}

// Sweep frees what an interrupted Create or Delete of an earlier process left,
// as Open found it, and ends the overlays whose leases did. It is to be called
// once all leases that live have been acquired again; it takes as long as the
// files are many, and may run beside everything else.
func (m *Manager) Sweep(ctx context.Context) error {
	var errs []error
	for _, name := range m.interrupted {
		errs = append(errs, m.deleteFiles(ctx, name))
	}
	m.mu.Lock()
	m.leasesRestored = true
	var stale []string
	for name, e := range m.byName {
		if !e.creating && (m.hasOrphanedOverlay(e) || e.state.Writer != nil || len(e.state.Pins) > 0) {
			stale = append(stale, name)
		}
	}
	m.mu.Unlock()
	for _, name := range stale {
		err := m.withMounted(ctx, name, func(ws *mountedWorkspace) error { return ws.endOrphans(ctx) })
		if err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, m.unmountUnknownDisks(ctx), quotadir.SweepProbes(ctx, m.dir))...)
}

// Run looks after what is due until ctx ends: overlays that were kept for long
// enough, and file systems that nobody uses.
func (m *Manager) Run(ctx context.Context) error {
	t := time.NewTicker(min(tickInterval, m.opts.Idle))
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
		if !e.creating {
			entries = append(entries, e)
		}
	}
	m.mu.Unlock()
	m.retryDeletes(ctx)
	for _, e := range entries {
		m.retryCleanups(e)
		if err := m.discardExpired(ctx, e, now); err != nil && ctx.Err() == nil {
			m.log.Warn("old overlay not removed", "workspace", e.meta.Name, "error", err)
		}
		if err := m.unmountIdle(ctx, e, now.Add(-m.opts.Idle)); err != nil {
			m.log.Warn("file system not unmounted", "workspace", e.meta.Name, "error", err)
		}
	}
}

// inUse is to be called with the lock held.
func (e *entry) inUse() bool {
	for _, users := range e.readers {
		if users > 0 {
			return true
		}
	}
	return len(e.holds) > 0 || e.writers > 0
}

// Close unmounts what no lease has. It is to be called when nothing else is any
// more; leases live on, and so do their mounts.
func (m *Manager) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	m.mu.Lock()
	var names []string
	for name, e := range m.byName {
		if e.root != "" || len(e.cleanups)+len(e.failedCleanups) > 0 {
			names = append(names, name)
		}
	}
	m.mu.Unlock()
	var errs []error
	for _, name := range names {
		e, err := m.lockWorkspace(ctx, name)
		if err != nil {
			continue
		}
		m.retryCleanupsLocked(ctx, e)
		m.mu.Lock()
		used := e.inUse() || m.hasOrphanedOverlay(e) || e.mountedBefore && !m.leasesRestored
		m.mu.Unlock()
		if !used {
			errs = append(errs, m.unmount(ctx, e))
		}
		<-e.lock
	}
	return errors.Join(errs...)
}

// findWorkspace is to be called with the lock held.
func (m *Manager) findWorkspace(name string) (*entry, error) {
	e := m.byName[name]
	if e == nil || e.creating {
		return nil, workspaceNotFound(name)
	}
	return e, nil
}

func workspaceNotFound(name string) error {
	return fmt.Errorf("there is no workspace %q: %w", name, errdefs.ErrNotFound)
}

// hitFailpoint is fault.Hit. The points of this package are died at in its own tests.
func hitFailpoint(point string) { failpoint.Hit(point) }
