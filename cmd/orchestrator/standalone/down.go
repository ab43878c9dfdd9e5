package standalone

import (
	"context"
	"errors"
	"log/slog"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// TakeDown destroys everything that a driver has of a state directory, and
// what it keeps in an engine beside sandboxes.
func TakeDown(ctx context.Context, d runtime.Driver, st *store.Store, log *slog.Logger) error {
	err := engine.Down(ctx, d, st, log)
	if p, ok := d.(interface{ Purge(context.Context) error }); ok && err == nil {
		err = p.Purge(ctx)
	}
	return err
}

// DownRecorded takes down what the database and the driver know of.
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

// DownRemains takes down what belongs to a state directory whose database cannot
// be used.
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

// recordedDriver is the driver of what is recorded; with --runtime that one even
// if others are recorded too. Where nothing is recorded, it is the one that
// has left a folder, since it may know of more than the records do.
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
