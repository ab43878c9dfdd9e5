package oci

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
)

// mountRoot mounts an image's root below the skeleton, for the users of a user namespace if user
// is not nil. Without an upper layer the file system itself is read-only. The layers are passed
// as descriptors: no character of a path has a special meaning, no link is followed, and
// mountinfo inside reveals nothing about the host.
func mountRoot(target, skeleton, image string, user *userns.Namespace) error {
	if user != nil {
		return livemount.WithClones(target, []string{skeleton, image},
			livemount.Options{ReadOnly: true, UserNS: user.File()},
			func(layers []*os.File) error { return mountLayers(target, layers[0], layers[1]) })
	}
	upper, err := openLayer(skeleton)
	if err != nil {
		return err
	}
	defer func() { _ = upper.Close() }()
	lower, err := openLayer(image)
	if err != nil {
		return err
	}
	defer func() { _ = lower.Close() }()
	return mountLayers(target, upper, lower)
}

func mountLayers(target string, upper, lower *os.File) error {
	data := fmt.Sprintf("lowerdir=/proc/self/fd/%d:/proc/self/fd/%d", upper.Fd(), lower.Fd())
	if err := unix.Mount("overlay", target, "overlay", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		return fmt.Errorf("mount root at %s: %w", target, err)
	}
	return nil
}

func openLayer(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("root layer %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// unmountRoot removes everything that is mounted at target. It never unmounts lazily: a mount in
// use is an error.
func unmountRoot(target string) error {
	const patience = 2 * time.Second
	for end := time.Now().Add(patience); ; {
		switch err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); {
		case err == nil:
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
			return nil // nothing is mounted there
		case errors.Is(err, unix.EBUSY) && time.Now().Before(end):
			time.Sleep(5 * time.Millisecond)
		default:
			return fmt.Errorf("unmount %s: %w", target, err)
		}
	}
}
