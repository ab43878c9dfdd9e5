//go:build linux

package standalone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/imageadmin"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/templates"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime/docker"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// WithImages calls do with a client of an engine in this process that has the images of the state
// directory. It waits for other commands that use them. If a server holds them, it returns a
// HeldByServerError.
func WithImages(
	ctx context.Context,
	a *cli.App,
	c config.Config,
	need ImageNeeds,
	do func(*client.Client) error,
) (err error) {
	p, library, err := openImages(ctx, a, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	opts := engine.Options{
		Images:      library,
		ImageBounds: ImageBounds(c.Images),
		Builder:     docker.Builder{Host: c.Docker.Host},
	}
	if need.Registry {
		if opts.Puller, err = NewPuller(c.Images, opts.Images, slog.New(slog.DiscardHandler)); err != nil {
			return err
		}
		p.onClose(opts.Puller.Close)
	}
	if need.Removal {
		use, err := unusedImages(ctx, c)
		if err != nil {
			return err
		}
		p.onClose(use.Close)
	}
	if need.Templates {
		list, err := validTemplates(a, c)
		if err != nil {
			return err
		}
		opts.LoadTemplates = func() ([]templates.Source, error) { return list, nil }
	}
	return p.serve(ctx, opts, do)
}

// ImportImage imports the archive or OCI layout at path into the image store of the state
// directory. It does not go through the HTTP interface, which would copy the file: the store reads
// the file in place, and recognises one that it has imported before.
func ImportImage(ctx context.Context, a *cli.App, c config.Config, path, ref string) (list []v1.Image, err error) {
	p, library, err := openImages(ctx, a, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	img, err := library.ImportPath(ctx, path, ref)
	if err != nil {
		return nil, err
	}
	return imageadmin.Present(img), nil
}

// openImages opens the image store of the state directory. Close the result.
func openImages(ctx context.Context, a *cli.App, c config.Config) (*parts, *images.Store, error) {
	if err := MakeStateDir(c.StateDir); err != nil {
		return nil, nil, err
	}
	lock, err := waitForLock(ctx, c.StateDir, ImagesLock, unix.LOCK_EX)
	if err != nil {
		return nil, nil, err
	}
	p := newParts(a, c, lock)
	library, err := images.Open(images.Options{Dir: engine.DirsOf(c.StateDir).Images, Log: p.log})
	if err != nil {
		return nil, nil, errors.Join(err, p.close())
	}
	return p, library, nil
}

// unusedImages makes sure that nothing runs from an image until the result is closed.
func unusedImages(ctx context.Context, c config.Config) (io.Closer, error) {
	use, err := LockFile(filepath.Join(c.StateDir, ImagesUse), unix.LOCK_EX)
	if errdefs.IsUnavailable(err) {
		return nil, fmt.Errorf("images are in use by a run without a server: wait for its end: %w", err)
	}
	if err != nil {
		return nil, err
	}
	live, err := StoppedServerSandboxes(ctx, c.StateDir)
	if err == nil && len(live) > 0 { // the images are their root filesystems
		err = cli.Refuse(
			errdefs.ErrFailedPrecondition,
			"%d sandboxes of a stopped server are still running: start it again, or end them with `orchestrator down`",
			len(live),
		)
	}
	if err != nil {
		return nil, errors.Join(err, use.Close())
	}
	return use, nil
}

// validTemplates returns the configured templates. A template that cannot be read is an error: it
// may need an image.
func validTemplates(a *cli.App, c config.Config) ([]templates.Source, error) {
	list, err := TemplateSources(a.ConfigFile(), c)
	if err != nil {
		return nil, err
	}
	for _, t := range list {
		if t.Err != nil {
			return nil, fmt.Errorf("template %s: %w", t.Name, t.Err)
		}
	}
	return list, nil
}

// WithWorkspaces calls do with a client of an engine in this process that has the workspaces of the
// state directory. It first ends overlays of runs that were killed. If a server holds the
// workspaces, it returns a HeldByServerError.
//
// Sandboxes of a stopped server may still have a workspace: see CheckUnheld.
func WithWorkspaces(ctx context.Context, a *cli.App, c config.Config, do func(*client.Client) error) (err error) {
	if err := MakeStateDir(c.StateDir); err != nil {
		return err
	}
	lock, err := LockFile(filepath.Join(c.StateDir, WorkspacesLock), unix.LOCK_EX)
	if err != nil {
		return ExplainHeld(c.StateDir, err)
	}
	p := newParts(a, c, lock)
	defer func() { err = errors.Join(err, p.close()) }()
	m, err := volumes.Open(engine.DirsOf(c.StateDir).Workspaces, VolumeOptions(c, p.log))
	if err != nil {
		return err
	}
	p.onClose(m.Close)
	if err := EndOrphanedOverlays(context.WithoutCancel(ctx), c.StateDir, m); err != nil {
		return err
	}
	return p.serve(ctx, engine.Options{Volumes: m}, do)
}

// parts is an engine without a driver, for a command about images or workspaces. It does not touch
// the other parts of the state directory: the engine has its own empty ones in S/runs/<id>, with
// its database.
type parts struct {
	app    *cli.App
	config config.Config
	log    *slog.Logger // for the part that the command uses
	undo   []func() error
}

// newParts returns parts that hold a lock until close.
func newParts(a *cli.App, c config.Config, lock io.Closer) *parts {
	level := c.Log
	level.Level = "warn"
	return &parts{app: a, config: c, log: Logger(a.Stderr, level), undo: []func() error{lock.Close}}
}

// onClose adds a function that close calls before those added earlier.
func (p *parts) onClose(undo func() error) { p.undo = append(p.undo, undo) }

func (p *parts) close() error {
	var errs []error
	for i := len(p.undo) - 1; i >= 0; i-- {
		errs = append(errs, p.undo[i]())
	}
	p.undo = nil
	return errors.Join(errs...)
}

// serve opens an engine with opts and calls do with a client of its HTTP interface. If the process
// is killed, the next run or server removes the private directory.
func (p *parts) serve(ctx context.Context, opts engine.Options, do func(*client.Client) error) (err error) {
	dir, held, err := makeRunDir(p.config.StateDir)
	if err != nil {
		return err
	}
	p.onClose(held.Close)
	p.onClose(func() error { return RemoveRun(context.WithoutCancel(ctx), dir) })
	opts.Version, opts.Driver = p.app.Version, noDriver{}
	private := engine.DirsOf(dir)
	if opts.Images == nil {
		if opts.Images, err = images.Open(images.Options{Dir: private.Images}); err != nil {
			return err
		}
	}
	if opts.Volumes == nil {
		if opts.Volumes, err = volumes.Open(private.Workspaces, volumes.Options{}); err != nil {
			return err
		}
		p.onClose(opts.Volumes.Close)
	}
	if opts.Store, err = store.Open(ctx, dir); err != nil {
		return err
	}
	p.onClose(opts.Store.Close)
	e, err := engine.Open(ctx, opts)
	if err != nil {
		return err
	}
	return withClient(ctx, e, do)
}
