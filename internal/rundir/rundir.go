// Package rundir manages the directory that every local driver needs on the host for one sandbox:
// two mounts for the container, the socket that its guest dials, the workspace that is mounted
// later, and the cgroups.
//
//	S/cells/<id>/run          small tmpfs, root only; the container sees it read-only at wire.RunDir
//	S/cells/<id>/run/guest    the guest binary, a read-only bind; its programs (guest-web) likewise
//	S/cells/<id>/run/host.sock
//	S/cells/<id>/run/cgroup/  empty directories on which Attach binds the delegated cgroups
//	S/cells/<id>/slot         tmpfs of the sandbox's scratch size; a workspace is bound on top of it
//	S/cells/<id>/cgroup.json  the cgroups that Attach delegated, for a removal after a crash
//
// Both tmpfs are shared mounts, so it does not matter what file system S is on, and a container
// that has them as slaves sees later mounts. A driver mounts [Dir.RunDir] and [Dir.WorkspaceDir]
// recursively, as slaves.
//
// The package never starts or ends a container and never deletes a tree: after the last unmount
// only files that it made remain, and it removes those by name. So no mistake in unmounting can
// delete a workspace.
//
// Goroutines: those of guestconn.Listener; Close and Remove wait for them.
//
// Errors: [ErrIncomplete], [ErrBound], [ErrNotAttached], livemount.ErrBusy, guestconn.ErrClosed,
// cgroup.ErrUnsupported, or what the kernel returned, wrapped.
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
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
)

// Errors that callers distinguish.
var (
	// ErrIncomplete: Adopt found only parts of a run directory. The host crashed while it was made
	// or removed, or has booted since. Nothing can run in it; call Remove.
	ErrIncomplete = errors.New("run directory is incomplete")
	// ErrBound: a workspace is already bound.
	ErrBound = errors.New("a workspace is bound already")
	// ErrNotAttached: there is no running container yet that could see a workspace.
	ErrNotAttached = errors.New("no running sandbox is attached")
)

const (
	// The limits of a run directory: it holds a socket and a few empty directories.
	runBytes  = 1 << 20
	runInodes = 128
	// workspaceUID owns the scratch workspace: the uid and gid of commands unless a lease says
	// otherwise.
	workspaceUID = 1000
	// undoTime bounds the removal of a half-made run directory.
	undoTime = 10 * time.Second
)

// Options select a run directory.
type Options struct {
	Dir          string // parent of all run directories, absolute; made if missing
	ID           string // of the sandbox: letters, digits, '.', '_' and '-', at most 128, not starting with '.'
	GuestPath    string // of the guest binary: a file, not a symbolic link. Only Make reads it
	ScratchBytes int64  // size of the scratch workspace, positive. Only Make reads it
	// User is the sandbox's user namespace, or nil. Close and Remove close it.
	User *userns.Namespace
	Log  *slog.Logger
}

// Dir is the run directory of one sandbox. Safe for concurrent use; calls that change mounts wait
// for each other.
type Dir struct {
	id   string
	root string // S/cells/<id>, without symbolic links
	log  *slog.Logger
	ln   *guestconn.Listener
	user *userns.Namespace

	mountLock chan struct{} // holds one token; its holder may change mounts and the fields below
	// workspaces is the number of mounts on top of the scratch workspace.
	workspaces int
	// initPid is the sandbox's process, 0 before Attach. cgroupsBound: its cgroups are bound.
	initPid      int
	cgroupsBound bool
	// noLateMounts: a later mount does not appear inside.
	noLateMounts bool
	// cgroups are those that Attach delegated, or nil. Read without the lock.
	cgroups atomic.Pointer[cgroup.Delegated]
	// mayBeBound: an earlier process, or an Attach that failed, may have bound some cgroups
	// already.
	mayBeBound bool
}

// Make creates a run directory and listens in it. On an error, or if ctx ends first, it removes
// everything again. If the directory exists, the error is fs.ErrExist.
func Make(ctx context.Context, o Options) (_ *Dir, err error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("make run directory %s: %w", o.ID, err)
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory %s: %w", o.ID, err)
	}
	c, err := newDir(o)
	if err != nil {
		return nil, fmt.Errorf("make run directory %s: %w", o.ID, err)
	}
	if err := os.Mkdir(c.root, 0o700); err != nil {
		return nil, fmt.Errorf("make run directory %s: %w", o.ID, err)
	}
	defer func() {
		if err == nil {
			return
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		err = errors.Join(fmt.Errorf("make run directory %s: %w", o.ID, err), c.Remove(undo))
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

// steps returns what turns an empty directory into a run directory, in order. Remove handles a stop
// after any of them.
func (c *Dir) steps(o Options) []func() error {
	guest := filepath.Join(c.RunDir(), filepath.Base(wire.GuestPath))
	return []func() error{
		func() error { return os.Mkdir(c.RunDir(), 0o700) },
		func() error { return os.Mkdir(c.WorkspaceDir(), 0o700) },
		func() error {
			return livemount.MakeTmpfs(c.RunDir(), livemount.Tmpfs{
				Bytes: runBytes, Inodes: runInodes, Mode: 0o700, UID: c.user.Root(), GID: c.user.Root(),
			})
		},
		func() error {
			return livemount.MakeTmpfs(c.WorkspaceDir(), livemount.Tmpfs{
				Bytes: o.ScratchBytes, Mode: 0o755, UID: c.user.Root() + workspaceUID, GID: c.user.Root() + workspaceUID,
			})
		},
		func() error { return c.bindPrograms(guest, o.GuestPath) },
		func() error { return c.bindBinary(guest, o.GuestPath) }, // last: with it the run directory counts as complete
		c.makeCgroupDirs,
		c.listen,
	}
}

// bindBinary makes a host file appear at path.
func (c *Dir) bindBinary(path, source string) error {
	if err := os.WriteFile(path, nil, 0o700); err != nil {
		return err
	}
	return livemount.BindFileFor(path, source, c.mountOptions(true))
}

// bindPrograms binds the programs that exist beside the guest.
func (c *Dir) bindPrograms(guest, source string) error {
	for _, name := range wire.Programs() {
		from := wire.ProgramPath(source, name)
		if _, err := os.Lstat(from); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := c.bindBinary(wire.ProgramPath(guest, name), from); err != nil {
			return err
		}
	}
	return nil
}

// Adopt takes over the run directory of an earlier host process: it listens at the same path again,
// and the guest reconnects. The error is fs.ErrNotExist if there is none, and [ErrIncomplete] if
// only parts are left. Call Attach before using streams.
func Adopt(ctx context.Context, o Options) (*Dir, error) {
	c, err := newDir(o)
	if err == nil {
		err = c.adopt(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("adopt run directory %s: %w", o.ID, err)
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

// RunDir returns the host path of what the container mounts read-only at wire.RunDir.
func (c *Dir) RunDir() string { return filepath.Join(c.root, "run") }

// WorkspaceDir returns the host path of what the container mounts at wire.Workspace.
func (c *Dir) WorkspaceDir() string { return filepath.Join(c.root, "slot") }

// Attach binds the sandbox's cgroups into the running container, with the caps of share. Then it
// lets the process initPid, in the host's pid namespace, and no other, park streams. If the cgroups
// fail, streams still work: the caller decides whether to use such a sandbox. Attach is idempotent;
// a second call does not change the caps.
func (c *Dir) Attach(ctx context.Context, initPid int, share cgroup.Share) error {
	if initPid <= 0 {
		return fmt.Errorf("attach run directory %s: invalid pid %d", c.id, initPid)
	}
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("attach run directory %s: %w", c.id, err)
	}
	defer c.unlock()
	switch {
	case c.initPid != 0 && c.initPid != initPid:
		return fmt.Errorf("attach run directory %s to process %d: it is attached to %d", c.id, initPid, c.initPid)
	case c.cgroupsBound:
		return nil
	}
	err := c.bindCgroups(initPid, share)
	// Last, so that no stream is used before the cgroups exist.
	c.ln.Expect(initPid)
	c.initPid, c.cgroupsBound = initPid, err == nil
	if err != nil {
		return fmt.Errorf("attach run directory %s: %w", c.id, err)
	}
	return nil
}

// AttachAs is Attach for a running sandbox that accepts neither cgroups nor a workspace from
// outside (gVisor). It lets the processes park streams for which check returns nil. initPid is the
// process that represents the sandbox. It is idempotent.
func (c *Dir) AttachAs(ctx context.Context, initPid int, check func(pid int) error) error {
	if initPid <= 0 {
		return fmt.Errorf("attach run directory %s: invalid pid %d", c.id, initPid)
	}
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("attach run directory %s: %w", c.id, err)
	}
	defer c.unlock()
	if c.initPid != 0 && c.initPid != initPid {
		return fmt.Errorf("attach run directory %s to process %d: it is attached to %d", c.id, initPid, c.initPid)
	}
	c.ln.ExpectWhere(check)
	c.initPid, c.noLateMounts = initPid, true
	return nil
}

// Open opens a stream to the guest; see guestconn.Listener.Open.
func (c *Dir) Open(ctx context.Context) (net.Conn, error) { return c.ln.Open(ctx) }

// Bind mounts the directory source at wire.Workspace inside, where it is visible when Bind returns.
// The error is [ErrBound] if a workspace is bound, and [ErrNotAttached] before Attach: a container
// made after Bind would keep the workspace as its scratch directory.
func (c *Dir) Bind(ctx context.Context, source string, ro bool) error {
	return c.bind(ctx, source, c.mountOptions(ro))
}

// BindMapped is Bind for a source that was mounted for the sandbox's user namespace.
func (c *Dir) BindMapped(ctx context.Context, source string, ro bool) error {
	return c.bind(ctx, source, livemount.Options{ReadOnly: ro})
}

func (c *Dir) bind(ctx context.Context, source string, o livemount.Options) error {
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("bind workspace of sandbox %s: %w", c.id, err)
	}
	defer c.unlock()
	switch {
	case c.initPid == 0:
		return fmt.Errorf("bind workspace of sandbox %s: %w", c.id, ErrNotAttached)
	case c.noLateMounts:
		return fmt.Errorf("bind workspace of sandbox %s: the mount would not appear inside: %w", c.id, errors.ErrUnsupported)
	case c.workspaces > 0:
		return fmt.Errorf("bind workspace of sandbox %s: %w", c.id, ErrBound)
	}
	if err := livemount.BindFor(c.WorkspaceDir(), source, o); err != nil {
		return fmt.Errorf("bind workspace of sandbox %s: %w", c.id, err)
	}
	c.workspaces++
	return nil
}

// Unbind unmounts the workspace, if there is one. The error is livemount.ErrBusy if something
// inside still uses it after 2 s: then only the end of the sandbox frees the workspace.
func (c *Dir) Unbind(ctx context.Context) error {
	if err := c.lock(ctx); err != nil {
		return fmt.Errorf("unbind workspace of sandbox %s: %w", c.id, err)
	}
	defer c.unlock()
	for c.workspaces > 0 {
		if err := livemount.Unbind(ctx, c.WorkspaceDir()); err != nil {
			return fmt.Errorf("unbind workspace of sandbox %s: %w", c.id, err)
		}
		c.workspaces--
	}
	return nil
}

// Close stops listening and changes nothing else, so that the next host process can Adopt. Open
// streams continue.
func (c *Dir) Close() error { return errors.Join(c.ln.Close(), c.user.Close()) }

// User returns the sandbox's user namespace, or nil. It is valid until Close.
func (c *Dir) User() *userns.Namespace { return c.user }

// mountOptions returns the options of a mount for the sandbox.
func (c *Dir) mountOptions(ro bool) livemount.Options {
	return livemount.Options{ReadOnly: ro, UserNS: c.user.File()}
}

// listen creates the socket that the guest dials.
func (c *Dir) listen() error {
	ln, err := guestconn.ListenFor(filepath.Join(c.RunDir(), filepath.Base(wire.HostSocket)), c.user.Root())
	if err != nil {
		return err
	}
	c.ln = ln
	return nil
}

// lock waits for the right to change mounts.
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
	// The kernel lists mounts under their real paths.
	dir, err := filepath.EvalSymlinks(o.Dir)
	if err != nil {
		return nil, err
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Dir{
		id: o.ID, root: filepath.Join(dir, o.ID), mountLock: make(chan struct{}, 1), user: o.User,
		log: log.With("sandbox", o.ID),
	}, nil
}

// Leftovers returns the ids that have a directory in dir, complete or not. It returns none if dir
// does not exist.
func Leftovers(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list run directories: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if e.IsDir() && validID.MatchString(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}
