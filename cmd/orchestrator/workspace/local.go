package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// localWorkspaces are the workspaces of a state directory that no server holds.
type localWorkspaces struct {
	manager *volumes.Manager
	lock    *os.File
	dir     string // the state directory
}

func openWorkspaces(a *cli.App, c config.Config) (*localWorkspaces, error) {
	if err := standalone.MakeStateDir(c.StateDir); err != nil {
		return nil, err
	}
	lock, err := standalone.LockFile(filepath.Join(c.StateDir, standalone.WorkspacesLock), unix.LOCK_EX)
	if err != nil {
		return nil, standalone.WorkspaceHeld(c.StateDir, err)
	}
	c.Log.Level = "warn"
	m, err := volumes.Open(engine.DirsOf(c.StateDir).Workspaces, standalone.VolumeOptions(c, standalone.Logger(a.Stderr, c.Log)))
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	got := &localWorkspaces{m, lock, c.StateDir}
	if err := standalone.EndDeserted(context.Background(), c.StateDir, m); err != nil {
		return nil, errors.Join(err, got.close())
	}
	return got, nil
}

func (l *localWorkspaces) close() error { return errors.Join(l.manager.Close(), l.lock.Close()) }

// CreateWorkspaceWithQuota makes one.
func (l *localWorkspaces) CreateWorkspaceWithQuota(ctx context.Context, name string, quota int64, _ ...client.Option) (v1.Workspace, error) {
	w, err := l.manager.Create(ctx, name, volumes.CreateOptions{QuotaBytes: quota})
	return presentWorkspace(w), err
}

// ResizeWorkspace changes what one holds at most.
func (l *localWorkspaces) ResizeWorkspace(ctx context.Context, name string, quota int64) (v1.Workspace, error) {
	if err := standalone.LeftHolding(ctx, l.dir, name); err != nil {
		return v1.Workspace{}, err
	}
	w, err := l.manager.Resize(ctx, name, quota)
	return presentWorkspace(w), err
}

// Workspaces lists them.
func (l *localWorkspaces) Workspaces(context.Context) ([]v1.Workspace, error) {
	var out []v1.Workspace
	for _, w := range l.manager.List() {
		out = append(out, presentWorkspace(w))
	}
	return out, nil
}

// DeleteWorkspace removes one.
func (l *localWorkspaces) DeleteWorkspace(ctx context.Context, name string) error {
	if err := standalone.LeftHolding(ctx, l.dir, name); err != nil {
		return err
	}
	return l.manager.Delete(ctx, name)
}

func presentWorkspace(w volumes.Workspace) v1.Workspace {
	return v1.Workspace{Name: w.Name, CreatedAt: w.CreatedAt, Sandboxes: []string{}, QuotaBytes: w.QuotaBytes, UsedBytes: w.UsedBytes, Overlays: w.Overlays, Snapshots: w.Snapshots}
}

func (l *localWorkspaces) read(ctx context.Context, name, path string) (io.ReadCloser, error) {
	files, err := l.manager.Files(ctx, name)
	if err != nil {
		return nil, err
	}
	r, err := files.Read(path, 0, 0)
	if err != nil {
		return nil, errors.Join(err, files.Close())
	}
	return &opened{Reader: until{ctx, r}, close: func() error { return errors.Join(r.Close(), files.Close()) }}, nil
}

// until reads until a context ends: a file can be longer than anybody waits for.
type until struct {
	ctx context.Context //nolint:containedctx // of the command that reads
	io.Reader
}

// Read says why the context ended.
func (u until) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.Reader.Read(p)
}

// opened is a file with what to close.
type opened struct {
	io.Reader
	close func() error
}

// Close closes all.
func (o *opened) Close() error { return o.close() }

func (l *localWorkspaces) write(ctx context.Context, name, path string, content io.Reader, size int64, mode string) (f v1.File, err error) {
	perm, err := strconv.ParseUint(mode, 8, 32)
	if err != nil {
		return f, cli.Refuse(errdefs.ErrInvalidArgument, "mode %q is not octal, such as 0644", mode)
	}
	files, err := l.manager.Edit(ctx, name)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	w, err := files.Write(path, safefile.WriteOptions{Mode: uint32(perm), Size: max(size, 0), Parents: true})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	if _, err := io.Copy(w, until{ctx, content}); err != nil {
		return f, err
	}
	info, err := w.Commit()
	return presentFile(info), err
}

func (l *localWorkspaces) list(ctx context.Context, name, path string) (items []v1.File, truncated bool, err error) {
	files, err := l.manager.Files(ctx, name)
	if err != nil {
		return nil, false, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	infos, truncated, err := files.List(ctx, path, wire.MaxEntries, nil)
	for _, i := range infos {
		items = append(items, presentFile(i))
	}
	return items, truncated, err
}

func (l *localWorkspaces) remove(ctx context.Context, name, path string) (err error) {
	files, err := l.manager.Edit(ctx, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	return files.Remove(ctx, path, true)
}

func presentFile(i safefile.Info) v1.File {
	return v1.File{
		Name: i.Name, Path: i.Path, Type: i.Type, Size: i.Size, Mode: fmt.Sprintf("%04o", i.Mode), UID: i.UID, GID: i.GID, ModTime: i.ModTime, Target: i.Target,
	}
}
