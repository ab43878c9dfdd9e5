package service

import (
	"context"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
)

// openDriver opens the configured driver, or for runtime auto the one of the recorded sandboxes.
func (s *service) openDriver(ctx context.Context, dir, guest string) error {
	live, err := s.store.Live(ctx)
	if err != nil {
		return err
	}
	d := s.drivers(dir)
	d.Guest = guest
	if s.driver, s.why, err = d.Choose(ctx, live); err != nil {
		return err
	}
	s.onClose(s.driver.Close)
	return nil
}

// drivers returns what opens drivers for the state directory, without a guest.
func (s *service) drivers(dir string) standalone.Drivers {
	d := standalone.Drivers{Config: s.config, StateDir: dir, Epoch: s.epoch, Log: s.log}
	if s.candidate != nil {
		d.Superseded = s.candidate.Superseded
	}
	return d
}
