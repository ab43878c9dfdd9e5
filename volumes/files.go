package volumes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Files gives the host access to a workspace's files. It is as safe beside a running sandbox, but
// then files can change between calls. Created files belong to the commands' user. A workspace with
// open Files cannot be deleted.
type Files struct {
	*safefile.Root
	done func()
}

// Files opens a workspace's current files for reading, without the changes of overlays.
func (m *Manager) Files(ctx context.Context, name string) (*Files, error) {
	return m.openFiles(ctx, name, false)
}

// Edit opens a workspace's files for reading and writing. Mounted overlays do not see the changes.
func (m *Manager) Edit(ctx context.Context, name string) (*Files, error) {
	return m.openFiles(ctx, name, true)
}

func (m *Manager) openFiles(ctx context.Context, name string, write bool) (f *Files, err error) {
	err = m.withMounted(ctx, name, func(ws *mountedWorkspace) error {
		if ws.e.claim != nil {
			return ws.e.claimError("and the host cannot reach its files: use a sandbox that has it")
		}
		if write {
			if err := ws.beginEdit(ctx); err != nil {
				return err
			}
		}
		f, err = ws.openCurrent(write)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open workspace %s: %w", name, err)
	}
	return f, nil
}

// openCurrent opens the current generation and registers its user.
func (ws *mountedWorkspace) openCurrent(write bool) (*Files, error) {
	m, e, n := ws.m, ws.e, ws.e.state.Current
	m.mu.Lock()
	e.readers[n]++
	if write {
		e.writers++
	}
	m.mu.Unlock()
	done := sync.OnceFunc(func() {
		m.mu.Lock()
		if e.readers[n]--; e.readers[n] == 0 {
			delete(e.readers, n)
		}
		if write {
			e.writers--
		}
		e.lastUsed = time.Now()
		after := n != e.state.Current || write && e.writers == 0 && e.state.Writer != nil
		m.mu.Unlock()
		if after {
			m.scheduleCleanup(e, func(ctx context.Context, ws *mountedWorkspace) error {
				return errors.Join(ws.endWriting(ctx), ws.removeOldGenerations(ctx))
			})
		}
	})
	root, err := safefile.Open(ws.currentPath(), safefile.Options{
		Prefix: MountedAt,
		Owner:  &safefile.Owner{UID: runtime.CommandUID, GID: runtime.CommandGID},
	})
	if err != nil {
		done()
		return nil, err
	}
	return &Files{Root: root, done: done}, nil
}

// Close releases the workspace. It may be called more than once.
func (f *Files) Close() error {
	err := f.Root.Close()
	f.done()
	return err
}
