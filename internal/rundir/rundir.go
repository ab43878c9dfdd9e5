// Package rundir owns what every local driver needs on the host for one sandbox: a folder with two mounts that the container
// is given, the socket on which its guest reports, the late-bound workspace and the late-bound cgroups.
//
//	S/cells/<id>/run          small tmpfs, root only; the container sees it read-only at wire.RunDir
//	S/cells/<id>/run/guest    the guest binary, a read-only bind, and so its programs (guest-web)
//	S/cells/<id>/run/host.sock
//	S/cells/<id>/run/cgroup/  empty folders, onto which Attach binds the delegated cgroups
//	S/cells/<id>/slot         tmpfs of the sandbox's scratch size; a workspace is bound on top of it
//	S/cells/<id>/cgroup.json  which cgroups Attach delegated, for a removal after a crash
//
// Both tmpfs are shared mounts of their own, so it does not matter what S lies on, and a container that has them as slaves
// sees what is mounted later. A driver mounts [Cell.RunDir] and [Cell.SlotDir] recursively, as slaves.
//
// The package never starts or ends a container and never deletes a tree: after the last unmount there are only files it
// made itself, and it removes those by name, so that no mistake in unmounting can cost a workspace.
//
// Goroutines: those of the cell's link.Listener; Close and Remove wait for them.
//
// Errors: [ErrIncomplete], [ErrBound], [ErrNotAttached], slot.ErrBusy, link.ErrClosed, cgroup.ErrUnsupported, else what the kernel said, wrapped.
package rundir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sync/atomic"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// The errors callers tell apart.
var (
	// ErrIncomplete: what Adopt found is not a whole cell (the host crashed while it was made or removed, or was booted
	// since). Nothing can be run in it; Remove it.
	ErrIncomplete = errors.New("cell is incomplete")
	// ErrBound: a workspace is bound already.
	ErrBound = errors.New("a workspace is bound already")
	// ErrNotAttached: there is no running container yet that a workspace could be shown to.
	ErrNotAttached = errors.New("no running sandbox is attached")
)

const (
	// runBytes holds a socket and a few empty folders.
	runBytes  = 1 << 20
	runInodes = 128
	// workspaceUID owns the scratch workspace: the uid and gid that commands run as unless a lease says otherwise.
	workspaceUID = 1000
	// undoTime bounds taking back a half-made cell.
	undoTime = 10 * time.Second
)

// Options say which cell.
type Options struct {
	Dir          string // of all cells, absolute; made if missing
	ID           string // of the sandbox: letters, digits, '.', '_' and '-', at most 128, not beginning with '.'
	GuestPath    string // of the guest binary: a file, not a symbolic link. Only Make reads it
	ScratchBytes int64  // most that the scratch workspace holds; must be positive. Only Make reads it
	Log          *slog.Logger
}

// Dir is one sandbox's. Safe for concurrent use; calls that change mounts wait for each other.
type Dir struct {
	id   string
	root string // S/cells/<id>, without symbolic links
	log  *slog.Logger
	ln   *guestconn.Listener

	mountLock chan struct{} // one token: who has it may change mounts and what is below
	// workspaces is how many mounts lie on the scratch workspace.
	workspaces int
	// initPid is the sandbox's process, 0 before Attach; grouped: its cgroups are bound.
	initPid      int
	cgroupsBound bool
	// noLateMounts: what is mounted later does not appear inside.
	noLateMounts bool
	// cgroups are those that Attach delegated, nil before that and without any. Read without the turn.
	cgroups atomic.Pointer[cgroup.Delegated]
	// mayBeBound: some cgroups may be bound already, by a process before us or by an Attach that failed.
	mayBeBound bool
}

// Make makes a cell and listens in it. On error, and when ctx ends meanwhile, everything is taken back. A cell
// that exists is an error (fs.ErrExist).
func Make(ctx context.Context, o Options) (_ *Dir, err error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("make cell %s: %w", o.ID, err)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make cell %s: %w", o.ID, err)
	}
	c, err := newDir(o)
	if err != nil {
		return nil, fmt.Errorf("make cell %s: %w", o.ID, err)
	}
	if err := os.Mkdir(c.root, 0o700); err != nil {
		return nil, fmt.Errorf("make cell %s: %w", o.ID, err)
	}
	defer func() {
		if err == nil {
			return
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		err = errors.Join(fmt.Errorf("make cell %s: %w", o.ID, err), c.Remove(undo))
	}()
	for _, step := range c.steps(o) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := step(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// steps are what makes a cell of an empty folder, in order. Remove copes with an end after any of them.
func (c *Dir) steps(o Options) []func() error {
	guest := filepath.Join(c.RunDir(), filepath.Base(wire.GuestPath))
	return []func() error{
		func() error { return os.Mkdir(c.RunDir(), 0o700) },
		func() error { return os.Mkdir(c.WorkspaceDir(), 0o700) },
		func() error {
			return livemount.MakeTmpfs(c.RunDir(), livemount.Tmpfs{Bytes: runBytes, Inodes: runInodes, Mode: 0o700})
		},
		func() error {
			return livemount.MakeTmpfs(c.WorkspaceDir(), livemount.Tmpfs{
				Bytes: o.ScratchBytes, Mode: 0o755, UID: workspaceUID, GID: workspaceUID,
			})
		},
		func() error { return bindPrograms(guest, o.GuestPath) },
		func() error { return bindBinary(guest, o.GuestPath) }, // last: with it a cell counts as whole
		c.makeCgroupDirs,
		c.listen,
	}
}

// bindBinary makes a file of the host's appear at path.
func bindBinary(path, source string) error {
	if err := os.WriteFile(path, nil, 0o700); err != nil {
		return err
	}
	return livemount.BindFile(path, source, true)
}

// bindPrograms has the programs beside the guest that there are.
func bindPrograms(guest, source string) error {
	for _, name := range wire.Programs() {
		from := wire.ProgramPath(source, name)
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := bindBinary(wire.ProgramPath(guest, name), from); err != nil {
			return err
		}
	}
	return nil
}

// Adopt takes over the cell of a host process before this one: it listens again at the same path, and the guest comes back by
// itself. fs.ErrNotExist without such a cell; [ErrIncomplete] where only parts of one are left. Attach must be called
// again before streams are used.
func Adopt(ctx context.Context, o Options) (*Dir, error) {
	c, err := newDir(o)
	if err == nil {
		err = c.adopt(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt cell %s: %w", o.ID, err)
	}
	return c, nil
}

func (c *Dir) adopt(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if _, err := os.Lstat(c.root); err != nil {
		return err
	}
	guest := filepath.Join(c.RunDir(), filepath.Base(wire.GuestPath))
	for _, path := range []string{c.RunDir(), guest, c.WorkspaceDir()} {
		there, err := livemount.IsMount(path)
		if err != nil {
			return err
		}
		if !there {
			return fmt.Errorf("%w: nothing is mounted at %s", ErrIncomplete, path)
		}
	}
	n, err := livemount.Mounted(c.WorkspaceDir())
	if err != nil {
		return err
	}
	c.workspaces = n - 1
	for _, path := range []string{c.RunDir(), c.WorkspaceDir()} {
		shared, err := livemount.Shared(path)
		if err != nil {
			return err
		}
		if !shared {
			return fmt.Errorf("%w: mount at %s is not shared any more", ErrIncomplete, path)
		}
	}
	c.mayBeBound = true
	return c.listen()
}

// RunDir is the host's path of what the container mounts read-only at wire.RunDir.
func (c *Dir) RunDir() string { return filepath.Join(c.root, "run") }

// WorkspaceDir is the host's path of what the container mounts at wire.Workspace.
func (c *Dir) WorkspaceDir() string { return filepath.Join(c.root, "slot") }

// Attach binds the sandbox's cgroups into the running container, with the caps of share, and then lets the process initPid
// (in the host's pid namespace), and no other, park streams. When the cgroups fail the link works all the same: whether a
// sandbox without them may be used is the caller's to say. Idempotent; with other caps it sets nothing anew.
func (c *Dir) Attach(ctx context.Context, initPid int, share cgroup.Share) error {
	if initPid <= 0 {
		return fmt.Errorf("attach cell %s: pid %d is nobody's", c.id, initPid)
	}
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("attach cell %s: %w", c.id, err)
	}
	defer c.unlock()
	switch {
	case c.initPid != 0 && c.initPid != initPid:
		return fmt.Errorf("attach cell %s to process %d: it is attached to %d", c.id, initPid, c.initPid)
	case c.cgroupsBound:
		return nil
	}
	err := c.bindCgroups(initPid, share)
	// Last, so that no stream is used before the cgroups are there.
	c.ln.Expect(initPid)
	c.initPid, c.cgroupsBound = initPid, err == nil
	if err != nil {
		return fmt.Errorf("attach cell %s: %w", c.id, err)
	}
	return nil
}

// AttachAs is Attach for a sandbox that takes neither cgroups nor a workspace from outside once it runs (gVisor): it lets the
// processes park streams for which check returns nil. initPid is the process that stands for the sandbox. Idempotent.
func (c *Dir) AttachAs(ctx context.Context, initPid int, check func(pid int) error) error {
	if initPid <= 0 {
		return fmt.Errorf("attach cell %s: pid %d is nobody's", c.id, initPid)
	}
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("attach cell %s: %w", c.id, err)
	}
	defer c.unlock()
	if c.initPid != 0 && c.initPid != initPid {
		return fmt.Errorf("attach cell %s to process %d: it is attached to %d", c.id, initPid, c.initPid)
	}
	c.ln.ExpectWhere(check)
	c.initPid, c.noLateMounts = initPid, true
	return nil
}

// Open opens a stream to the guest; see link.Listener.Open.
func (c *Dir) Open(ctx context.Context) (net.Conn, error) { return c.ln.Open(ctx) }

// Bind mounts the directory source at wire.Workspace inside, visible there when Bind returns. [ErrBound] if one is bound;
// [ErrNotAttached] before Attach, for a container made after Bind would take the workspace for the slot, and keep it.
func (c *Dir) Bind(ctx context.Context, source string, ro bool) error {
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("bind workspace in cell %s: %w", c.id, err)
	}
	defer c.unlock()
	switch {
	case c.initPid == 0:
		return fmt.Errorf("bind workspace in cell %s: %w", c.id, ErrNotAttached)
	case c.noLateMounts:
		return fmt.Errorf("bind workspace in cell %s: it would not be seen inside: %w", c.id, errors.ErrUnsupported)
	case c.workspaces > 0:
		return fmt.Errorf("bind workspace in cell %s: %w", c.id, ErrBound)
	}
	if err := livemount.Bind(c.WorkspaceDir(), source, ro); err != nil {
		return fmt.Errorf("bind workspace in cell %s: %w", c.id, err)
	}
	c.workspaces++
	return nil
}

// Unbind takes the workspace away; without one it does nothing. slot.ErrBusy after 2 s in which something inside still used
// it: then only the end of the sandbox makes the workspace free for another.
func (c *Dir) Unbind(ctx context.Context) error {
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("unbind workspace in cell %s: %w", c.id, err)
	}
	defer c.unlock()
	for c.workspaces > 0 {
		if err := livemount.Unbind(ctx, c.WorkspaceDir()); err != nil {
			return fmt.Errorf("unbind workspace in cell %s: %w", c.id, err)
		}
		c.workspaces--
	}
	return nil
}

// Close stops listening and leaves everything else as it is, for the next host process to Adopt. Streams in use live on.
func (c *Dir) Close() error { return c.ln.Close() }

// listen makes the socket the guest dials.
func (c *Dir) listen() error {
	ln, err := guestconn.Listen(filepath.Join(c.RunDir(), filepath.Base(wire.HostSocket)))
	if err != nil {
		return err
	}
	c.ln = ln
	return nil
}

// lock waits for the turn to change mounts.
func (c *Dir) lock(ctx context.Context) error {
	select {
	case c.mountLock <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Dir) unlock() { <-c.mountLock }

// validID keeps an id a single, visible name below Dir.
var validID = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$`)

// validate checks what every call reads; each step of Make checks what it needs.
func (o Options) validate() error {
	if !validID.MatchString(o.ID) {
		return fmt.Errorf("id %q: want letters, digits, '.', '_' and '-', at most 128, not '.' first", o.ID)
	}
	if !filepath.IsAbs(o.Dir) {
		return fmt.Errorf("dir %q is not absolute", o.Dir)
	}
	return nil
}

func newDir(o Options) (*Dir, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	// Mounts are listed under their real paths.
	dir, err := filepath.EvalSymlinks(o.Dir)
	if err != nil {
		return nil, err
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Dir{
		id: o.ID, root: filepath.Join(dir, o.ID), mountLock: make(chan struct{}, 1),
		log: log.With("sandbox", o.ID),
	}, nil
}

// Leftovers returns the ids that have a folder in dir, whole cells or not. None, without an error, where dir does not exist.
func Leftovers(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list cells: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && validID.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
