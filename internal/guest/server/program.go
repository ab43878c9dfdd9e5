package server

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// openProgram makes the command one of the guest's own programs. It passes the open file, because
// the command's user cannot enter its directory.
func (s *Server) openProgram(cmd *wire.Command, p *prefork.Program) *wire.Failure {
	path, known := s.Programs[cmd.Program]
	if !known {
		return wire.Failf(wire.InvalidArgument, "program", "there is no program %.64q", cmd.Program)
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return wire.Failf(wire.FailedPrecondition, "program", "this guest was installed without its program %q", cmd.Program)
	}
	if err != nil {
		return wire.Failf(wire.Internal, "program", "open %q: %v", cmd.Program, err)
	}
	p.File = file
	return nil
}

// programFailure reports why such a program could not be executed.
func programFailure(cmd *wire.Command, errno syscall.Errno) *wire.Failure {
	return wire.Failf(wire.FailedPrecondition, "program", "execute %q: %v", cmd.Program, errno)
}
