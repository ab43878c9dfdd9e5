package service

import (
	"fmt"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// note prints a line for whoever starts the service. Among JSON logs, it is a log record.
func (s *service) note(format string, args ...any) {
	if s.config.Log.Format == "json" {
		s.log.Info(fmt.Sprintf(format, args...))
		return
	}
	s.app.Note(format, args...)
}

// noteListening says where the service listens.
func (s *service) noteListening(cgroup string) {
	address, why := listenAddress(s.listener, s.config), cli.OneLine(s.why)
	if s.config.Log.Format == "json" {
		s.log.Info("listening", "address", address, "runtime", s.driver.Name(), "why", why, "cgroup", cgroup)
		return
	}
	fmt.Fprintf(s.app.Stderr, "listening on %s, runtime %s (%s), cgroup %s\n", address, s.driver.Name(), why, cgroup)
}
