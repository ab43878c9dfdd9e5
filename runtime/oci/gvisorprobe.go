package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// probeName remembers what was found, in the driver's directory.
const probeName = ".gvisor.json"

// findGVisor finds runsc and the platform on which it can run a sandbox here.
func (d *Driver) findGVisor(ctx context.Context, name string) (*gvisor.Program, error) {
	search := gvisor.Search{Driver: host, Memo: gvisor.Memo{File: filepath.Join(d.dir, probeName)}, Try: d.tryPlatform,
		Log: d.Log}
	return search.Find(ctx, name)
}

// tryPlatform runs "guest version" in a sandbox and removes it.
func (d *Driver) tryPlatform(ctx context.Context, g *gvisor.Program, bound time.Duration) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("no sandbox within %s", bound))
	defer cancel()
	probe, err := scratch.Make(d.dir, probePrefix)
	if err != nil {
		return err
	}
	dir, id := probe.Path, probeID(probe.Path)
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), ocidriver.UndoTime)
		defer cancel()
		err = errors.Join(err, ocidriver.RemoveCgroups(undo, id), probe.Remove())
	}()
	if err := d.probeBundle(dir); err != nil {
		return err
	}
	dirs, err := host.MakeGVisorCgroups(id, runtime.Limits{}.WithDefaults())
	if err != nil {
		return err
	}
	said, err := newWords()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, said.Close()) }()
	if err := runGVisor(ctx, g, filepath.Join(dir, runscName), dirs, said, "run", "--bundle="+dir, id); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errors.New(said.Annotate(err.Error()))
	}
	return nil
}

func (d *Driver) probeBundle(dir string) error {
	root := filepath.Join(dir, overlayName)
	config, err := json.Marshal(ocispec.GVisorProbe(root, ""))
	if err != nil {
		return err
	}
	return errors.Join(ocidriver.MakeProbeRoot(root, d.Guest),
		os.WriteFile(filepath.Join(dir, bundleConfig), config, 0o600))
}
