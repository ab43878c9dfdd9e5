package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/debian"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

// newBuild begins the names of folders that roots are made in.
const newBuild = ".build-"

// buildDir makes a folder for a build, which holds its lock until done.
func buildDir(stateDir string) (dir string, done func(), err error) {
	if dir, err = os.MkdirTemp(stateDir, newBuild+"*"); err != nil {
		return "", nil, fmt.Errorf("build: %w", err)
	}
	lock, err := flock(filepath.Join(dir, "lock"), unix.LOCK_EX)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	return dir, func() {
		_ = os.RemoveAll(dir) // else the next build or server does
		_ = lock.Close()      // was only held
	}, nil
}

// sweepBuilds removes the folders of builds that were killed: each is a whole
// root filesystem.
func sweepBuilds(stateDir string) error {
	entries, err := os.ReadDir(stateDir)
	if err != nil {
		return fmt.Errorf("look for earlier builds: %w", err)
	}
	var errs []error
	for _, e := range entries {
		dir := filepath.Join(stateDir, e.Name())
		if !strings.HasPrefix(e.Name(), newBuild) || !e.IsDir() {
			continue
		}
		info, err := os.Lstat(filepath.Join(dir, "lock"))
		if err != nil {
			info, err = os.Lstat(dir)
		}
		const young = time.Minute // its lock may be about to be taken
		if err != nil || time.Since(info.ModTime()) < young {
			continue
		}
		lock, err := flock(filepath.Join(dir, "lock"), unix.LOCK_EX)
		if errdefs.IsUnavailable(err) || errors.Is(err, os.ErrNotExist) {
			continue // it lives, or has just gone
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		errs = append(errs, os.RemoveAll(dir), lock.Close())
	}
	return errors.Join(errs...)
}

// runPackages makes a root from a list of packages, on this host, and imports
// it, into the server where there is one.
func (a *app) runPackages(ctx context.Context, o buildOptions) error {
	list, base := o.list, "."
	if o.from != "" {
		raw, err := os.ReadFile(o.from)
		if err != nil {
			return refuse(errdefs.ErrNotFound, "%w", err)
		}
		var read debian.List
		if raw, err = yaml.YAMLToJSONStrict(raw); err == nil {
			err = strictjson.Decode(raw, &read)
		}
		if err != nil {
			return refuse(errdefs.ErrInvalidArgument, "%s: %w", o.from, err)
		}
		read.Packages = append(read.Packages, list.Packages...)
		list, base = read, filepath.Dir(o.from)
	}
	c, err := a.valid()
	if err != nil {
		return err
	}
	cl, err := a.server(ctx, c)
	if err != nil {
		return err
	}
	if err := makeStateDir(c.StateDir); err != nil {
		return err
	}
	if err := sweepBuilds(c.StateDir); err != nil {
		return err
	}
	dir, done, err := buildDir(c.StateDir)
	if err != nil {
		return err
	}
	defer done()
	log := a.stderr
	if o.quiet {
		log = io.Discard
	}
	var built []v1.Image
	err = debian.Make(ctx, list, base, dir, log, func(tar io.Reader) (err error) {
		if cl != nil {
			built, err = cl.ImportImage(ctx, tar, -1, o.Ref)
			return err
		}
		built, err = withImages(ctx, a, c, func(s *images.Store) ([]v1.Image, error) {
			img, err := s.Import(ctx, tar, o.Ref)
			return present(img), err
		})
		return err
	})
	if err != nil {
		return err
	}
	if o.Keep {
		return a.runImagePin(ctx, o.Ref, true)
	}
	return a.printBuilt(built, o.quiet)
}
