package ocidriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/internal/namedlock"
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// UndoTime bounds the removal of what a failed call made.
const UndoTime = 20 * time.Second

const (
	removeTime  = 30 * time.Second // bounds a removal whose context has no deadline
	removeTries = 3
	killTime    = time.Second // for the first process alone, before its cgroups are emptied by force
	stateTime   = time.Second // for unmounting below a runtime's state directory
)

// Base is the part of a driver that does not depend on what makes the containers. It holds the
// running sandboxes by id, and creates, adopts and removes sandboxes, with one call at a time for
// each. A driver embeds it and sets the fields before the first call. Safe for concurrent use.
type Base struct {
	// RunDirs is the directory of the run directories, and Guest the guest's binary on this host.
	RunDirs, Guest string
	Log            *slog.Logger
	// Find returns the record of a sandbox and its running first process. NotFound: it has no
	// record, or its first process has ended.
	Find func(ctx context.Context, id string) (Recorded, error)
	// TearDown removes one part after the other. Each step succeeds if there is nothing to do.
	TearDown func(ctx context.Context, id string) error
	// NewUser makes the user namespace of a sandbox that asks for one. TearDown returns its ids.
	NewUser func(ctx context.Context, id string) (*userns.Namespace, error)
	// Remaining names what is left of a sandbox, for error messages.
	Remaining func(id string) []string

	namedlock.Locks
	mu   sync.Mutex
	live map[string]*Sandbox
}

// Recorded is what a driver's records say about a sandbox whose first process runs.
type Recorded struct {
	Class  runtime.Class
	Limits runtime.Limits
	Init   *Process
	// Holder is the directory that ClaimUser got, if the sandbox has a user namespace of this driver.
	// It need not exist.
	Holder string
}

// RunDirOptions returns the options of a sandbox's run directory.
func (b *Base) RunDirOptions(id string, l runtime.Limits) rundir.Options {
	return rundir.Options{Dir: b.RunDirs, ID: id, GuestPath: b.Guest, ScratchBytes: l.ScratchBytes, Log: b.Log}
}

// Start starts a sandbox's first process and attaches it to the run directory.
type Start func(ctx context.Context, c *rundir.Dir) (*Process, Stderr, error)

// Create creates a sandbox. record writes its record, or leaves nothing if it fails. After an error
// nothing is left; if something could not be removed, the error says so, and List finds it.
func (b *Base) Create(ctx context.Context, spec runtime.Spec, record func(context.Context) error,
	start Start) (runtime.Sandbox, error) {
	unlock, err := b.Lock(ctx, spec.ID)
	if err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	defer unlock()
	if err := record(ctx); err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	s, err := b.create(ctx, spec, start)
	if err == nil {
		return s, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), UndoTime)
	defer cancel()
	return nil, errors.Join(fmt.Errorf("create sandbox %s: %w", spec.ID, err), b.destroy(undo, spec.ID))
}

func (b *Base) create(ctx context.Context, spec runtime.Spec, start Start) (*Sandbox, error) {
	o := b.RunDirOptions(spec.ID, spec.Limits)
	if spec.UserNamespace {
		user, err := b.NewUser(ctx, spec.ID)
		if err != nil {
			return nil, err
		}
		o.User = user
	}
	c, err := rundir.Make(ctx, o)
	if err != nil {
		return nil, errors.Join(err, o.User.Close())
	}
	init, words, err := start(ctx, c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return b.hold(spec.ID, spec.Class, c, init, words), nil
}

// Adopt takes over a sandbox that an earlier driver on the same state directory created.
func (b *Base) Adopt(ctx context.Context, id string) (runtime.Sandbox, error) {
	if !runtime.ValidID(id) {
		return nil, fmt.Errorf("adopt sandbox %q: not an id: %w", id, errdefs.ErrInvalidArgument)
	}
	unlock, err := b.Lock(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("adopt sandbox %s: %w", id, err)
	}
	defer unlock()
	if b.Get(id) != nil {
		return nil, fmt.Errorf("adopt sandbox %s: this process has it already: %w", id, errdefs.ErrAlreadyExists)
	}
	s, err := b.adopt(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("adopt sandbox %s: %w", id, err)
	}
	return s, nil
}

func (b *Base) adopt(ctx context.Context, id string) (*Sandbox, error) {
	rec, err := b.Find(ctx, id)
	if err != nil {
		return nil, err
	}
	o := b.RunDirOptions(id, rec.Limits)
	if o.User, err = userOf(rec); err == nil && rec.Init.Ended() {
		err = errors.Join(fmt.Errorf("its first process has ended: %w", errdefs.ErrNotFound), o.User.Close())
	}
	if err != nil {
		rec.Init.Close()
		return nil, err
	}
	c, err := rundir.Adopt(ctx, o)
	if err != nil {
		rec.Init.Close()
		return nil, errors.Join(err, o.User.Close())
	}
	if err := Attach(ctx, c, id, rec.Class, rec.Init.Pid, rec.Limits); err != nil {
		rec.Init.Close()
		return nil, errors.Join(err, c.Close())
	}
	return b.hold(id, rec.Class, c, rec.Init, nil), nil
}

// Remove destroys a sandbox from any state: held or not, half made, half removed, its first process
// dead or never started.
func (b *Base) Remove(ctx context.Context, id string) error {
	if !runtime.ValidID(id) {
		return fmt.Errorf("remove sandbox %q: not an id: %w", id, errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, removeTime, fmt.Errorf("not removed within %s", removeTime))
	defer cancel()
	unlock, err := b.Lock(ctx, id)
	if err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	defer unlock()
	return b.destroy(ctx, id)
}

// destroy destroys a sandbox whose lock the caller holds. It starts over a few times, since one
// part may briefly block another.
func (b *Base) destroy(ctx context.Context, id string) error {
	var err error
	for try := range removeTries {
		if try > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
		if err = b.TearDown(ctx, id); err == nil {
			if s := b.Get(id); s != nil {
				s.forget()
			}
			return nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	left := b.Remaining(id)
	if len(left) == 0 {
		left = []string{"no parts that can be seen"}
	}
	return fmt.Errorf("remove sandbox %s: left are %s: %w", id, strings.Join(left, ", "), err)
}

// End kills all processes of a sandbox and waits until they are dead. find returns the first
// process of a sandbox that is not held here, or nil: End then kills by cgroup. several reports
// whether the sandbox consists of several host processes that do not end with the first one.
func (b *Base) End(ctx context.Context, id string, find func() (*Process, error), several func() bool) error {
	var init *Process
	if s := b.Get(id); s != nil {
		init = s.Init
	} else {
		found, err := find()
		if err != nil {
			return err
		}
		defer found.Close()
		init = found
	}
	if init == nil {
		return RemoveCgroups(ctx, id)
	}
	if err := init.Kill(); err != nil {
		return fmt.Errorf("kill process %d: %w", init.Pid, err)
	}
	short, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	if init.Wait(short) == nil && !several() {
		return nil
	}
	if err := RemoveCgroups(ctx, id); err != nil {
		return err
	}
	return init.Wait(ctx)
}

// RemoveRunDir removes the run directory of a sandbox.
func (b *Base) RemoveRunDir(ctx context.Context, id string) error {
	if s := b.Get(id); s != nil {
		return s.RunDir.Remove(ctx)
	}
	return rundir.Remove(ctx, b.RunDirOptions(id, runtime.Limits{}.WithDefaults()))
}

// RemoveState removes a runtime's state directory of a sandbox. A runtime that was killed while it
// started leaves the mount of its own program there.
func RemoveState(ctx context.Context, dir string) error {
	if !Exists(dir) {
		return nil
	}
	if err := livemount.Sweep(ctx, dir, stateTime); err != nil {
		return fmt.Errorf("state of the runtime: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("state of the runtime: %w", err)
	}
	return nil
}

// Left returns a sandbox's cgroups, its run directory and the paths, as far as they exist.
func (b *Base) Left(id string, paths ...string) []string {
	left, err := CgroupsOf(id)
	if err != nil {
		left = nil
	}
	for _, path := range append([]string{filepath.Join(b.RunDirs, id)}, paths...) {
		if Exists(path) {
			left = append(left, path)
		}
	}
	return left
}

// Exists reports whether there is something at a path, even a link to nothing.
func Exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// Classes returns the classes that a driver offers: container, and gvisor unless why returns an
// error for it.
func Classes(why func(runtime.Class) error) []runtime.Class {
	classes := []runtime.Class{runtime.ClassContainer}
	if why(runtime.ClassGVisor) == nil {
		classes = append(classes, runtime.ClassGVisor)
	}
	return classes
}
