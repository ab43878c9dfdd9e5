// Package containerd is the driver for containerd 1.6 or later. It uses a containerd namespace of
// its own, and owns the directory "containerd" in the state directory, the cgroups
// /orchestrator/<id>, and everything in that namespace.
//
// containerd's records decide which sandboxes exist: a sandbox's container is recorded before
// anything else of it is made, and deleted after everything else. So List and Remove find whatever
// a crash of the orchestrator or of containerd left. A daemon that does not answer is an error of
// class Unavailable, never NotFound. The daemon unpacks an image once and a lease holds it; a
// sandbox's container keeps the root in use. The package never runs a command in a container:
// streams go through the run directory.
//
// It starts one goroutine per sandbox that it holds, which waits for the first process by pidfd,
// not by events. Destroy, Release and Close wait for it. Errors are classed by containerd/errdefs
// as package runtime says.
package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Defaults of Options.
const (
	DefaultAddress   = "/run/containerd/containerd.sock"
	DefaultNamespace = "orchestrator"
)

// host names this driver in the shared checks.
const host = ocidriver.Driver("containerd")

// Options configure a Driver.
type Options struct {
	// Address is the absolute path of the daemon's socket. Empty means DefaultAddress.
	Address string
	// Namespace is a containerd namespace that only this service uses. Empty means
	// DefaultNamespace.
	Namespace string
	// Snapshotter keeps the images' roots. Empty means the daemon's default.
	Snapshotter string
	// Runtime is the OCI runtime: "runc" or "crun", or the absolute path of one. Empty means runc.
	Runtime string
	// GVisor is the runsc for class gvisor, by name or absolute path. Empty means DefaultGVisor. If
	// it does not work, the class is not offered.
	GVisor string
	// StateDir is the absolute path of the state directory. The driver writes only to its
	// subdirectory "containerd".
	StateDir string
	// GuestPath is the guest binary on the host: static, absolute, executable.
	GuestPath string
	// IDs is the directory of the claimed ids, which all orchestrators of a host share. Empty
	// means userns.DefaultDir.
	IDs string
	// Log receives what no caller gets as an error. Nil discards it.
	Log *slog.Logger
}

// Driver creates sandboxes with containerd. It is safe for concurrent use.
type Driver struct {
	ocidriver.Base        // its lock is also by image
	dir            string // S/containerd
	address        string
	namespace      string
	snapshotter    string
	info           string
	noSwap         bool // the kernel does not count swap, and there is none
	ids            userns.Ranges
	container      handler
	gvisorOnce     gvisor.Once[handler]
	search         func() (handler, error) // for class gvisor
	api            *client.Client
}

var (
	_ runtime.Driver         = (*Driver)(nil)
	_ runtime.ImageForgetter = (*Driver)(nil)
	_ runtime.UserNamespacer = (*Driver)(nil)
)

// New verifies that this host can provide every cap and isolation, and returns the driver. What is
// missing is an error of class FailedPrecondition that names the fix; a daemon that does not answer
// is Unavailable.
func New(ctx context.Context, o Options) (_ *Driver, err error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	cgroups, noSwap, err := host.CheckCgroups()
	if err != nil {
		return nil, err
	}
	if err := checkPeer(ctx, o.Address); err != nil {
		return nil, err
	}
	dir := filepath.Join(o.StateDir, "containerd")
	d := &Driver{
		Base:      ocidriver.Base{RunDirs: filepath.Join(dir, "cells"), Guest: o.GuestPath, Log: o.Log},
		dir:       dir,
		address:   o.Address,
		namespace: o.Namespace,
		noSwap:    noSwap,
		ids:       userns.Ranges{Dir: cmp.Or(o.IDs, userns.DefaultDir)},
	}
	d.Find, d.TearDown, d.Remaining, d.NewUser = d.find, d.tearDown, d.leftOf, d.newUser
	for _, dir := range []string{d.dir, d.RunDirs, d.runtimeRoot(), filepath.Join(d.dir, runscName), d.userDir("")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("state of the containerd driver: %w", err)
		}
	}
	if d.api, err = connect(o); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.api.Close())
		}
	}()
	version, err := checkVersion(ctx, d.api)
	if err != nil {
		return nil, err
	}
	if d.snapshotter, err = findSnapshotter(ctx, d.api, o.Snapshotter); err != nil {
		return nil, err
	}
	if d.container, err = o.findRuntime(ctx, cgroups); err != nil {
		return nil, err
	}
	d.info = fmt.Sprintf("containerd %s, %s, snapshots by %s, cgroup %s", version, d.container.release, d.snapshotter,
		cgroups.Mode)
	if err := d.sweepProbe(ctx); err != nil {
		d.Log.Warn("failed to remove leftovers of a killed start; will retry at the next start", "error", err)
	}
	d.search = func() (handler, error) { return d.findGVisor(context.WithoutCancel(ctx), o.GVisor) }
	return d, nil
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Address == "" {
		o.Address = DefaultAddress
	}
	if o.Namespace == "" {
		o.Namespace = DefaultNamespace
	}
	return o
}

func (o Options) validate() error {
	if !filepath.IsAbs(o.Address) {
		return fmt.Errorf("containerd.address %q is not absolute: %w", o.Address, errdefs.ErrInvalidArgument)
	}
	return host.CheckStart(o.StateDir, o.GuestPath)
}

// Name returns "containerd".
func (d *Driver) Name() string { return "containerd" }

// NeedsUnpackedRoot implements runtime.Driver. Containerd's snapshotter unpacks images.
func (d *Driver) NeedsUnpackedRoot() bool { return false }

// Info describes in a few words what creates the sandboxes.
func (d *Driver) Info() string { return d.info }

// runtimeRoot is where OCI runtimes keep their containers' state; the shims add the namespace to
// the path.
func (d *Driver) runtimeRoot() string { return filepath.Join(d.dir, "runtime") }

// runtimeState is the directory with the runtime's state of one sandbox.
func (d *Driver) runtimeState(id string) string {
	return filepath.Join(d.runtimeRoot(), d.namespace, id)
}

// Close releases every held sandbox and the daemon. Sandboxes keep running.
func (d *Driver) Close() error {
	return errors.Join(d.Base.Close(), d.api.Close())
}
