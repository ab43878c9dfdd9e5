package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
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

// overlay is what is kept of one on disk.
type overlay struct {
	Version   int       `json:"version"`
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
	EndedAt   time.Time `json:"ended_at,omitzero"`
	// Live: its lease may be writing.
	Live bool `json:"live"`
	// Generation is what it lies over.
	Generation int `json:"generation"`
	Changes    int `json:"changes"`
	// Unusable says why it can only be discarded, "" if it can be more.
	Unusable string `json:"unusable,omitempty"`
	// Committed are paths that were committed already.
	Committed [][]byte `json:"committed,omitempty"`
	// Touched are paths that others wrote to in place since its end.
	Touched []touch `json:"touched,omitempty"`
}

// touch tells who wrote to a path.
type touch struct {
	Path []byte    `json:"path"`
	By   string    `json:"by"`
	At   time.Time `json:"at"`
}

const overlayVersion = 1

// The parts of an upper folder.
const (
	upperPart = "u"
	workPart  = "w"
)

var leasePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

func (m *Manager) overlayFile(w meta, id, ext string) string {
	return filepath.Join(m.folder(w), overlaysDir, id+ext)
}

func (m *Manager) merged(w meta, id string) string {
	return filepath.Join(m.folder(w), mergedDir, id)
}

const (
	recordExt = ".json" // the overlay
	basisExt  = ".base" // what was below its changes when its lease ended
)

func (m *Manager) readOverlays(w meta) (map[string]*overlay, error) {
	out := map[string]*overlay{}
	entries, err := os.ReadDir(filepath.Join(m.folder(w), overlaysDir))
	if errors.Is(err, os.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return nil, err
	}
	for _, f := range entries {
		id, ok := strings.CutSuffix(f.Name(), recordExt)
		if !ok || !leasePattern.MatchString(id) {
			continue
		}
		var o overlay
		if err := readJSON(m.overlayFile(w, id, recordExt), maxComparison, &o); err != nil {
			return nil, err
		}
		if o.Version != overlayVersion || o.ID != id {
			return nil, fmt.Errorf("overlay %s is of version %d, this build reads %d", id, o.Version, overlayVersion)
		}
		out[id] = &o
	}
	return out, nil
}

// save writes an overlay down and makes it known.
func (g *ground) keep(o overlay) error {
	o.Version = overlayVersion
	if err := writeJSON(g.m.overlayFile(g.e.meta, o.ID, recordExt), o); err != nil {
		return err
	}
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	g.e.overlays[o.ID] = &o
	return nil
}

// overlay is what is known of one.
func (g *ground) overlay(id string) (overlay, error) {
	g.m.mu.Lock()
	defer g.m.mu.Unlock()
	o := g.e.overlays[id]
	if o == nil {
		return overlay{}, noOverlay(id)
	}
	return *o, nil
}

func noOverlay(id string) error {
	return fmt.Errorf("there is no overlay %q: its lease was none, changed nothing, or what it changed was committed, discarded or kept long enough: %w", id, errdefs.ErrNotFound)
}

// mountOverlay gives a lease its overlay on the current generation, or the one
// it has.
func (g *ground) mountOverlay(ctx context.Context, id string) (generation int, err error) {
	if o, err := g.overlay(id); err == nil {
		if !o.Live {
			return 0, fmt.Errorf("overlay %s is of a lease that is over: %w", id, errdefs.ErrFailedPrecondition)
		}
		return o.Generation, nil // of an earlier process, and mounted as long as its sandbox lives
	}
	for _, dir := range []string{overlaysDir, mergedDir} {
		if err := os.MkdirAll(filepath.Join(g.m.folder(g.e.meta), dir), 0o700); err != nil {
			return 0, err
		}
	}
	o := overlay{ID: id, CreatedAt: time.Now().UTC(), Live: true, Generation: g.e.state.Current}
	if err := g.keep(o); err != nil {
		return 0, err
	}
	hit("volumes.overlay.noted")
	defer func() {
		if err != nil {
			err = errors.Join(err, g.drop(context.WithoutCancel(ctx), id))
		}
	}()
	if err := g.makeUpper(id); err != nil {
		return 0, err
	}
	if err := os.Mkdir(g.m.merged(g.e.meta, id), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return 0, err
	}
	hit("volumes.overlay.made")
	if err := g.mount(id); err != nil {
		return 0, err
	}
	hit("volumes.overlay.mounted")
	return o.Generation, nil
}

// makeUpper makes the folders that an overlay writes to. The root of what a
// lease sees is described as its upper folder is.
func (g *ground) makeUpper(id string) error {
	dir := g.upper(id)
	if err := os.MkdirAll(filepath.Join(dir, workPart), 0o700); err != nil {
		return err
	}
	upper := filepath.Join(dir, upperPart)
	if err := os.Mkdir(upper, 0o700); err != nil {
		return err
	}
	fi, err := os.Lstat(g.current())
	if err != nil {
		return err
	}
	if err := os.Chown(upper, runtime.CommandUID, runtime.CommandGID); err != nil {
		return err
	}
	return os.Chmod(upper, fi.Mode().Perm())
}

// mount mounts an overlay. Its folders are named by descriptors: their paths may
// hold what separates options, and commands see the options. Nothing in a layer
// leads elsewhere: what a command could have written there is no attribute that
// the kernel listens to (trusted.overlay.*), and redirects are not followed.
func (g *ground) mount(id string) (err error) {
	var layers [3]*os.File
	defer func() {
		for _, f := range layers {
			f.Close() // of none it does nothing
		}
	}()
	for i, dir := range []string{g.current(), filepath.Join(g.upper(id), upperPart), filepath.Join(g.upper(id), workPart)} {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("layer of overlay %s: %w", id, err)
		}
		layers[i] = os.NewFile(uintptr(fd), dir)
	}
	options := fmt.Sprintf("lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/%d,index=off,metacopy=off,redirect_dir=nofollow,xino=off",
		fdOf(layers[0]), fdOf(layers[1]), fdOf(layers[2]))
	target := g.m.merged(g.e.meta, id)
	if err := unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount overlay %s: %w", id, err)
	}
	if err := unix.Mount("", target, "", unix.MS_PRIVATE, ""); err != nil {
		return errors.Join(fmt.Errorf("mount overlay %s: %w", id, err), unix.Unmount(target, unix.UMOUNT_NOFOLLOW))
	}
	return nil
}

// unmountOverlay takes an overlay's mount away, if there is one, with its folder.
func (g *ground) unmountOverlay(ctx context.Context, id string) error {
	target := g.m.merged(g.e.meta, id)
	switch is, err := livemount.IsMount(target); {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case is:
		if err := livemount.Unbind(ctx, target); err != nil {
			return fmt.Errorf("overlay %s: %w", id, err)
		}
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// endOverlay is the end of an overlay's lease: what it changed is kept, with what
// was below each change. An overlay without changes goes.
func (g *ground) endOverlay(ctx context.Context, id string) error {
	o, err := g.overlay(id)
	if err != nil || !o.Live {
		return nil
	}
	if err := g.unmountOverlay(ctx, id); err != nil {
		return err
	}
	hit("volumes.overlay.unmounted")
	if err := g.m.remove(ctx, filepath.Join(g.upper(id), workPart)); err != nil {
		return err
	}
	found, err := g.scan(ctx, id, g.generation(o.Generation))
	switch {
	case err != nil && ctx.Err() != nil:
		return err
	case errdefs.IsResourceExhausted(err):
		o.Unusable = fmt.Sprintf("has more than %d changes, or their paths more than %d octets", maxDeltas, maxDeltaNames)
	case errdefs.IsFailedPrecondition(err):
		o.Unusable = fmt.Sprintf("has paths of more than %d octets", maxTreePath)
	case err != nil: // the lease is over all the same
		g.m.log.Error("changes of an overlay cannot be read", "workspace", g.e.meta.Name, "overlay", id, "error", err)
		o.Unusable = "has changes that cannot be read"
	case len(found) == 0:
		return g.drop(ctx, id)
	}
	if err := writeJSON(g.m.overlayFile(g.e.meta, id, basisExt), basisOf(found)); err != nil {
		return err
	}
	o.Live, o.EndedAt, o.Changes = false, time.Now().UTC(), countReal(found)
	if err := g.keep(o); err != nil {
		return err
	}
	hit("volumes.overlay.kept")
	return nil
}

// drop removes an overlay with all it has. It is gone whole or not at all: half
// of it is not what its lease changed, and could be committed. What is on the file
// system goes before what tells of it.
func (g *ground) drop(ctx context.Context, id string) error {
	if err := g.unmountOverlay(ctx, id); err != nil {
		return err
	}
	gone, err := g.vanish(ctx, id)
	if err != nil {
		return err
	}
	hit("volumes.overlay.removed")
	for _, ext := range []string{basisExt, recordExt} {
		if err := os.Remove(g.m.overlayFile(g.e.meta, id, ext)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	g.m.mu.Lock()
	delete(g.e.overlays, id)
	g.m.mu.Unlock()
	if err := g.m.remove(ctx, gone); err != nil {
		g.m.log.Warn("files of an overlay are not removed yet", "workspace", g.e.meta.Name, "overlay", id, "error", err)
		g.m.goneLater(g.e, gone)
	}
	return nil
}

// sweepUppers removes what is of no overlay that is known, and overlays that have
// nothing any more: their removal was interrupted.
func (g *ground) sweepUppers(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Join(g.root, uppersDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, f := range entries {
		if _, err := g.overlay(f.Name()); err != nil {
			errs = append(errs, g.m.remove(ctx, g.upper(f.Name())))
		}
	}
	g.m.mu.Lock()
	var empty []string
	for id, o := range g.e.overlays {
		if !o.Live && !exists(g.upper(id)) {
			empty = append(empty, id)
		}
	}
	g.m.mu.Unlock()
	for _, id := range empty {
		errs = append(errs, g.drop(ctx, id))
	}
	return errors.Join(errs...)
}

// deserted says whether a lease of an earlier process has an overlay here, and
// has not taken it up. To be called with the lock held.
func (m *Manager) deserted(e *entry) bool {
	for id, o := range e.overlays {
		if o.Live && e.holds[id] == nil {
			return true
		}
	}
	return false
}

// liveOverlay is one whose lease may write, "" if there is none. To be called
// with the lock held.
func (e *entry) liveOverlay() string {
	for _, id := range slices.Sorted(maps.Keys(e.overlays)) {
		if e.overlays[id].Live {
			return id
		}
	}
	return ""
}

// settle ends what leases that are over left; see Sweep.
func (g *ground) settle(ctx context.Context) error {
	g.m.mu.Lock()
	var over []string
	for id, o := range g.e.overlays {
		if o.Live && g.e.holds[id] == nil {
			over = append(over, id)
		}
	}
	g.m.mu.Unlock()
	var errs []error
	for _, id := range over {
		errs = append(errs, g.endOverlay(ctx, id))
	}
	return errors.Join(append(errs, g.endWriting(ctx), g.unpin(""), g.tidy(ctx))...)
}

// Ended ends the overlays of leases that are over and were not given back: their
// process was killed.
func (m *Manager) Ended(ctx context.Context, leases ...string) error {
	m.mu.Lock()
	where := map[string][]string{}
	for name, e := range m.byName {
		for _, id := range leases {
			if o := e.overlays[id]; o != nil && o.Live && e.holds[id] == nil {
				where[name] = append(where[name], id)
			}
		}
	}
	m.mu.Unlock()
	var errs []error
	for name, ids := range where {
		errs = append(errs, m.on(ctx, name, func(g *ground) error {
			var errs []error
			for _, id := range ids {
				errs = append(errs, g.endOverlay(ctx, id))
			}
			return errors.Join(append(errs, g.tidy(ctx))...)
		}))
	}
	return errors.Join(errs...)
}

// FindOverlay says which workspace an overlay is of.
func (m *Manager) FindOverlay(id string) (Overlay, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.byName {
		if o := e.overlays[id]; o != nil && !e.busy {
			return m.present(e, o), nil
		}
	}
	return Overlay{}, noOverlay(id)
}

// Overlays lists those of a workspace, the oldest first.
func (m *Manager) Overlays(name string) ([]Overlay, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.find(name)
	if err != nil {
		return nil, err
	}
	out := make([]Overlay, 0, len(e.overlays))
	for _, o := range e.overlays {
		out = append(out, m.present(e, o))
	}
	slices.SortFunc(out, func(a, b Overlay) int {
		return cmpOr(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return out, nil
}

func cmpOr(a, b int) int {
	if a != 0 {
		return a
	}
	return b
}

func (m *Manager) present(e *entry, o *overlay) Overlay {
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
	return m.on(ctx, found.Workspace, func(g *ground) error {
		o, err := g.overlay(id)
		if err != nil {
			return err
		}
		if o.Live {
			return &LiveError{ID: id}
		}
		return g.drop(ctx, id)
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

// expire discards overlays that were kept for long enough.
func (m *Manager) expire(ctx context.Context, e *entry, now time.Time) error {
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
