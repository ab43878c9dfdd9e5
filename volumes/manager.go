// Package volumes manages workspaces: directories on the host that outlive sandboxes. It enforces
// quotas, tracks which leases use a workspace, gives the host access to files, keeps and commits
// the changes of overlay leases, and makes snapshots.
//
// Callers are not authenticated here. Holds are in memory only, because the store records the
// leases: after a restart the scheduler acquires its leases again and then calls Sweep. The package
// mounts file systems and overlays on the host; a driver binds what a Hold names into the sandbox.
//
// A Manager is safe for concurrent use and starts no goroutine; the caller runs Run. Only one
// Manager may use a directory, which the state directory's lock ensures. Errors have a class of
// containerd/errdefs. Besides, there are *BusyError, *ConflictError, *FullError, *LiveError and
// *PathError.
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

// Name prefixes of directories that are being created or removed.
const (
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
)

// Auto selects the best mechanism that works on the host.
const Auto = "auto"

// Options configure a Manager. The zero value sets no limits and keeps overlays until they are
// committed or discarded.
type Options struct {
	// Mechanism enforces quotas: Auto or one of package quotadir. Empty means quotadir.None.
	Mechanism string
	// Quota is the default quota in bytes; MaxQuota is the largest that can be requested. 0 means
	// no limit.
	Quota, MaxQuota int64
	Overlays        Overlays
	// Snapshots is the maximum per workspace.
	Snapshots int
	// Idle is how long a file system stays mounted after its last use. 0 means DefaultIdle.
	Idle time.Duration
	Log  *slog.Logger
}

// Overlays limits what overlay leases leave behind.
type Overlays struct {
	// Keep is how long an ended lease's changes are kept; 0 means indefinitely. Max is the maximum
	// of live and kept overlays per workspace; 0 means DefaultOverlays.
	Keep time.Duration
	Max  int
}

// Default values of Options.
const (
	DefaultIdle     = 30 * time.Second
	DefaultOverlays = 32
)

// tickInterval is how often Run looks for due work. cleanupTimeout limits the work when a workspace
// is unlocked and in Close.
const (
	tickInterval   = 5 * time.Second
	cleanupTimeout = 20 * time.Second
)

// Manager manages the workspaces of one directory. Its methods may be called concurrently.
type Manager struct {
	dir  string
	opts Options
	log  *slog.Logger
	// interrupted lists directories of unfinished work that Open found. It is not changed
	// afterwards.
	interrupted []string

	mechanism func() (quotadir.Mechanism, string)

	mu        sync.Mutex
	byName    map[string]*entry
	undeleted []string // rest of deleted workspaces; see deleteFilesLater
	// removeClaim deletes a workspace's volume claim; nil if the driver has none.
	removeClaim func(ctx context.Context, id string) error
	// leasesRestored reports that every live lease of an earlier process has its hold.
	leasesRestored bool
}

// entry is a workspace. Manager.mu guards its fields. The holder of lock may read state and root
// without mu; only the holder uses mountedBefore and prepared.
type entry struct {
	meta           meta   // without the claim
	claim          *claim // not changed, but replaced; nil if the files are on the host
	creating       bool   // reserves the name until Create returns
	holds          map[string]*Hold
	readers        map[int]int // open Files by generation
	writers        int         // open Files that may write
	overlays       map[string]*overlay
	state          state
	root           string    // mounted file system's root, or ""
	lastUsed       time.Time // last time it was locked
	cleanups       []cleanup
	failedCleanups []cleanup // failed, to be retried by the next tick
	waiters        []*waiter

	lock          chan struct{}
	mountedBefore bool // mounted by another process, whose leases may use it
	prepared      bool // leftovers of an earlier process were removed
}

func newEntry(w meta) *entry {
	c := w.Claim
	w.Claim = nil
	return &entry{
		meta: w, claim: c, holds: map[string]*Hold{}, readers: map[int]int{}, overlays: map[string]*overlay{},
		lock: make(chan struct{}, 1), state: state{Version: stateVersion},
	}
}

// Open loads the workspaces in dir, and creates dir if it is missing. A workspace with unreadable
// metadata is logged and not offered. Open removes nothing; see Sweep.
func Open(dir string, opts Options) (*Manager, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("open workspaces: directory %q must be an absolute path: %w",
			dir, errdefs.ErrInvalidArgument)
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
			m.log.Warn("failed to load workspace", "path", filepath.Join(dir, f.Name()), "error", err)
			continue
		}
		m.byName[e.meta.Name] = e
	}
	return m, nil
}

// loadWorkspace reads a workspace's metadata.
func (m *Manager) loadWorkspace(dir string) (*entry, error) {
	found, err := readMeta(dir)
	if err != nil {
		return nil, err
	}
	if other := m.byName[found.Name]; other != nil {
		return nil, fmt.Errorf("workspace %q already exists as %s", found.Name, other.meta.ID)
	}
	e := newEntry(found)
	if e.state, err = readState(m.contentPath(found)); err != nil {
		return nil, err
	}
	e.overlays, err = m.readOverlays(found)
	return e, err
}

// detectMechanism returns the mechanism for new quotas, and why a better one does not work.
func (m *Manager) detectMechanism() (quotadir.Mechanism, string) {
	switch m.opts.Mechanism {
	case "":
		return quotadir.None, ""
	case Auto:
		return quotadir.Detect(context.Background(), m.dir)
	}
	return quotadir.Mechanism(m.opts.Mechanism), ""
}

// Mechanism returns what enforces the quotas of new workspaces, and why a better mechanism does not
// work. The first call can take a while.
func (m *Manager) Mechanism() (quotadir.Mechanism, string) { return m.mechanism() }

// Quotas returns the default quota and the largest that can be requested, in bytes. 0 means no
// limit.
func (m *Manager) Quotas() (usual, most int64) { return m.opts.Quota, m.opts.MaxQuota }

// Dir returns the directory that contains all workspaces.
func (m *Manager) Dir() string { return m.dir }

func (m *Manager) workspacePath(w meta) string { return filepath.Join(m.dir, w.ID) }

// contentPath returns the directory that a restore replaces.
func (m *Manager) contentPath(w meta) string {
	dir := filepath.Join(m.workspacePath(w), contentDir)
	if _, err := os.Lstat(dir); err != nil {
		return m.workspacePath(w) // created by an earlier version
	}
	return dir
}

// diskPath returns the directory of a workspace's disk. ok is false if it has none.
func (m *Manager) diskPath(w meta) (dir string, ok bool) {
	content := m.contentPath(w)
	return filepath.Join(content, diskDir), content != m.workspacePath(w)
}

// Sweep removes what interrupted Create and Delete calls of an earlier process left, and ends the
// overlays of ended leases. Call it once all live leases have been acquired again. Its duration
// grows with the number of files; other methods may run concurrently.
func (m *Manager) Sweep(ctx context.Context) error {
	var errs []error
	for _, name := range m.interrupted {
		if err := m.deleteFiles(ctx, name); err != nil {
			m.deleteFilesLater(name)
			errs = append(errs, err)
		}
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

// Run does periodic work until ctx ends: it retries failed cleanups, discards expired overlays and
// unmounts idle file systems.
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

// tick does what is due at now; see Run.
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
			m.log.Warn("failed to remove expired overlay; will retry", "workspace", e.meta.Name, "error", err)
		}
		if err := m.unmountIdle(ctx, e, now.Add(-m.opts.Idle)); err != nil {
			m.log.Warn("failed to unmount idle workspace; will retry", "workspace", e.meta.Name, "error", err)
		}
	}
}

// inUse reports whether a lease or open Files use the workspace. The caller has Manager.mu.
func (e *entry) inUse() bool {
	for _, users := range e.readers {
		if users > 0 {
			return true
		}
	}
	return len(e.holds) > 0 || e.writers > 0
}

// Close unmounts the workspaces that no lease uses. Call it last. Leases and their mounts stay.
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

// findWorkspace returns a workspace by name. The caller has m.mu.
func (m *Manager) findWorkspace(name string) (*entry, error) {
	e := m.byName[name]
	if e == nil || e.creating {
		return nil, workspaceNotFound(name)
	}
	return e, nil
}

func workspaceNotFound(name string) error {
	return fmt.Errorf("workspace %q not found: %w", name, errdefs.ErrNotFound)
}

// hitFailpoint calls failpoint.Hit. This package's own tests use its failpoints.
func hitFailpoint(point string) { failpoint.Hit(point) }
