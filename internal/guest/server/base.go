package server

import (
	"maps"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// setBase stores what all commands share. It rejects an unknown user or uid 0 once here, instead of
// for every command.
func (s *Server) setBase(b wire.Base) (struct{}, error) {
	if f := checkEnv(b.Env); f != nil {
		return struct{}{}, f
	}
	u, f := s.lookUpUser(b.User)
	if f != nil {
		return struct{}{}, f
	}
	s.claiming.Lock()
	defer s.claiming.Unlock()
	s.mu.Lock()
	late := s.lease != "" || s.startCount > 0
	s.mu.Unlock()
	if late {
		return struct{}{}, wire.Failf(wire.FailedPrecondition, "", "the sandbox is in use already")
	}
	if files, ok := s.Files.(interface{ Become(uid, gid int) error }); ok && b.User != "" {
		if err := files.Become(int(u.uid), int(u.gid)); err != nil {
			return struct{}{}, wire.Failf(wire.FailedPrecondition, "user", "files cannot be touched as %q: %v", b.User, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base = wire.Base{Env: maps.Clone(b.Env), User: b.User}
	return struct{}{}, nil
}

// countBeforeClaim counts the running commands that were started before the claim. s.mu must be
// held.
func (s *Server) countBeforeClaim() (n int) {
	if s.lease == "" {
		return 0
	}
	for _, r := range s.running {
		if r.beforeClaim {
			n++
		}
	}
	return n
}
