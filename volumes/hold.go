package volumes

import (
	"fmt"
	"path/filepath"
	"sync"

	"github.com/containerd/errdefs"

	"orchestrator/internal/safefile"
	"orchestrator/runtime"
)

// MountedAt is where commands see a workspace; Files takes paths that begin
// with it too.
const MountedAt = "/workspace"

// Hold is a lease's right to a workspace. Release it once no sandbox of the
// lease can write to it any more: after Unbind succeeded, or the sandbox is
// destroyed.
type Hold struct {
	m        *Manager
	entry    *entry
	lease    string
	readOnly bool
}

// Acquire gives a workspace to a lease: to many that read, and to one that
// writes beside them, or more if it is shared. Acquiring again for the same
// lease gives the same Hold, which is how holds come back after a restart.
// Unavailable: another lease writes. FailedPrecondition: the lease has it in
// the other mode.
func (m *Manager) Acquire(name, lease string, readOnly bool) (*Hold, error) {
	if lease == "" {
		return nil, fmt.Errorf("acquire workspace %s: no lease is named: %w", name, errdefs.ErrInvalidArgument)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.find(name)
	if err != nil {
		return nil, err
	}
	if h := e.holds[lease]; h != nil {
		if h.readOnly != readOnly {
			return nil, fmt.Errorf("lease %s has workspace %s with read-only %v already: %w", lease, name, h.readOnly, errdefs.ErrFailedPrecondition)
		}
		return h, nil
	}
	if !readOnly && !e.meta.Shared {
		for _, h := range e.holds {
			if !h.readOnly {
				return nil, fmt.Errorf("lease %s writes to workspace %s: wait for its end, or take it read-only: %w", h.lease, name, errdefs.ErrUnavailable)
			}
		}
	}
	h := &Hold{m: m, entry: e, lease: lease, readOnly: readOnly}
	e.holds[lease] = h
	return h, nil
}

// Workspace is the workspace's name.
func (h *Hold) Workspace() string { return h.entry.meta.Name }

// Binding is what a driver is to bind.
func (h *Hold) Binding() runtime.Binding {
	return runtime.Binding{Source: h.m.data(h.entry.meta), ReadOnly: h.readOnly}
}

// Release gives the workspace back. It may be called more than once.
func (h *Hold) Release() {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()
	if h.entry.holds[h.lease] == h {
		delete(h.entry.holds, h.lease)
	}
}

func (m *Manager) data(w meta) string { return filepath.Join(m.dir, w.ID, dataDir) }

// Files reaches a workspace's files from the host. It is meant for a workspace
// at rest; beside a sandbox that writes it is as safe, but sees files come and
// go. What it creates belongs to the commands' user. It keeps the workspace
// from being deleted until it is closed.
type Files struct {
	*safefile.Root
	done func()
}

// Files opens the files of a workspace.
func (m *Manager) Files(name string) (*Files, error) {
	m.mu.Lock()
	e, err := m.find(name)
	if err == nil {
		e.files++
	}
	m.mu.Unlock()
	if err != nil {
		return nil, err
	}
	done := sync.OnceFunc(func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		e.files--
	})
	root, err := safefile.Open(m.data(e.meta), safefile.Options{
		Prefix: MountedAt,
		Owner:  &safefile.Owner{UID: runtime.CommandUID, GID: runtime.CommandGID},
	})
	if err != nil {
		done()
		return nil, fmt.Errorf("open workspace %s: %w", name, err)
	}
	return &Files{Root: root, done: done}, nil
}

// Close lets go of the workspace. It may be called more than once.
func (f *Files) Close() error {
	defer f.done()
	return f.Root.Close()
}
