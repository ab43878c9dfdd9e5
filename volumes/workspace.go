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

	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// Workspace describes one.
type Workspace struct {
	// ID names its folder. It is not made from the name: sandboxes see it.
	ID        string
	Name      string
	CreatedAt time.Time
	// Shared lets more than one lease write at a time.
	Shared bool
	// QuotaBytes is what it holds at most, 0 where nothing bounds it; Mechanism is
	// what sees to that. UsedBytes is what is in it, overlays too: at rest as of
	// its last use.
	QuotaBytes, UsedBytes int64
	Mechanism             quotadir.Mechanism
	// Leases have it now, sorted by id.
	Leases []Lease
	// Overlays and Snapshots are how many there are.
	Overlays, Snapshots int
}

// Lease is one lease's hold on a workspace.
type Lease struct {
	ID   string
	Mode Mode
}

// CreateOptions of a workspace; the zero value is good.
type CreateOptions struct {
	Shared bool
	// QuotaBytes is what it holds at most; 0 takes Options.Quota.
	QuotaBytes int64
	// From is a snapshot to begin with, of the workspace FromName; empty begins
	// with nothing. It has the snapshot's quota, unless there is another.
	FromName, From string
}

// Create makes a workspace, owned by the commands' user. AlreadyExists:
// there is one of that name. Unavailable: quotas cannot be enforced here.
func (m *Manager) Create(ctx context.Context, name string, opt CreateOptions) (Workspace, error) {
	if !namePattern.MatchString(name) {
		return Workspace{}, fmt.Errorf("workspace name %q does not match %s: %w", name, namePattern, errdefs.ErrInvalidArgument)
	}
	if err := m.checkQuota(opt.QuotaBytes); err != nil {
		return Workspace{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Workspace{}, fmt.Errorf("create workspace %s: %w", name, err)
	}
	made := newEntry(meta{Version: metaVersion, ID: id.String(), Name: name, CreatedAt: time.Now().UTC(), Shared: opt.Shared})
	made.creating = true
	m.mu.Lock()
	taken := m.byName[name] != nil
	if !taken {
		m.byName[name] = made
	}
	m.mu.Unlock()
	if taken {
		return Workspace{}, fmt.Errorf("workspace %s is there already: %w", name, errdefs.ErrAlreadyExists)
	}
	err = m.makeWorkspace(ctx, made, opt)
	m.mu.Lock()
	made.creating = false
	if err != nil {
		delete(m.byName, name)
	}
	m.mu.Unlock()
	if err != nil {
		// Little is in it, and it has to go even if the caller did.
		if left := m.deleteFiles(context.WithoutCancel(ctx), newPrefix+made.meta.ID); left != nil {
			m.deleteFilesLater(newPrefix + made.meta.ID)
			err = errors.Join(err, left)
		}
		return Workspace{}, fmt.Errorf("create workspace %s: %w", name, err)
	}
	return m.Get(name)
}

func (m *Manager) checkQuota(bytes int64) error {
	switch {
	case bytes == 0:
		return nil
	case bytes < quotadir.MinBytes:
		return fmt.Errorf("quota of %d octets is less than %d: %w", bytes, int64(quotadir.MinBytes), errdefs.ErrInvalidArgument)
	case m.opts.MaxQuota > 0 && bytes > m.opts.MaxQuota:
		return fmt.Errorf("quota of %d octets is more than %d (workspaces.max_quota): %w", bytes, m.opts.MaxQuota, errdefs.ErrInvalidArgument)
	}
	return nil
}

// makeWorkspace builds the folder under another name, so that it is there whole or not.
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
	if err := os.Rename(temp, m.workspacePath(e.meta)); err != nil {
		return err
	}
	return syncDir(m.dir)
}

func (m *Manager) makeDisk(ctx context.Context, dir string, quota int64) error {
	mechanism, why := m.Mechanism()
	if quota == 0 {
		quota = m.opts.Quota
	}
	if quota > 0 && mechanism == quotadir.None && m.opts.Mechanism != string(quotadir.None) && m.opts.Mechanism != "" {
		m.log.Warn("workspace has no quota: nothing here enforces one", "reason", why)
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

// List describes all of them, sorted by name.
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

// describe is to be called with the lock held.
func (m *Manager) describe(e *entry) Workspace {
	w := Workspace{
		ID: e.meta.ID, Name: e.meta.Name, CreatedAt: e.meta.CreatedAt, Shared: e.meta.Shared, Leases: []Lease{},
		Mechanism: quotadir.None, Overlays: len(e.overlays), Snapshots: m.countSnapshots(e.meta),
	}
	for _, h := range e.holds {
		w.Leases = append(w.Leases, Lease{ID: h.lease, Mode: h.mode})
	}
	slices.SortFunc(w.Leases, func(a, b Lease) int { return strings.Compare(a.ID, b.ID) })
	dir, ok := m.diskPath(e.meta)
	if !ok {
		return w
	}
	bound, mechanism, err := quotadir.Bound(dir)
	if err != nil {
		m.log.Warn("quota of a workspace is not known", "workspace", e.meta.Name, "error", err)
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

// Resize changes a workspace's quota. It can grow while leases have it, and
// shrink at rest. FailedPrecondition: it has no quota, or is in use and was to
// shrink; *disk.NoRoomError: there is more in it.
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
	dir, ok := m.diskPath(e.meta)
	if !ok {
		return Workspace{}, fmt.Errorf("workspace %s was made by an earlier version and has no quota: copy its files to a new one: %w", name, errdefs.ErrFailedPrecondition)
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
		return Workspace{}, fmt.Errorf("workspace %s is in use and cannot shrink: end the sandboxes that have it first: %w", name, errdefs.ErrFailedPrecondition)
	}
	if err := quotadir.Resize(ctx, dir, bytes); err != nil {
		return Workspace{}, fmt.Errorf("workspace %s: %w", name, err)
	}
	return m.Get(name)
}

// Delete removes a workspace and its files, overlays and snapshots.
// FailedPrecondition: a lease holds it, or its files are open. If ctx ends while
// files are removed the workspace is gone all the same, and Run frees the rest, or
// Sweep after the next start; the error says so.
func (m *Manager) Delete(ctx context.Context, name string) error {
	e, err := m.lockWorkspace(ctx, name)
	if err != nil {
		return err
	}
	m.runCleanups(ctx, e)
	m.mu.Lock()
	if e.inUse() || m.hasOrphanedOverlay(e) {
		err = fmt.Errorf("workspace %s is in use by %d leases: %w", name, len(e.holds), errdefs.ErrFailedPrecondition)
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
	for _, w := range e.waiters { // they find nothing
		close(w.ready)
	}
	e.waiters = nil
	m.mu.Unlock()
	<-e.lock
	if err := errors.Join(syncDir(m.dir), m.deleteFiles(ctx, gone)); err != nil {
		m.deleteFilesLater(gone)
		return fmt.Errorf("workspace %s is deleted, but its space is not free yet: %w", name, err)
	}
	return nil
}
