package docker

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// Modes of Options.
const (
	// ModeAuto detects which of the others applies.
	ModeAuto = "auto"
	// ModeLocal: the engine shares kernel, processes and mounts with this host.
	ModeLocal = "local"
	// ModeStdio uses only the engine's API.
	ModeStdio = "stdio"
)

// Labels of everything that the driver creates in an engine.
const (
	labelOwner    = ocispec.LabelOwner
	labelID       = ocispec.LabelID
	labelTemplate = ocispec.LabelTemplate
	labelBuild    = ocispec.LabelBuild
	labelMode     = "orchestrator.mode"
	labelClass    = "orchestrator.class"
	labelScratch  = "orchestrator.scratch"
	// labelHelper marks containers and images that live for one call. Its value names the state
	// directory, so that a later process can sweep them.
	labelHelper = "orchestrator.helper"
	// labelGuest marks volumes that hold a guest. Its value names the state directory too.
	labelGuest = "orchestrator.guest"
)

// askTime bounds one request that needs no work of the engine.
const askTime = 30 * time.Second

// Options select the engine and configure the driver.
type Options struct {
	// Host is the engine's address. Empty: DOCKER_HOST with its variables for TLS, or the engine's
	// default socket.
	Host string
	// StateDir is the orchestrator's state directory. Run directories are in StateDir/cells, the
	// driver's notes in StateDir/docker.
	StateDir string
	// GuestPath is the guest's binary on this host.
	GuestPath string
	// Mode is ModeAuto, ModeLocal or ModeStdio. Empty: ModeAuto.
	Mode string
	// GVisor is the engine's name of the runtime for class gvisor. Empty: DefaultGVisor. If it does
	// not work, the class is not offered.
	GVisor string
	// Log may be nil.
	Log *slog.Logger
}

// Driver is the runtime.Driver for one engine. It is safe for concurrent use.
type Driver struct {
	api     *client.Client
	host    string
	engine  engine
	mode    string
	dir     string // StateDir/docker
	cells   string // StateDir/cells
	guest   string
	helper  string // represents the state directory in labels
	seccomp string // the profile in the engine's form, made once
	log     *slog.Logger

	runsc         string // the engine's name of the runtime for class gvisor
	gvisorSeccomp string // the profile for it
	gvisorOnce    gvisor.Once[struct{}]
	search        func() error // for class gvisor

	mu     sync.Mutex
	images map[string]image    // Image.ID → what the engine knows; guarded by mu
	held   map[string]*Sandbox // those that this process holds; guarded by mu

	// filling is held while the guest volume is filled. filled is the volume's name once it was
	// seen complete; filling guards it.
	filling chan struct{}
	filled  string
}

// New connects to the engine and checks that it can do what is needed. Errors: InvalidArgument for
// invalid options, Unavailable for an engine that does not answer, FailedPrecondition for one that
// is too old, is not Docker, or cannot enforce a cap. The message names what was found and what is
// required.
func New(ctx context.Context, o Options) (*Driver, error) {
	if o.Mode == "" {
		o.Mode = ModeAuto
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if err := o.validate(); err != nil {
		return nil, err
	}
	profile, err := seccompProfile(ocispec.SeccompJSON)
	if err != nil {
		return nil, err
	}
	gvisorProfile, err := seccompProfile(ocispec.GVisorSeccompJSON)
	if err != nil {
		return nil, err
	}
	api, err := connect(o.Host)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(o.StateDir))
	d := &Driver{
		api: api, host: api.DaemonHost(), guest: o.GuestPath, seccomp: profile,
		dir: filepath.Join(o.StateDir, "docker"), cells: filepath.Join(o.StateDir, "cells"),
		helper: hex.EncodeToString(sum[:8]),
		log:    o.Log.With("driver", "docker"), runsc: cmp.Or(o.GVisor, DefaultGVisor), gvisorSeccomp: gvisorProfile,
		images: map[string]image{}, held: map[string]*Sandbox{}, filling: make(chan struct{}, 1),
	}
	d.search = func() error { return d.findGVisor(context.WithoutCancel(ctx)) }
	if err := d.open(ctx, o.Mode); err != nil {
		return nil, errors.Join(err, api.Close())
	}
	return d, nil
}

func (o Options) validate() error {
	bad := func(field, why string) error {
		return fmt.Errorf("docker: options.%s %s: %w", field, why, errdefs.ErrInvalidArgument)
	}
	switch {
	case !filepath.IsAbs(o.StateDir):
		return bad("state_dir", fmt.Sprintf("%q is not absolute", o.StateDir))
	case !filepath.IsAbs(o.GuestPath):
		return bad("guest_path", fmt.Sprintf("%q is not absolute", o.GuestPath))
	case o.Mode != ModeAuto && o.Mode != ModeLocal && o.Mode != ModeStdio:
		return bad("mode", fmt.Sprintf("%q is none of auto, local, stdio", o.Mode))
	}
	return nil
}

func connect(host string) (*client.Client, error) {
	opts := []client.Opt{client.FromEnv}
	if host != "" {
		// FromEnv still provides the certificates of a TCP address.
		opts = append(opts, client.WithHost(host))
	}
	api, err := client.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("docker: engine address: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	return api, nil
}

// open asks the engine what it is and determines the mode.
func (d *Driver) open(ctx context.Context, mode string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return fmt.Errorf("docker: make state directory: %w", err)
	}
	var err error
	if d.engine, err = d.ask(ctx); err != nil {
		return err
	}
	d.sweep(ctx)
	if d.mode, err = d.settle(ctx, mode); err != nil {
		return err
	}
	if err := checkSwap(d.engine, d.mode); err != nil || d.mode != ModeLocal {
		return err
	}
	if err := d.sweepTries(ctx); err != nil {
		d.log.Warn("tries of class gvisor left until the next start", "error", err)
	}
	return d.layLauncher()
}

// Name returns "docker".
func (d *Driver) Name() string { return "docker" }

// NeedsUnpackedRoot implements runtime.Driver. The engine unpacks images itself.
func (d *Driver) NeedsUnpackedRoot() bool { return false }

// Mode returns ModeLocal or ModeStdio.
func (d *Driver) Mode() string { return d.mode }

// Engine returns the engine's address and version, for people.
func (d *Driver) Engine() string { return fmt.Sprintf("%s at %s", d.engine.version, d.host) }

// Close disconnects from the engine. Sandboxes keep running.
func (d *Driver) Close() error { return d.api.Close() }

// List returns what the engine holds of owner, in any state, and the driver's own notes of
// sandboxes it began to create.
func (d *Driver) List(ctx context.Context, owner string) ([]runtime.Found, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	got, err := d.api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", labelOwner+"="+owner),
	})
	if err != nil {
		return nil, d.failed(ctx, "list containers", err)
	}
	var found []runtime.Found
	seen := map[string]bool{}
	for _, c := range got.Items {
		id := c.Labels[labelID]
		// An image can carry labels too; only our own container names count.
		if !runtime.ValidID(id) || seen[id] || !named(c.Names, id) {
			continue
		}
		if ghost, err := d.ghost(ctx, c); err != nil {
			return nil, err
		} else if ghost {
			continue
		}
		seen[id] = true
		found = append(found, runtime.Found{
			ID: id, Template: c.Labels[labelTemplate], Build: c.Labels[labelBuild],
			Running: c.State == "running" || c.State == "paused" || c.State == "restarting",
		})
	}
	notes, err := d.notes(owner)
	if err != nil {
		return nil, err
	}
	for _, id := range notes {
		if !seen[id] {
			found = append(found, runtime.Found{ID: id})
		}
	}
	return found, nil
}

func named(names []string, id string) bool {
	for _, n := range names {
		// A container that is being removed may be listed under its id alone.
		if n == "/"+containerName(id) {
			return true
		}
	}
	return len(names) == 0
}

// ghost reports whether the engine lists a container that it does not know: one that it has already
// removed (see killContainer). The engine lists it until it is restarted, and there is nothing to
// remove.
func (d *Driver) ghost(ctx context.Context, c container.Summary) (bool, error) {
	if c.State != container.StateRemoving && c.State != container.StateDead && len(c.Names) > 0 {
		return false, nil
	}
	_, err := d.api.ContainerInspect(ctx, c.ID, client.ContainerInspectOptions{})
	if err == nil {
		return false, nil
	}
	if err = d.failed(ctx, "look at a container that is being removed", err); errdefs.IsNotFound(err) {
		return true, nil
	}
	return false, err
}

func containerName(id string) string { return "orchestrator-" + id }
