// Package volumes owns workspaces: folders on the host that outlive sandboxes,
// who holds them now, and their files while no sandbox is asked for them.
//
// It mounts nothing (a driver binds what a Hold names), decides nothing about
// callers, keeps holds in memory only (the store is the truth about leases:
// after a restart the scheduler acquires again what it promised) and starts no
// goroutine. One Manager per folder: the state directory's lock sees to that.
// Errors are classed by containerd/errdefs.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"orchestrator/internal/safefile"
	"orchestrator/runtime"
)

// Names of folders that are being made or removed begin so.
const (
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
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
	// Leases have it now, sorted by id.
	Leases []Lease
}

// Lease is one lease's hold on a workspace.
type Lease struct {
	ID       string
	ReadOnly bool
}

// Manager keeps the workspaces of one folder. Methods may be called
// concurrently.
type Manager struct {
	dir string
	log *slog.Logger
	// left is what Open found of interrupted work; never changed after.
	left []string

	mu     sync.Mutex
	byName map[string]*entry
}

// entry is a workspace; the Manager's lock guards it.
type entry struct {
	meta  meta
	busy  bool // being made or deleted: there for its name only
	files int  // open Files
	holds map[string]*Hold
}

// Open loads the workspaces in dir, making dir where there is none. One whose
// metadata cannot be read is left alone, logged, and not offered. Nothing is
// removed: see Sweep.
func Open(dir string, log *slog.Logger) (*Manager, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("open workspaces: folder %q is not absolute: %w", dir, errdefs.ErrInvalidArgument)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open workspaces: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open workspaces: %w", err)
	}
	m := &Manager{dir: dir, log: log, byName: map[string]*entry{}}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) || strings.HasPrefix(e.Name(), gonePrefix) {
			m.left = append(m.left, e.Name())
			continue
		}
		found, err := readMeta(filepath.Join(dir, e.Name()))
		if err == nil && m.byName[found.Name] != nil {
			err = fmt.Errorf("workspace %q is there as %s already", found.Name, m.byName[found.Name].meta.ID)
		}
		if err != nil {
			log.Warn("workspace not usable", "path", filepath.Join(dir, e.Name()), "err", err)
			continue
		}
		m.byName[found.Name] = &entry{meta: found, holds: map[string]*Hold{}}
	}
	return m, nil
}

// Sweep frees what an interrupted Create or Delete of an earlier process left,
// as Open found it. It takes as long as the files are many, and may run beside
// everything else.
func (m *Manager) Sweep(ctx context.Context) error {
	var errs []error
	for _, name := range m.left {
		errs = append(errs, m.free(ctx, name))
	}
	return errors.Join(errs...)
}

// free removes a folder of m.dir with all that commands left in it.
func (m *Manager) free(ctx context.Context, name string) error {
	root, err := safefile.Open(m.dir, safefile.Options{})
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.Remove(ctx, name, true); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("free workspace: %w", err)
	}
	return nil
}

// CreateOptions of a workspace; the zero value is good.
type CreateOptions struct {
	Shared bool
}

// Create makes an empty workspace, owned by the commands' user. AlreadyExists:
// there is one of that name.
func (m *Manager) Create(ctx context.Context, name string, opt CreateOptions) (Workspace, error) {
	if !namePattern.MatchString(name) {
		return Workspace{}, fmt.Errorf("workspace name %q does not match %s: %w", name, namePattern, errdefs.ErrInvalidArgument)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Workspace{}, fmt.Errorf("create workspace %s: %w", name, err)
	}
	made := &entry{
		meta:  meta{Version: metaVersion, ID: id.String(), Name: name, CreatedAt: time.Now().UTC(), Shared: opt.Shared},
		busy:  true,
		holds: map[string]*Hold{},
	}
	m.mu.Lock()
	taken := m.byName[name] != nil
	if !taken {
		m.byName[name] = made
	}
	m.mu.Unlock()
	if taken {
		return Workspace{}, fmt.Errorf("workspace %s is there already: %w", name, errdefs.ErrAlreadyExists)
	}
	err = m.make(made.meta)
	m.mu.Lock()
	made.busy = false
	if err != nil {
		delete(m.byName, name)
	}
	m.mu.Unlock()
	if err != nil {
		// Little is in it, and it has to go even if the caller did.
		err = errors.Join(err, m.free(context.WithoutCancel(ctx), newPrefix+made.meta.ID))
		return Workspace{}, fmt.Errorf("create workspace %s: %w", name, err)
	}
	return m.Get(name)
}

// make builds the folder under another name, so that it is there whole or not.
func (m *Manager) make(w meta) error {
	temp := filepath.Join(m.dir, newPrefix+w.ID)
	data := filepath.Join(temp, dataDir)
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	if err := os.Chown(data, runtime.CommandUID, runtime.CommandGID); err != nil {
		return err
	}
	if err := os.Chmod(data, 0o755); err != nil {
		return err
	}
	if err := writeMeta(temp, w); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(m.dir, w.ID)); err != nil {
		return err
	}
	return syncDir(m.dir)
}

// Get describes a workspace.
func (m *Manager) Get(name string) (Workspace, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.find(name)
	if err != nil {
		return Workspace{}, err
	}
	return e.describe(), nil
}

// List describes all of them, sorted by name.
func (m *Manager) List() []Workspace {
	m.mu.Lock()
	defer m.mu.Unlock()
	items := []Workspace{}
	for _, e := range m.byName {
		if !e.busy {
			items = append(items, e.describe())
		}
	}
	slices.SortFunc(items, func(a, b Workspace) int { return strings.Compare(a.Name, b.Name) })
	return items
}

// find is to be called with the lock held.
func (m *Manager) find(name string) (*entry, error) {
	e := m.byName[name]
	if e == nil || e.busy {
		return nil, fmt.Errorf("there is no workspace %q: %w", name, errdefs.ErrNotFound)
	}
	return e, nil
}

func (e *entry) describe() Workspace {
	w := Workspace{ID: e.meta.ID, Name: e.meta.Name, CreatedAt: e.meta.CreatedAt, Shared: e.meta.Shared, Leases: []Lease{}}
	for _, h := range e.holds {
		w.Leases = append(w.Leases, Lease{ID: h.lease, ReadOnly: h.readOnly})
	}
	slices.SortFunc(w.Leases, func(a, b Lease) int { return strings.Compare(a.ID, b.ID) })
	return w
}

// Delete removes a workspace and its files. FailedPrecondition: a lease holds
// it, or its files are open. If ctx ends while files are removed the workspace
// is gone all the same, and Sweep frees the rest after the next start; the
// error says so.
func (m *Manager) Delete(ctx context.Context, name string) error {
	m.mu.Lock()
	e, err := m.find(name)
	if err == nil && (len(e.holds) > 0 || e.files > 0) {
		err = fmt.Errorf("workspace %s is in use by %d leases: %w", name, len(e.holds), errdefs.ErrFailedPrecondition)
	}
	if err == nil {
		e.busy = true
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	gone := gonePrefix + e.meta.ID
	err = os.Rename(filepath.Join(m.dir, e.meta.ID), filepath.Join(m.dir, gone))
	m.mu.Lock()
	e.busy = false
	if err == nil {
		delete(m.byName, name)
	}
	m.mu.Unlock()
	if err != nil {
		return fmt.Errorf("delete workspace %s: %w", name, err)
	}
	if err := errors.Join(syncDir(m.dir), m.free(ctx, gone)); err != nil {
		return fmt.Errorf("workspace %s is deleted, but its space is not free yet: %w", name, err)
	}
	return nil
}
