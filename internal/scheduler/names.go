package scheduler

import (
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// sandboxName is a caller's name for a sandbox. It is taken from before the lease is recorded until
// the sandbox is gone.
type sandboxName struct{ caller, name string }

// reserveName takes a name for a sandbox of the caller. The error is of class AlreadyExists if
// another one has it.
func (s *Scheduler) reserveName(caller, name string) error {
	if name == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := sandboxName{caller, name}
	if s.names[key] {
		return usererror.Errorf(
			errdefs.ErrAlreadyExists,
			"name %q is taken by another of your sandboxes: remove that one, or choose another name",
			name,
		)
	}
	s.names[key] = true
	return nil
}

// keepName takes the name of a sandbox that exists after a restart.
func (s *Scheduler) keepName(caller, name string) {
	if name == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[sandboxName{caller, name}] = true
}

// releaseName returns the name of reserveName or keepName.
func (s *Scheduler) releaseName(caller, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, sandboxName{caller, name})
}

// Named returns the id of the caller's live lease with this name, or "".
func (s *Scheduler) Named(caller, name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.names[sandboxName{caller, name}] {
		return ""
	}
	for _, l := range s.leases {
		if l.Caller == caller && l.Name == name {
			return l.ID
		}
	}
	return ""
}

// LiveIDs returns the ids of the caller's live leases that begin with prefix, in any order.
func (s *Scheduler) LiveIDs(caller, prefix string) (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, l := range s.leases {
		if l.Caller == caller && strings.HasPrefix(id, prefix) {
			ids = append(ids, id)
		}
	}
	return ids
}
