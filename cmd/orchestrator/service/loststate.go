package service

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestbin"
	"github.com/sandbox-orchestrator/orchestrator/internal/remains"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// lostError refuses a state directory whose database is missing.
func lostError(x *store.Examined, dir string, found remains.Found) error {
	what := "state.db and owner.json are missing"
	e, ok := errors.AsType[*store.StateError](x.Problem())
	if ok {
		what = e.Detail
	} else {
		e = &store.StateError{Condition: store.Lost}
	}
	return cli.Refuse(
		errdefs.ErrFailedPrecondition,
		"state directory %s: %s, and it still has %s: %s",
		dir,
		what,
		found,
		e.WayOut(),
	)
}

// acceptLost decides whether a new database may be created.
func (s *service) acceptLost(ctx context.Context, x *store.Examined, dir string) error {
	d := s.drivers(dir)
	if len(d.UsedRuntimes(standalone.RuntimeAuto)) > 0 {
		var err error
		if d.Guest, _, err = guestbin.Write(engine.DirsOf(dir).Guest); err != nil {
			return err
		}
	}
	finder := d.Finder(standalone.RuntimeAuto)
	found, err := finder.Find(ctx, x.Owner())
	if err != nil {
		return err
	}
	used := x.Condition == store.Lost
	switch {
	case found.None(used) && !used:
		return nil
	case found.None(used):
		s.log.Warn("state.db was lost; starting with a new one", "problem", x.Problem())
	case !s.adoptNone:
		return lostError(x, dir, found)
	default:
		s.log.Warn("state.db was lost; destroying the sandboxes", "found", found.String())
		if err := finder.Destroy(ctx, found); err != nil {
			return err
		}
		s.note("started with a new state.db and destroyed the sandboxes; found: %s", found)
	}
	x.Accept(found.Owner)
	return nil
}
