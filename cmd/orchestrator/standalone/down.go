//go:build linux

package standalone

import (
	"context"
	"errors"
	"log/slog"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// TakeDown destroys all sandboxes of a state directory, and whatever else the driver keeps in an
// engine.
func TakeDown(ctx context.Context, d runtime.Driver, st *store.Store, log *slog.Logger) error {
	err := engine.Down(ctx, d, st, log)
	if p, ok := d.(interface{ Purge(context.Context) error }); ok && err == nil {
		err = p.Purge(ctx)
	}
	return err
}

// DownRecorded takes down what the database and the driver know.
func (d Drivers) DownRecorded(ctx context.Context, x *store.Examined) (err error) {
	st, err := x.Open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	live, err := st.Live(ctx)
	if err != nil {
		return err
	}
	driver, err := d.recordedDriver(ctx, live)
	if err != nil || driver == nil {
		return err
	}
	return errors.Join(TakeDown(ctx, driver, st, d.Log), driver.Close())
}

// DownRemains takes down what belongs to a state directory whose database cannot be used.
func (d Drivers) DownRemains(ctx context.Context, x *store.Examined) error {
	finder := d.Finder(d.Config.Runtime)
	found, err := finder.Find(ctx, x.Owner())
	if err != nil {
		return err
	}
	if len(found.Sandboxes) > 0 {
		d.Log.Warn("taking sandboxes down without state.db", "found", found.String(), "problem", x.Problem())
	}
	if err := finder.Destroy(ctx, found); err != nil {
		return err
	}
	return finder.Purge(ctx, found)
}

// recordedDriver opens the driver of the recorded sandboxes, or the configured one. If there are no
// records, it is a driver that left a directory: it may know of more. It returns nil if there is
// none.
func (d Drivers) recordedDriver(ctx context.Context, live []store.Sandbox) (runtime.Driver, error) {
	name := d.Config.Runtime
	if name == RuntimeAuto {
		var err error
		if name, err = runtimeOf(live); err != nil {
			return nil, err
		}
	}
	if name == "" {
		used := d.UsedRuntimes(RuntimeAuto)
		if len(used) == 0 {
			return nil, nil
		}
		name = used[0]
	}
	got, _, err := d.Open(ctx, name)
	return got, err
}
