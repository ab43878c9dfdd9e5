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

// Overlay is a lease's private changes to a workspace. Its ID is the lease's.
type Overlay struct {
	ID        string
	Workspace string
	CreatedAt time.Time
	// EndedAt is when the lease ended; zero while it is live.
	EndedAt time.Time
	Live    bool
	// ExpiresAt is when the overlay will be discarded; zero for never.
	ExpiresAt time.Time
	// Changes is the number of changed paths; 0 while the lease is live.
	Changes int
}

// FindOverlay returns an overlay by its id, or NotFound.
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

// Overlays returns a workspace's overlays, oldest first.
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
	out := Overlay{
		ID: o.ID, Workspace: e.meta.Name, CreatedAt: o.CreatedAt, EndedAt: o.EndedAt, Live: o.Live,
		Changes: max(o.Changes-len(o.Committed), 0),
	}
	if !o.Live && m.opts.Overlays.Keep > 0 {
		out.ExpiresAt = o.EndedAt.Add(m.opts.Overlays.Keep)
	}
	return out
}

// Discard removes an overlay. *LiveError if its lease has not ended.
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

// LiveError reports that an overlay's lease has not ended. Its class is FailedPrecondition.
type LiveError struct{ ID string }

// Error implements error.
func (e *LiveError) Error() string {
	return fmt.Sprintf("overlay %s is live: end its lease first", e.ID)
}

// Unwrap returns the errdefs class.
func (e *LiveError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// discardExpired discards overlays that were kept for Overlays.Keep.
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
