// Package oci is the embedded driver: it creates sandboxes with an OCI runtime (runc or crun),
// without a daemon. It owns the directory "oci" of the state directory, the cgroups
// /orchestrator/<id>, and the read-only overlay that is a sandbox's root.
//
// The disk decides which sandboxes exist: a sandbox's directory with its record is made before
// anything else of it, and removed after everything else. So List and Remove find whatever a crash
// left. The package does not decide who may have a sandbox, and never writes into an image's root.
//
// It starts one goroutine per sandbox that it holds, which waits for the first process to end.
// Destroy, Release and Close wait for it. Errors are classed by containerd/errdefs as package
// runtime says. What this host cannot enforce is FailedPrecondition at New, with the fix.
package oci

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/containerd/errdefs"
	runc "github.com/containerd/go-runc"

	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// DefaultRuntime is the OCI runtime unless Options names another.
const DefaultRuntime = ocidriver.DefaultRuntime

// Options configure a Driver.
type Options struct {
	// StateDir is the absolute path of the state directory. The driver writes only to its
	// subdirectories "oci" and "cells".
	StateDir string
	// GuestPath is the guest binary on the host: static, absolute, executable.
	GuestPath string
	// Runtime is "runc" or "crun", or the absolute path of one. Empty means DefaultRuntime.
	Runtime string
	// GVisor is the runsc for class gvisor, by name or absolute path. Empty means DefaultGVisor. If
	// it does not work, the class is not offered.
	GVisor string
	// IDs is the directory of the claimed ids, which all orchestrators of a host share. Empty
	// means userns.DefaultDir.
	IDs string
	// Log receives what no caller gets as an error. Nil discards it.
	Log *slog.Logger
}

// Driver creates sandboxes with an OCI runtime. It is safe for concurrent use.
type Driver struct {
	ocidriver.Base
	dir      string // S/oci
	skeleton string
	bootID   string
	info     string
	noSwap   bool // the kernel does not count swap, and there is none
	runtime  *runc.Runc
	ids      userns.Ranges
	// userTrial tries a sandbox in a user namespace.
	userTrial trial
	// findRunsc finds runsc at the first use of the class.
	findRunsc func() (*gvisor.Program, error)
}

var (
	_ runtime.Driver         = (*Driver)(nil)
	_ runtime.UserNamespacer = (*Driver)(nil)
)

// New verifies that this host can provide every cap and isolation, and returns the driver. What is
// missing is an error of class FailedPrecondition that names the fix; an unsupported runtime is
// NotImplemented. It starts nothing.
func New(ctx context.Context, o Options) (*Driver, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := host.CheckStart(o.StateDir, o.GuestPath); err != nil {
		return nil, err
	}
	cgroups, noSwap, err := host.CheckCgroups()
	if err != nil {
		return nil, err
	}
	command, release, err := host.CheckRuntime(ctx, o.Runtime, cgroups)
	if err != nil {
		return nil, err
	}
	boot, err := ocidriver.BootID()
	if err != nil {
		return nil, err
	}
	d := &Driver{
		Base:   ocidriver.Base{RunDirs: filepath.Join(o.StateDir, "cells"), Guest: o.GuestPath, Log: o.Log},
		dir:    filepath.Join(o.StateDir, "oci"),
		bootID: boot,
		info:   fmt.Sprintf("%s, cgroup %s", release, cgroups.Mode),
		noSwap: noSwap,
		ids:    userns.Ranges{Dir: cmp.Or(o.IDs, userns.DefaultDir)},
		// A runtime that outlived this process would go on making a sandbox that the next process
		// removes.
		runtime: &runc.Runc{Command: command, Root: filepath.Join(o.StateDir, "oci", "runc"), PdeathSignal: syscall.SIGKILL},
	}
	d.Find, d.TearDown, d.Remaining, d.NewUser = d.find, d.tearDown, d.leftOf, d.newUser
	for _, dir := range []string{d.dir, d.RunDirs, d.runtime.Root} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("state of the oci driver: %w", err)
		}
	}
	d.skeleton = filepath.Join(d.dir, ".skeleton")
	if err := ocidriver.WriteSkeleton(d.skeleton); err != nil {
		return nil, fmt.Errorf("mount points: %w", err)
	}
	if err := sweepProbes(ctx, d.dir, d.ids); err != nil {
		d.Log.Warn("failed to remove leftovers of a killed start; will retry at the next start", "error", err)
	}
	if err := probeOverlay(d.dir, d.skeleton); err != nil {
		return nil, err
	}
	d.userTrial.try = func() error { return d.tryUserNamespace(context.WithoutCancel(ctx), o) }
	d.findRunsc = sync.OnceValues(func() (*gvisor.Program, error) {
		return d.findGVisor(context.WithoutCancel(ctx), o.GVisor)
	})
	return d, nil
}

// Name returns "oci".
func (d *Driver) Name() string { return "oci" }

// NeedsUnpackedRoot implements runtime.Driver. A sandbox's root is an overlay of the image's root.
func (d *Driver) NeedsUnpackedRoot() bool { return true }

// Info describes in a few words what creates the sandboxes: the runtime, its version, and the
// host's cgroup mode.
func (d *Driver) Info() string { return d.info }

// Prepare checks that the image has an unpacked root. No engine has to load it.
func (d *Driver) Prepare(_ context.Context, image runtime.Image) error { return checkImage(image) }

func checkImage(image runtime.Image) error {
	if image.Root == "" {
		return fmt.Errorf("image %q is not unpacked: the oci driver needs its root folder: %w", image.Ref,
			errdefs.ErrInvalidArgument)
	}
	if !filepath.IsAbs(image.Root) {
		return fmt.Errorf("image %q: its root %q is not absolute: %w", image.Ref, image.Root, errdefs.ErrInvalidArgument)
	}
	info, err := os.Lstat(image.Root)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("image %q: its root %s is gone; import it again: %w", image.Ref, image.Root, errdefs.ErrNotFound)
	case err != nil:
		return fmt.Errorf("image %q: %w", image.Ref, err)
	case !info.IsDir():
		return fmt.Errorf("image %q: its root %s is not a directory: %w", image.Ref, image.Root, errdefs.ErrInvalidArgument)
	}
	return nil
}

// List returns what is on disk, in the order of ids. A directory with an unreadable record is
// listed for every owner, since no other driver looks there.
func (d *Driver) List(ctx context.Context, owner string) ([]runtime.Found, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	var found []runtime.Found
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		id := e.Name()
		if !runtime.ValidID(id) {
			continue
		}
		rec, err := d.read(id)
		switch {
		case errors.Is(err, os.ErrNotExist) && !ocidriver.Exists(d.bundle(id)):
		case err != nil:
			d.Log.Warn("sandbox with an unreadable record", "sandbox", id, "error", err)
			found = append(found, runtime.Found{ID: id})
		case rec.Owner == owner:
			found = append(found, runtime.Found{ID: id, Template: rec.Template, Build: rec.Build, Running: d.running(rec)})
		}
	}
	return found, nil
}

// Owners returns the owners of all sandboxes on disk, sorted. It finds sandboxes whose owner id was
// lost.
func (d *Driver) Owners(context.Context) ([]string, error) {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return nil, fmt.Errorf("list owners: %w", err)
	}
	var owners []string
	for _, e := range entries {
		if !runtime.ValidID(e.Name()) {
			continue
		}
		if rec, err := d.read(e.Name()); err == nil { // without a record it may be any owner's: see List
			owners = append(owners, rec.Owner)
		}
	}
	slices.Sort(owners)
	return slices.Compact(owners), nil
}

// find returns a sandbox whose first process runs.
func (d *Driver) find(_ context.Context, id string) (ocidriver.Recorded, error) {
	rec, err := d.read(id)
	if errors.Is(err, os.ErrNotExist) {
		return ocidriver.Recorded{}, errdefs.ErrNotFound
	}
	if err != nil {
		return ocidriver.Recorded{}, err
	}
	init, err := d.initOf(rec)
	if err != nil {
		return ocidriver.Recorded{}, err
	}
	if init == nil || init.Ended() {
		init.Close()
		return ocidriver.Recorded{}, fmt.Errorf("its first process has ended: %w", errdefs.ErrNotFound)
	}
	return ocidriver.Recorded{Class: rec.Class, Limits: rec.Limits, Init: init, Holder: d.bundle(id)}, nil
}
