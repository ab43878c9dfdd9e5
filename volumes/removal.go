package volumes

import (
	"context"
	"os"
	"path/filepath"
)

// What is removed gets another name first, at once, and is then taken apart, which
// takes as long as it has files. Whoever asked may have gone by then, or something
// has it open: what is left is tried again by each tick, for its room counts for
// nobody any more.

// goneLater leaves a folder below that of a workspace to be removed.
func (m *Manager) goneLater(e *entry, dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e.late = append(e.late, func(ctx context.Context, _ *ground) error { return m.remove(ctx, dir) })
}

// freeLater leaves a folder of m.dir to be removed.
func (m *Manager) freeLater(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unfree = append(m.unfree, name)
}

// freeLeft removes what freeLater left.
func (m *Manager) freeLeft(ctx context.Context) {
	m.mu.Lock()
	left := m.unfree
	m.unfree = nil
	m.mu.Unlock()
	for _, name := range left {
		if err := m.free(ctx, name); err != nil {
			m.log.Warn("what is left of a workspace is not removed yet", "path", filepath.Join(m.dir, name), "error", err)
			m.freeLater(name)
		}
	}
}

// vanish takes what an overlay changed away under its name, whole.
func (g *ground) vanish(ctx context.Context, id string) (gone string, err error) {
	gone = filepath.Join(g.root, uppersDir, gonePrefix+id)
	if err := g.m.remove(ctx, gone); err != nil { // of an earlier overlay of that lease
		return "", err
	}
	if err := os.Rename(g.upper(id), gone); err != nil && !os.IsNotExist(err) {
		return "", err
	}
	return gone, nil
}
