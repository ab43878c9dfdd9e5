package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	client "github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/google/uuid"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// labelImage is on the lease that keeps an image's root.
	labelImage = "orchestrator.image"
	// unpackTime is how long the remains of an interrupted Prepare may stay, until the daemon's
	// garbage collection removes them.
	unpackTime = time.Hour
)

// rootName is the name of an image's root in the snapshotter, and of its lease. It contains the
// version of the skeleton.
func rootName(image runtime.Image) string {
	return "orchestrator-" + strings.TrimPrefix(image.ID, "sha256:") + "-" + ocidriver.SkeletonVersion
}

// viewName is the name of the read-only view of that root, which all sandboxes of the image share.
func viewName(image runtime.Image) string { return rootName(image) + "-view" }

func checkImage(image runtime.Image) error {
	if _, err := digest.Parse(image.ID); err != nil {
		return fmt.Errorf("image %q: its id %q is not a digest: %w", image.Ref, image.ID, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Prepare makes the image's root in the daemon: its layers, and on top one of ours with the mount
// points. The daemon does not keep the archive of the layers.
func (d *Driver) Prepare(ctx context.Context, image runtime.Image) error {
	if err := checkImage(image); err != nil {
		return err
	}
	unlock, err := d.Lock(ctx, image.ID)
	if err != nil {
		return fmt.Errorf("image %q: %w", image.Ref, err)
	}
	defer unlock()
	if err := d.prepare(ctx, image); err != nil {
		return fmt.Errorf("image %q: %w", image.Ref, err)
	}
	return nil
}

func (d *Driver) prepare(ctx context.Context, image runtime.Image) error {
	snaps := d.api.SnapshotService(d.snapshotter)
	switch _, err := snaps.Stat(ctx, viewName(image)); {
	case errdefs.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("look for its root: %w", err)
	default:
		return d.keep(ctx, image, viewName(image))
	}
	if _, err := snaps.Stat(ctx, rootName(image)); errdefs.IsNotFound(err) {
		err = d.unpack(ctx, image)
		if err != nil {
			return err
		}
	} else if err != nil {
		return fmt.Errorf("look for its root: %w", err)
	}
	if err := d.keep(ctx, image, rootName(image)); err != nil {
		return err
	}
	failpoint.Hit("containerd.prepare.root")
	_, err := snaps.View(leases.WithLease(ctx, rootName(image)), viewName(image), rootName(image))
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("view of its root: %w", err)
	}
	return d.keep(ctx, image, viewName(image))
}

// keep adds a snapshot of the image to the lease that holds it. A snapshot that was made again is
// not in the lease.
func (d *Driver) keep(ctx context.Context, image runtime.Image, snapshot string) error {
	_, err := d.api.LeasesService().Create(ctx, leases.WithID(rootName(image)), leases.WithLabel(labelImage, image.ID))
	if err == nil || errdefs.IsAlreadyExists(err) {
		err = d.api.LeasesService().AddResource(ctx, leases.Lease{ID: rootName(image)},
			leases.Resource{ID: snapshot, Type: "snapshots/" + d.snapshotter})
	}
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("lease for its root: %w", err)
	}
	return nil
}

// unpack makes the root from the archive, under a lease that ends with the call.
func (d *Driver) unpack(ctx context.Context, image runtime.Image) (err error) {
	if image.Archive == "" {
		return fmt.Errorf("it is not in containerd, and its archive is missing: import it again: %w", errdefs.ErrNotFound)
	}
	lease, err := d.api.LeasesService().Create(ctx, leases.WithRandomID(), leases.WithExpiration(unpackTime))
	if err != nil {
		return fmt.Errorf("lease to unpack it: %w", err)
	}
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), ocidriver.UndoTime)
		defer cancel()
		// At once: the archive is as large as the root.
		if derr := d.api.LeasesService().Delete(undo, lease, leases.SynchronousDelete); derr != nil {
			d.Log.Warn("what was needed to unpack an image is kept for an hour", "image", image.Ref, "error", derr)
		}
	}()
	held := leases.WithLease(ctx, lease.ID)
	top, err := d.unpackLayers(held, image)
	if err != nil {
		return err
	}
	failpoint.Hit("containerd.prepare.layers")
	if err := d.commitRoot(held, image, top); err != nil {
		return fmt.Errorf("mount points: %w", err)
	}
	return d.keep(ctx, image, rootName(image)) // otherwise it would be collected with this lease
}

// unpackLayers loads the archive into the daemon and unpacks it. It returns the name of the last
// layer's snapshot, or "" without layers.
func (d *Driver) unpackLayers(ctx context.Context, image runtime.Image) (string, error) {
	f, err := os.Open(image.Archive)
	if err != nil {
		return "", fmt.Errorf("archive: %w", err)
	}
	defer func() { _ = f.Close() }()
	store := d.api.ContentStore()
	index, err := archive.ImportIndex(ctx, store, f)
	if err != nil {
		return "", fmt.Errorf("archive %s: %w", image.Archive, err)
	}
	list, err := images.Children(ctx, store, index)
	if err != nil {
		return "", fmt.Errorf("archive %s: %w", image.Archive, err)
	}
	for _, manifest := range list {
		if !images.IsManifestType(manifest.MediaType) {
			continue
		}
		meta := images.Image{Name: rootName(image), Target: manifest}
		config, err := meta.Config(ctx, store, platforms.All)
		if err != nil {
			return "", fmt.Errorf("archive %s: %w", image.Archive, err)
		}
		if config.Digest.String() != image.ID {
			continue
		}
		return d.unpackManifest(ctx, meta)
	}
	return "", fmt.Errorf("archive %s does not hold %s: import it again: %w", image.Archive, image.ID,
		errdefs.ErrInvalidArgument)
}

func (d *Driver) unpackManifest(ctx context.Context, meta images.Image) (string, error) {
	got := client.NewImageWithPlatform(d.api, meta, platforms.All)
	if err := got.Unpack(ctx, d.snapshotter); err != nil {
		return "", fmt.Errorf("unpack: %w", err)
	}
	layers, err := got.RootFS(ctx)
	if err != nil {
		return "", fmt.Errorf("unpack: %w", err)
	}
	if len(layers) == 0 {
		return "", nil
	}
	return identity.ChainID(layers).String(), nil
}

// commitRoot adds the layer with the mount points to the image's layers.
func (d *Driver) commitRoot(ctx context.Context, image runtime.Image, parent string) (err error) {
	snaps := d.api.SnapshotService(d.snapshotter)
	key := "orchestrator-new-" + uuid.NewString()
	mounts, err := snaps.Prepare(ctx, key, parent)
	if err != nil {
		return err
	}
	err = d.withMounted(ctx, key, mounts, ocidriver.WriteSkeleton)
	if err == nil {
		err = snaps.Commit(ctx, rootName(image), key)
	}
	if err == nil {
		return nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), ocidriver.UndoTime)
	defer cancel()
	if rerr := snaps.Remove(undo, key); rerr != nil && !errdefs.IsNotFound(rerr) {
		d.Log.Debug("half-made root is kept for an hour", "snapshot", key, "error", rerr)
	}
	if errdefs.IsAlreadyExists(err) {
		return nil // another process was faster
	}
	return err
}

// withMounted mounts a snapshot on a directory of ours while do works on it.
func (d *Driver) withMounted(ctx context.Context, name string, mounts []mount.Mount,
	do func(dir string) error) (err error) {
	dir := d.mountPoint(name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), ocidriver.UndoTime)
		defer cancel()
		err = errors.Join(err, unmount(undo, dir))
	}()
	if err := mount.All(mounts, dir); err != nil {
		return err
	}
	return do(dir)
}

// mountPoint is a directory for one of our mounts.
func (d *Driver) mountPoint(name string) string { return filepath.Join(d.dir, "mount-"+name) }

// unmount removes the mount at one of our directories, and the directory.
func unmount(ctx context.Context, dir string) error {
	if err := livemount.Sweep(ctx, dir, 2*time.Second); err != nil {
		return err
	}
	return os.Remove(dir)
}

// Forget removes an image's root, at once if no sandbox uses it, otherwise with the last one. It
// succeeds if there is none. The image can be prepared again.
func (d *Driver) Forget(ctx context.Context, image runtime.Image) error {
	if err := checkImage(image); err != nil {
		return err
	}
	unlock, err := d.Lock(ctx, image.ID)
	if err != nil {
		return fmt.Errorf("forget image %q: %w", image.Ref, err)
	}
	defer unlock()
	err = d.api.LeasesService().Delete(ctx, leases.Lease{ID: rootName(image)}, leases.SynchronousDelete)
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("forget image %q: %w", image.Ref, err)
	}
	return nil
}
