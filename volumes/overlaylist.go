package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// Overlay is what one lease changed of a workspace, kept apart from it. Its ID
// is the lease's.
type Overlay struct {
	ID        string
	Workspace string
	CreatedAt time.Time
	// EndedAt is when its lease was over, zero while it lives.
	EndedAt time.Time
	Live    bool
	// ExpiresAt is when it is discarded by itself, zero for never.
	ExpiresAt time.Time
	// Changes is how many paths it changed, 0 while it lives.
	Changes int
}

// FindOverlay says which workspace an overlay is of.
func (m *Manager) FindOverlay(id string) (Overlay, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.byName {
		if o := e.overlays[id]; o != nil && !e.creating {
			return m.overlayInfo(e, o), nil
		}
	}
	return Overlay{}, overlayNotFound(id)
}

// Overlays lists those of a workspace, the oldest first.
func (m *Manager) Overlays(name string) ([]Overlay, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.findWorkspace(name)
	if err != nil {
		return nil, err
	}
	out := make([]Overlay, 0, len(e.overlays))
	for _, o := range e.overlays {
		out = append(out, m.overlayInfo(e, o))
	}
	slices.SortFunc(out, func(a, b Overlay) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}

func (m *Manager) overlayInfo(e *entry, o *overlay) Overlay {
	out := Overlay{ID: o.ID, Workspace: e.meta.Name, CreatedAt: o.CreatedAt, EndedAt: o.EndedAt, Live: o.Live, Changes: max(o.Changes-len(o.Committed), 0)}
	if !o.Live && m.opts.Overlays.Keep > 0 {
		out.ExpiresAt = o.EndedAt.Add(m.opts.Overlays.Keep)
	}
	return out
}

// Discard removes an overlay whose lease is over. FailedPrecondition: it is not.
func (m *Manager) Discard(ctx context.Context, id string) error {
	found, err := m.FindOverlay(id)
	if err != nil {
		return err
	}
	return m.withMounted(ctx, found.Workspace, func(ws *mountedWorkspace) error {
		o, err := ws.findOverlay(id)
		if err != nil {
			return err
		}
		if o.Live {
			return &LiveError{ID: id}
		}
		return ws.removeOverlay(ctx, id)
	})
}

// LiveError says that an overlay's lease is not over. It is of class
// FailedPrecondition.
type LiveError struct{ ID string }

// Error is a whole sentence.
func (e *LiveError) Error() string {
	return fmt.Sprintf("overlay %s is still written to by its lease: end that first", e.ID)
}

// Unwrap gives the class.
func (e *LiveError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// discardExpired discards overlays that were kept for long enough.
func (m *Manager) discardExpired(ctx context.Context, e *entry, now time.Time) error {
	if m.opts.Overlays.Keep == 0 {
		return nil
	}
	m.mu.Lock()
	var old []string
	for id, o := range e.overlays {
		if !o.Live && now.Sub(o.EndedAt) >= m.opts.Overlays.Keep {
			old = append(old, id)
		}
	}
	m.mu.Unlock()
	var errs []error
	for _, id := range old {
		if err := m.Discard(ctx, id); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
