package service

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

// notify tells systemd the state of the service, if systemd started it.
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Warn("failed to notify systemd", "state", state, "error", err)
	}
}

// watchdog confirms to systemd that the service works, until ctx ends. It confirms nothing while
// check fails: systemd then restarts the service, and the next process adopts the sandboxes. It
// returns at once if the unit has no watchdog.
func watchdog(ctx context.Context, log *slog.Logger, check func(context.Context) error) {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("failed to read the watchdog's time", "error", err)
	}
	if limit <= 0 {
		return
	}
	t := time.NewTicker(limit / 3)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		bounded, cancel := context.WithTimeout(ctx, limit/3)
		err := check(bounded)
		cancel()
		if err != nil && ctx.Err() == nil {
			log.Error("the database does not answer; systemd restarts the service if that lasts", "error", err)
			continue
		}
		notify(log, daemon.SdNotifyWatchdog)
	}
}
