package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

// Snapshot is a copy of a workspace's files. It uses space of the host, not of the workspace's
// quota.
type Snapshot struct {
	ID        string
	Workspace string
	Label     string
	CreatedAt time.Time
	// Bytes is the disk space that it uses on the host.
	Bytes int64
}

type snapshotMeta struct {
	Version   int       `json:"version"`
	ID        string    `json:"id"`
	Label     string    `json:"label,omitempty"`
	CreatedAt time.Time `json:"created_at"`
}

// MaxLabel is the maximum length of a snapshot's label in bytes.
const MaxLabel = 200

// newContent is the directory name of a restore under construction.
const newContent = newPrefix + "content"

// Snapshot copies the files of a workspace that is not in use. A file system that is being written
// to cannot be copied consistently. It returns FailedPrecondition if a lease or open Files use it,
// ResourceExhausted if it has too many snapshots, and AlreadyExists if the label is taken.
func (m *Manager) Snapshot(ctx context.Context, name, label string) (Snapshot, error) {
	unprintable := func(r rune) bool { return r < ' ' || r == 0x7f || r == '\uFFFD' }
	if len(label) > MaxLabel || strings.ContainsFunc(label, unprintable) {
		return Snapshot{}, fmt.Errorf("invalid label: must be at most %d bytes of printable UTF-8: %w",
			MaxLabel, errdefs.ErrInvalidArgument)
	}
	e, err := m.lockWorkspace(ctx, name)
	if err != nil {
		return Snapshot{}, err
	}
	defer m.unlockWorkspace(ctx, e)
	list, err := m.readSnapshots(e.meta)
	if err != nil {
		return Snapshot{}, err
	}
	taken := func(s snapshotMeta) bool { return label != "" && (s.Label == label || s.ID == label) }
	switch {
	case m.opts.Snapshots == 0:
		return Snapshot{}, fmt.Errorf("snapshots are disabled: set workspaces.snapshots: %w",
			errdefs.ErrFailedPrecondition)
	case len(list) >= m.opts.Snapshots:
		return Snapshot{}, fmt.Errorf("workspace %s has %d snapshots, the maximum (workspaces.snapshots): "+
			"remove some: %w",
			name, len(list), errdefs.ErrResourceExhausted)
	case slices.ContainsFunc(list, taken):
		return Snapshot{}, fmt.Errorf("snapshot %q of workspace %s already exists: %w",
			label, name, errdefs.ErrAlreadyExists)
	}
	if err := m.quiesce(ctx, e); err != nil {
		return Snapshot{}, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Snapshot{}, err
	}
	made := snapshotMeta{Version: 1, ID: id.String(), Label: label, CreatedAt: time.Now().UTC()}
	if err := m.copySnapshot(ctx, e, made); err != nil {
		return Snapshot{}, fmt.Errorf("snapshot of workspace %s: %w", name, err)
	}
	return m.snapshotInfo(e.meta, made), nil
}

// copySnapshot copies a workspace's content into a new snapshot, atomically.
func (m *Manager) copySnapshot(ctx context.Context, e *entry, made snapshotMeta) (err error) {
	dir := filepath.Join(m.workspacePath(e.meta), snapshotsDir)
	temp := filepath.Join(dir, newPrefix+made.ID)
	if err := os.MkdirAll(temp, 0o700); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.removeAll(context.WithoutCancel(ctx), temp))
		}
	}()
	if err := m.copyContent(ctx, m.contentPath(e.meta), filepath.Join(temp, contentDir)); err != nil {
		return err
	}
	hitFailpoint("volumes.snapshot.copied")
	if err := writeJSON(filepath.Join(temp, snapshotFile), made); err != nil {
		return err
	}
	return hostfile.RenameSynced(temp, filepath.Join(dir, made.ID))
}

// quiesce checks that nothing uses a workspace, and unmounts it. The caller has the workspace's
// lock.
func (m *Manager) quiesce(ctx context.Context, e *entry) error {
	m.runCleanups(ctx, e)
	m.mu.Lock()
	var err error
	switch {
	case e.claim != nil:
		err = e.claimError("which has no snapshots: copy its files in a sandbox")
	case len(e.holds) > 0:
		for id := range e.holds {
			err = fmt.Errorf("workspace %s is in use by sandbox %s: end it first: %w",
				e.meta.Name, id, errdefs.ErrFailedPrecondition)
		}
	case m.hasOrphanedOverlay(e):
		err = fmt.Errorf("workspace %s has an overlay of sandbox %s of a stopped service: "+
			"start the service again, or run `orchestrator down`: %w",
			e.meta.Name, e.liveOverlay(), errdefs.ErrFailedPrecondition)
	case e.inUse():
		err = fmt.Errorf("workspace %s has open files: try again: %w", e.meta.Name, errdefs.ErrFailedPrecondition)
	}
	m.mu.Unlock()
	if err != nil {
		return err
	}
	ws, err := m.mountWorkspace(ctx, e)
	if err == nil {
		err = ws.endWriting(ctx)
	}
	if err == nil {
		err = m.unmount(ctx, e)
	}
	return err
}

// copyContent copies the content of an unused workspace or snapshot into dst, which it creates. The
// copy always has a disk, even if the source was created by an earlier version.
func (m *Manager) copyContent(ctx context.Context, src, dst string) error {
	if err := os.Mkdir(dst, 0o700); err != nil {
		return err
	}
	from, to := filepath.Join(src, diskDir), filepath.Join(dst, diskDir)
	st, err := readState(src)
	if err != nil {
		return err
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	mechanism, bound := quotadir.None, int64(0)
	if pathExists(from) {
		if bound, mechanism, err = quotadir.Bound(from); err != nil {
			return err
		}
	}
	if mechanism == quotadir.Loop {
		if err := copyFlatDir(from, to, m.checkCopy(ctx)); err != nil {
			return err
		}
		return writeJSON(filepath.Join(dst, stateFile), state{Version: stateVersion, Current: st.Current})
	}
	files := src
	if pathExists(from) {
		if files, err = quotadir.Mount(ctx, from); err != nil {
			return err
		}
	}
	if err := quotadir.Make(ctx, to, quotadir.Options{Mechanism: mechanism, Bytes: bound}); err != nil {
		return err
	}
	root, err := quotadir.Mount(ctx, to)
	if err != nil {
		return err
	}
	return m.copyTree(ctx, filepath.Join(files, generationName(st.Current)), filepath.Join(root, dataDir))
}

// copyTree copies a directory tree. A missing source is a new, empty workspace.
func (m *Manager) copyTree(ctx context.Context, from, to string) error {
	if !pathExists(from) {
		return nil
	}
	if err := os.Mkdir(to, 0o700); err != nil {
		return err
	}
	src, err := openTree(from)
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := openTree(to)
	if err != nil {
		return err
	}
	defer dst.close()
	next := m.checkCopy(ctx)
	put := func(from, to *os.File, name string, st *unix.Stat_t) error { return copyFile(from, to, name, st, next) }
	if err := clone(ctx, src, dst, func(string) bool { return false }, put); err != nil {
		return err
	}
	return unix.Syncfs(fdOf(dst.top))
}

// copyFlatDir copies the files of a directory that only this service writes. It creates
// subdirectories without their content.
func copyFlatDir(from, to string, next copyCheck) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Open(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	for _, f := range entries {
		switch {
		case f.Type().IsRegular():
			err = copyRegular(src, dst, f.Name(), next)
		case f.IsDir():
			err = os.Mkdir(filepath.Join(to, f.Name()), 0o700)
		}
		if err != nil {
			return err
		}
	}
	return unix.Syncfs(fdOf(dst))
}

// fillFromSnapshot fills a new workspace's content from a snapshot.
func (m *Manager) fillFromSnapshot(ctx context.Context, content string, opt CreateOptions) error {
	e, err := m.lockWorkspace(ctx, opt.FromName)
	if err != nil {
		return err
	}
	defer m.unlockWorkspace(ctx, e)
	s, err := m.findSnapshot(e.meta, opt.From)
	if err != nil {
		return err
	}
	if err := os.Remove(content); err != nil {
		return err
	}
	if err := m.copyContent(ctx, filepath.Join(m.snapshotDir(e.meta, s.ID), contentDir), content); err != nil {
		return err
	}
	if opt.QuotaBytes == 0 {
		return nil
	}
	return quotadir.Resize(ctx, filepath.Join(content, diskDir), opt.QuotaBytes)
}

// Restore replaces a workspace's files with a snapshot's, and keeps its quota. It is atomic.
// FailedPrecondition if the workspace is in use or has overlays, whose lower layer would be lost.
func (m *Manager) Restore(ctx context.Context, name, snapshot string) (Snapshot, error) {
	e, err := m.lockWorkspace(ctx, name)
	if err != nil {
		return Snapshot{}, err
	}
	defer m.unlockWorkspace(ctx, e)
	s, err := m.findSnapshot(e.meta, snapshot)
	if err != nil {
		return Snapshot{}, err
	}
	if err := m.quiesce(ctx, e); err != nil {
		return Snapshot{}, err
	}
	m.mu.Lock()
	for id := range e.overlays {
		err = fmt.Errorf("workspace %s has %d overlays (one of sandbox %s): commit or discard them first: %w",
			name, len(e.overlays), id, errdefs.ErrFailedPrecondition)
	}
	m.mu.Unlock()
	if err != nil {
		return Snapshot{}, err
	}
	if err := m.swapContent(ctx, e, s); err != nil {
		return Snapshot{}, fmt.Errorf("restore workspace %s: %w", name, err)
	}
	return m.snapshotInfo(e.meta, s), nil
}

// swapContent replaces a workspace's content with a copy of a snapshot.
func (m *Manager) swapContent(ctx context.Context, e *entry, s snapshotMeta) (err error) {
	dir := m.workspacePath(e.meta)
	temp, content := filepath.Join(dir, newContent), filepath.Join(dir, contentDir)
	if err := m.removeAll(ctx, temp); err != nil {
		return err
	}
	after := context.WithoutCancel(ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, m.removeAll(after, temp))
		}
	}()
	if err := m.copyContent(ctx, filepath.Join(m.snapshotDir(e.meta, s.ID), contentDir), temp); err != nil {
		return err
	}
	if err := m.copyQuota(ctx, e.meta, filepath.Join(temp, diskDir)); err != nil {
		return err
	}
	next, err := readState(temp)
	if err != nil {
		return err
	}
	hitFailpoint("volumes.restore.copied")
	flags := uint(unix.RENAME_EXCHANGE)
	if !pathExists(content) { // An earlier version created it: its files are removed at the next mount.
		flags = 0
	}
	if err := unix.Renameat2(unix.AT_FDCWD, temp, unix.AT_FDCWD, content, flags); err != nil {
		return err
	}
	hitFailpoint("volumes.restore.swapped")
	m.mu.Lock()
	e.state, e.root, e.prepared = next, "", false
	m.mu.Unlock()
	if err := errors.Join(hostfile.SyncDir(m.workspacePath(e.meta)), m.removeInterrupted(after, e.meta)); err != nil {
		m.log.Warn("failed to remove files replaced by restore; will retry", "workspace", e.meta.Name, "error", err)
	}
	return nil
}

// copyQuota resizes a copy to the workspace's current quota.
func (m *Manager) copyQuota(ctx context.Context, w meta, copied string) error {
	dir, ok := m.diskPath(w)
	if !ok {
		return nil
	}
	want, _, err := quotadir.Bound(dir)
	if err != nil {
		return err
	}
	has, _, err := quotadir.Bound(copied)
	if err != nil || want == has || want == 0 || has == 0 {
		return err
	}
	return quotadir.Resize(ctx, copied, want)
}

// removeInterrupted removes what interrupted work left beside the content.
func (m *Manager) removeInterrupted(ctx context.Context, w meta) error {
	dir := m.workspacePath(w)
	errs := []error{m.removeAll(ctx, filepath.Join(dir, newContent))}
	if content := m.contentPath(w); content != dir {
		entries, err := os.ReadDir(dir)
		errs = append(errs, err)
		for _, f := range entries {
			if _, is := generationOf(f.Name()); is || f.Name() == stateFile || f.Name() == uppersDir {
				errs = append(errs, m.removeAll(ctx, filepath.Join(dir, f.Name())))
			}
		}
	}
	entries, err := os.ReadDir(filepath.Join(dir, snapshotsDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, f := range entries {
		if strings.HasPrefix(f.Name(), newPrefix) || strings.HasPrefix(f.Name(), gonePrefix) {
			errs = append(errs, m.removeAll(ctx, filepath.Join(dir, snapshotsDir, f.Name())))
		}
	}
	return errors.Join(errs...)
}

// Snapshots returns a workspace's snapshots, oldest first.
func (m *Manager) Snapshots(name string) ([]Snapshot, error) {
	m.mu.Lock()
	e, err := m.findWorkspace(name)
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	list, err := m.readSnapshots(e.meta)
	out := make([]Snapshot, 0, len(list))
	for _, s := range list {
		out = append(out, m.snapshotInfo(e.meta, s))
	}
	return out, err
}

// RemoveSnapshot removes a snapshot by its id or label.
func (m *Manager) RemoveSnapshot(ctx context.Context, name, snapshot string) error {
	e, err := m.lockWorkspace(ctx, name)
	if err != nil {
		return err
	}
	defer m.unlockWorkspace(ctx, e)
	s, err := m.findSnapshot(e.meta, snapshot)
	if err != nil {
		return err
	}
	dir := filepath.Join(m.workspacePath(e.meta), snapshotsDir)
	gone := filepath.Join(dir, gonePrefix+s.ID)
	if err := os.Rename(m.snapshotDir(e.meta, s.ID), gone); err != nil {
		return err
	}
	if err := errors.Join(hostfile.SyncDir(dir), m.removeAll(ctx, gone)); err != nil {
		m.removeLater(e, gone)
		return fmt.Errorf("snapshot %s removed, but its space is not free yet: %w", s.ID, err)
	}
	return nil
}

func (m *Manager) snapshotDir(w meta, id string) string {
	return filepath.Join(m.workspacePath(w), snapshotsDir, id)
}

func (m *Manager) readSnapshots(w meta) ([]snapshotMeta, error) {
	entries, err := os.ReadDir(filepath.Join(m.workspacePath(w), snapshotsDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []snapshotMeta
	for _, f := range entries {
		if uuid.Validate(f.Name()) != nil {
			continue
		}
		var s snapshotMeta
		if err := readJSON(filepath.Join(m.snapshotDir(w, f.Name()), snapshotFile), maxMeta, &s); err != nil {
			return nil, err
		}
		if s.ID == f.Name() {
			out = append(out, s)
		}
	}
	// The ids are UUIDv7 and start with the time.
	slices.SortFunc(out, func(a, b snapshotMeta) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

func (m *Manager) findSnapshot(w meta, name string) (snapshotMeta, error) {
	list, err := m.readSnapshots(w)
	if err != nil {
		return snapshotMeta{}, err
	}
	for _, s := range list {
		if name != "" && (s.ID == name || s.Label == name) {
			return s, nil
		}
	}
	return snapshotMeta{}, fmt.Errorf("snapshot %q of workspace %s not found: %w", name, w.Name, errdefs.ErrNotFound)
}

func (m *Manager) countSnapshots(w meta) int {
	entries, err := os.ReadDir(filepath.Join(m.workspacePath(w), snapshotsDir))
	if err != nil {
		return 0
	}
	n := 0
	for _, f := range entries {
		if uuid.Validate(f.Name()) == nil {
			n++
		}
	}
	return n
}

func (m *Manager) snapshotInfo(w meta, s snapshotMeta) Snapshot {
	out := Snapshot{ID: s.ID, Workspace: w.Name, Label: s.Label, CreatedAt: s.CreatedAt}
	var st unix.Stat_t
	if unix.Stat(filepath.Join(m.snapshotDir(w, s.ID), contentDir, diskDir, "disk.img"), &st) == nil {
		out.Bytes = st.Blocks * 512
	}
	return out
}
