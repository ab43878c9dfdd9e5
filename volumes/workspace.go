package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// Workspace describes a workspace.
type Workspace struct {
	// ID names its directory. It is not derived from the name, because sandboxes can see it.
	ID        string
	Name      string
	CreatedAt time.Time
	// Shared allows more than one lease to write at a time.
	Shared bool
	// QuotaBytes is the quota, or 0 without one. Mechanism enforces it. UsedBytes includes
	// overlays; for an unmounted workspace it is the value of the last use.
	QuotaBytes, UsedBytes int64
	Mechanism             quotadir.Mechanism
	// Leases that use it now, sorted by id.
	Leases []Lease
	// Overlays and Snapshots are their numbers.
	Overlays, Snapshots int
	// Claim is the name of the volume claim that has the files, or "". Its size is QuotaBytes, and
	// UsedBytes is unknown.
	Claim string
}

// Lease is a lease that uses a workspace.
type Lease struct {
	ID   string
	Mode Mode
}

// CreateOptions are the options of Create. The zero value is valid.
type CreateOptions struct {
	Shared bool
	// QuotaBytes is the quota; 0 means Options.Quota.
	QuotaBytes int64
	// From is the snapshot of the workspace FromName to copy. Empty means no files. The new
	// workspace gets the snapshot's quota unless QuotaBytes is set.
	FromName, From string
}

// Create creates a workspace that belongs to the commands' user. It returns AlreadyExists if the
// name is taken, and Unavailable if the configured quota mechanism does not work.
func (m *Manager) Create(ctx context.Context, name string, opt CreateOptions) (Workspace, error) {
	if !namePattern.MatchString(name) {
		return Workspace{}, fmt.Errorf("invalid workspace name %q: must match %s: %w",
			name, namePattern, errdefs.ErrInvalidArgument)
	}
	if err := m.checkQuota(opt.QuotaBytes); err != nil {
		return Workspace{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Workspace{}, fmt.Errorf("create workspace %s: %w", name, err)
	}
	made := newEntry(meta{
		Version: metaVersion, ID: id.String(), Name: name, CreatedAt: time.Now().UTC(), Shared: opt.Shared,
	})
	made.creating = true
	m.mu.Lock()
	taken := m.byName[name] != nil
	if !taken {
		m.byName[name] = made
	}
	m.mu.Unlock()
	if taken {
		return Workspace{}, fmt.Errorf("workspace %s already exists: %w", name, errdefs.ErrAlreadyExists)
	}
	err = m.makeWorkspace(ctx, made, opt)
	m.mu.Lock()
	made.creating = false
	if err != nil {
		delete(m.byName, name)
	}
	m.mu.Unlock()
	if err != nil {
		// It contains little, and must be removed even if the caller has gone.
		if left := m.deleteFiles(context.WithoutCancel(ctx), newPrefix+made.meta.ID); left != nil {
			m.deleteFilesLater(newPrefix + made.meta.ID)
			err = errors.Join(err, left)
		}
		return Workspace{}, fmt.Errorf("create workspace %s: %w", name, err)
	}
	return m.Get(name)
}

// checkQuota checks a requested quota in bytes. 0 means the default.
func (m *Manager) checkQuota(bytes int64) error {
	switch {
	case bytes == 0:
		return nil
	case bytes < quotadir.MinBytes:
		return fmt.Errorf("invalid quota %d: must be at least %d bytes: %w",
			bytes, int64(quotadir.MinBytes), errdefs.ErrInvalidArgument)
	case m.opts.MaxQuota > 0 && bytes > m.opts.MaxQuota:
		return fmt.Errorf("invalid quota %d: must be at most %d bytes (workspaces.max_quota): %w",
			bytes, m.opts.MaxQuota, errdefs.ErrInvalidArgument)
	}
	return nil
}

// makeWorkspace builds the directory under a temporary name, so that it appears atomically.
func (m *Manager) makeWorkspace(ctx context.Context, e *entry, opt CreateOptions) error {
	temp := filepath.Join(m.dir, newPrefix+e.meta.ID)
	content := filepath.Join(temp, contentDir)
	if err := os.MkdirAll(content, 0o700); err != nil {
		return err
	}
	var err error
	if opt.From != "" {
		err = m.fillFromSnapshot(ctx, content, opt)
	} else {
		err = m.makeDisk(ctx, filepath.Join(content, diskDir), opt.QuotaBytes)
	}
	if err != nil {
		return err
	}
	if e.state, err = readState(content); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(temp, metaFile), e.meta); err != nil {
		return err
	}
	return hostfile.RenameSynced(temp, m.workspacePath(e.meta))
}

// makeDisk makes a new workspace's disk.
func (m *Manager) makeDisk(ctx context.Context, dir string, quota int64) error {
	mechanism, why := m.Mechanism()
	if quota == 0 {
		quota = m.opts.Quota
	}
	if quota > 0 && mechanism == quotadir.None && m.opts.Mechanism != string(quotadir.None) && m.opts.Mechanism != "" {
		m.log.Warn("workspace has no quota: no mechanism works on this host", "reason", why)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return quotadir.Make(ctx, dir, quotadir.Options{Bytes: quota, Mechanism: mechanism})
}

// Get describes a workspace.
func (m *Manager) Get(name string) (Workspace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.findWorkspace(name)
	if err != nil {
		return Workspace{}, err
	}
	return m.describe(e), nil
}

// List describes all workspaces, sorted by name.
func (m *Manager) List() []Workspace {
	m.mu.Lock()
	defer m.mu.Unlock()
	items := []Workspace{}
	for _, e := range m.byName {
		if !e.creating {
			items = append(items, m.describe(e))
		}
	}
	slices.SortFunc(items, func(a, b Workspace) int { return strings.Compare(a.Name, b.Name) })
	return items
}

// describe returns a workspace's description. The caller has m.mu.
func (m *Manager) describe(e *entry) Workspace {
	w := Workspace{
		ID: e.meta.ID, Name: e.meta.Name, CreatedAt: e.meta.CreatedAt, Shared: e.meta.Shared, Leases: []Lease{},
		Mechanism: quotadir.None, Overlays: len(e.overlays), Snapshots: m.countSnapshots(e.meta),
	}
	for _, h := range e.holds {
		w.Leases = append(w.Leases, Lease{ID: h.lease, Mode: h.mode})
	}
	slices.SortFunc(w.Leases, func(a, b Lease) int { return strings.Compare(a.ID, b.ID) })
	if e.claim != nil {
		w.Claim, w.QuotaBytes = runtime.ClaimName(e.meta.ID), e.claim.Bytes
		return w
	}
	dir, ok := m.diskPath(e.meta)
	if !ok {
		return w
	}
	bound, mechanism, err := quotadir.Bound(dir)
	if err != nil {
		m.log.Warn("failed to read workspace quota", "workspace", e.meta.Name, "error", err)
		return w
	}
	w.QuotaBytes, w.Mechanism = bound, mechanism
	if bound > 0 {
		if use, err := quotadir.UsageOf(dir); err == nil {
			w.UsedBytes = use.Used
		}
	}
	return w
}

// Resize changes a workspace's quota. It can grow while it is in use, but shrink only when it is
// not. It returns FailedPrecondition if the workspace has no quota or is in use, and
// *quotadir.NoRoomError if its files need more.
func (m *Manager) Resize(ctx context.Context, name string, bytes int64) (Workspace, error) {
	if bytes == 0 {
		bytes = m.opts.Quota
	}
	if err := m.checkQuota(bytes); err != nil {
		return Workspace{}, err
	}
	e, err := m.lockWorkspace(ctx, name)
	if err != nil {
		return Workspace{}, err
	}
	defer m.unlockWorkspace(ctx, e)
	if e.claim != nil {
		return Workspace{}, e.claimError("whose size the service cannot change: edit the claim with kubectl")
	}
	dir, ok := m.diskPath(e.meta)
	if !ok {
		return Workspace{}, fmt.Errorf("workspace %s was created by an earlier version and has no quota: "+
			"copy its files to a new workspace: %w",
			name, errdefs.ErrFailedPrecondition)
	}
	bound, _, err := quotadir.Bound(dir)
	if err != nil {
		return Workspace{}, fmt.Errorf("workspace %s: %w", name, err)
	}
	m.runCleanups(ctx, e)
	m.mu.Lock()
	used := e.inUse() || m.hasOrphanedOverlay(e)
	m.mu.Unlock()
	switch {
	case !used:
		if err := m.unmount(ctx, e); err != nil {
			return Workspace{}, err
		}
	case bytes < bound:
		return Workspace{}, fmt.Errorf("workspace %s is in use and cannot shrink: end its sandboxes first: %w",
			name, errdefs.ErrFailedPrecondition)
	}
	if err := quotadir.Resize(ctx, dir, bytes); err != nil {
		return Workspace{}, fmt.Errorf("workspace %s: %w", name, err)
	}
	return m.Get(name)
}

// Delete removes a workspace with its files or volume claim, overlays and snapshots. It returns
// FailedPrecondition if a lease or open Files use it. If ctx ends during the removal of files, the
// workspace is deleted and an error says that its space is not free yet. Run frees the space, or
// Sweep after a restart.
func (m *Manager) Delete(ctx context.Context, name string) error {
	e, err := m.lockWorkspace(ctx, name)
	if err != nil {
		return err
	}
	m.runCleanups(ctx, e)
	m.mu.Lock()
	if e.inUse() || m.hasOrphanedOverlay(e) {
		err = fmt.Errorf("workspace %s is in use by %d leases: end them first: %w",
			name, len(e.holds), errdefs.ErrFailedPrecondition)
	} else if e.claim != nil && m.removeClaim == nil {
		err = e.claimError("which only a service with runtime kubernetes can delete: start one")
	}
	m.mu.Unlock()
	if err == nil {
		err = m.unmount(ctx, e)
	}
	gone := gonePrefix + e.meta.ID
	if err == nil {
		err = os.Rename(m.workspacePath(e.meta), filepath.Join(m.dir, gone))
	}
	if err != nil {
		m.unlockWorkspace(ctx, e)
		return fmt.Errorf("delete workspace %s: %w", name, err)
	}
	m.mu.Lock()
	delete(m.byName, name)
	for _, w := range e.waiters { // They will get NotFound.
		close(w.ready)
	}
	e.waiters = nil
	m.mu.Unlock()
	<-e.lock
	if err := errors.Join(hostfile.SyncDir(m.dir), m.deleteFiles(ctx, gone)); err != nil {
		m.deleteFilesLater(gone)
		return fmt.Errorf("workspace %s deleted, but its space is not free yet: %w", name, err)
	}
	return nil
}
