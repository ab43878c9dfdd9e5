package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// mountOverlay mounts an overlay on the current generation for a lease, or finds the existing
// one. If userNS is not nil, it shows the files' owners to the users of that namespace. It
// returns the overlay's generation.
func (ws *mountedWorkspace) mountOverlay(ctx context.Context, id string, userNS *os.File) (generation int, err error) {
	if o, err := ws.findOverlay(id); err == nil {
		if !o.Live {
			return 0, fmt.Errorf("the lease of overlay %s has ended: %w", id, errdefs.ErrFailedPrecondition)
		}
		return o.Generation, nil // An earlier process mounted it. It stays mounted while its sandbox lives.
	}
	for _, dir := range []string{overlaysDir, mergedDir} {
		if err := os.MkdirAll(filepath.Join(ws.m.workspacePath(ws.e.meta), dir), 0o700); err != nil {
			return 0, err
		}
	}
	o := overlay{ID: id, CreatedAt: time.Now().UTC(), Live: true, Generation: ws.e.state.Current}
	if err := ws.saveOverlay(o); err != nil {
		return 0, err
	}
	hitFailpoint("volumes.overlay.noted")
	defer func() {
		if err != nil {
			err = errors.Join(err, ws.removeOverlay(context.WithoutCancel(ctx), id))
		}
	}()
	if err := ws.makeUpper(id); err != nil {
		return 0, err
	}
	if err := os.Mkdir(ws.m.mergedPath(ws.e.meta, id), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return 0, err
	}
	hitFailpoint("volumes.overlay.made")
	if err := ws.mountUpper(id, userNS); err != nil {
		return 0, err
	}
	hitFailpoint("volumes.overlay.mounted")
	return o.Generation, nil
}

// makeUpper creates the directories that an overlay writes to. The upper directory has the mode
// that the lease sees at its root.
func (ws *mountedWorkspace) makeUpper(id string) error {
	dir := ws.upperPath(id)
	if err := os.MkdirAll(filepath.Join(dir, workDir), 0o700); err != nil {
		return err
	}
	upper := filepath.Join(dir, upperDir)
	if err := os.Mkdir(upper, 0o700); err != nil {
		return err
	}
	fi, err := os.Lstat(ws.currentPath())
	if err != nil {
		return err
	}
	if err := os.Chown(upper, runtime.CommandUID, runtime.CommandGID); err != nil {
		return err
	}
	return os.Chmod(upper, fi.Mode().Perm())
}

// mountUpper mounts an overlay. The layers are named by file descriptors: a path could contain the
// options' separators, and commands can see the options. A layer cannot refer elsewhere: commands
// cannot set trusted.overlay.* attributes, and the mount does not follow redirects.
func (ws *mountedWorkspace) mountUpper(id string, userNS *os.File) error {
	lower, upper, target := ws.currentPath(), ws.upperPath(id), ws.m.mergedPath(ws.e.meta, id)
	if userNS != nil {
		err := livemount.WithClones(target, []string{lower, upper}, livemount.Options{UserNS: userNS},
			func(layers []*os.File) error {
				return userns.As(userNS, func() error { return mountLayers(target, layers[0], layers[1]) })
			})
		if err != nil {
			return fmt.Errorf("mount overlay %s: %w", id, err)
		}
		return nil
	}
	below, err := openDirectory(unix.AT_FDCWD, lower)
	if err != nil {
		return fmt.Errorf("lower layer of overlay %s: %w", id, err)
	}
	defer below.Close()
	above, err := openDirectory(unix.AT_FDCWD, upper)
	if err != nil {
		return fmt.Errorf("upper layer of overlay %s: %w", id, err)
	}
	defer above.Close()
	if err := mountLayers(target, below, above); err != nil {
		return fmt.Errorf("mount overlay %s: %w", id, err)
	}
	return nil
}

func openDirectory(at int, path string) (*os.File, error) {
	fd, err := unix.Openat(at, path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// mountLayers mounts an overlay of the directory lower and of the directories for the upper
// layer in dir, which must be on one mount.
func mountLayers(target string, lower, dir *os.File) error {
	upper, err := openDirectory(int(dir.Fd()), upperDir)
	if err != nil {
		return fmt.Errorf("upper layer: %w", err)
	}
	defer func() { _ = upper.Close() }()
	work, err := openDirectory(int(dir.Fd()), workDir)
	if err != nil {
		return fmt.Errorf("work directory: %w", err)
	}
	defer func() { _ = work.Close() }()
	options := fmt.Sprintf("lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/%d,"+
		"index=off,metacopy=off,redirect_dir=nofollow,xino=off", fdOf(lower), fdOf(upper), fdOf(work))
	if err := unix.Mount("overlay", target, "overlay", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return err
	}
	if err := unix.Mount("", target, "", unix.MS_PRIVATE, ""); err != nil {
		return errors.Join(err, unix.Unmount(target, unix.UMOUNT_NOFOLLOW))
	}
	return nil
}

// unmountOverlay unmounts an overlay, if it is mounted, and removes its mount point.
func (ws *mountedWorkspace) unmountOverlay(ctx context.Context, id string) error {
	target := ws.m.mergedPath(ws.e.meta, id)
	for { // some kernels need its layers mounted below it
		is, err := livemount.IsMount(target)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if !is {
			break
		}
		if err := livemount.Unbind(ctx, target); err != nil {
			return fmt.Errorf("overlay %s: %w", id, err)
		}
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
