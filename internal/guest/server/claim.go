package server

import (
	"bytes"
	"context"
	"maps"
	"os"
	"strconv"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

func (s *Server) ping() wire.Pong {
	s.mu.Lock()
	p := wire.Pong{Claimed: s.lease != "", Commands: len(s.running), Shells: len(s.shells), Warm: s.countBeforeClaim()}
	s.mu.Unlock()
	p.Commands -= s.idleSessions()
	p.Version, p.Kill = wire.Version, s.spares.maker.kind()
	p.UptimeMS, p.RSSBytes = time.Since(s.started).Milliseconds(), residentBytes()
	return p
}

// claim binds the sandbox to a lease. Claims run one at a time: links are made before the lease
// takes effect, and not under s.mu.
func (s *Server) claim(ctx context.Context, c wire.Claim) (struct{}, error) {
	if c.Lease == "" || len(c.Lease) > maxID {
		return struct{}{}, wire.Failf(wire.InvalidArgument, "lease", "must have 1 to %d bytes", maxID)
	}
	if f := checkEnv(c.Env); f != nil {
		return struct{}{}, f
	}
	s.claiming.Lock()
	defer s.claiming.Unlock()
	s.mu.Lock()
	taken := s.lease != "" && s.lease != c.Lease
	s.mu.Unlock()
	if taken {
		return struct{}{}, wire.Failf(wire.FailedPrecondition, "lease", "the sandbox belongs to another lease")
	}
	if len(c.Alias) > 0 {
		if s.Files == nil {
			return struct{}{}, wire.Failf(wire.FailedPrecondition, "alias", "this guest does not serve files")
		}
		if err := s.Files.Alias(ctx, c.Alias); err != nil {
			return struct{}{}, err
		}
	}
	if ctx.Err() != nil {
		return struct{}{}, errShutDown()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lease, s.env = c.Lease, maps.Clone(c.Env)
	return struct{}{}, nil
}

// residentBytes returns this process's resident memory, or 0 if it is unknown.
func residentBytes() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := bytes.Fields(b)
	if len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0
	}
	return pages * int64(os.Getpagesize())
}

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
		return struct{}{}, wire.Failf(wire.FailedPrecondition, "", "the sandbox is already in use")
	}
	if files, ok := s.Files.(interface{ Become(uid, gid int) error }); ok && b.User != "" {
		if err := files.Become(int(u.uid), int(u.gid)); err != nil {
			return struct{}{}, wire.Failf(wire.FailedPrecondition, "user", "file operations cannot run as %q: %v", b.User, err)
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
