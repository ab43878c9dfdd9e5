package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// makeSkeleton makes the upper of the two read-only layers of every root: the mount points, as real
// directories whatever an image has at their paths, and the three files that name the machine. All
// sandboxes share it, so that nothing is written per sandbox.
func makeSkeleton(dir string) (string, error) {
	top := filepath.Join(dir, ".skeleton")
	for _, name := range []string{"", "proc", "sys", "dev", "tmp", "run", "run/orchestrator", "workspace", "home",
		"home/user", "etc"} {
		path := filepath.Join(top, name)
		if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return "", fmt.Errorf("mount points: %w", err)
		}
		mode := os.FileMode(0o755) // regardless of our umask
		if name == "tmp" {
			mode = 0o777 | os.ModeSticky // runc gives a tmpfs the mode of what it covers
		}
		if err := os.Chmod(path, mode); err != nil {
			return "", fmt.Errorf("mount points: %w", err)
		}
	}
	for name, text := range map[string]string{
		"etc/hostname":    "sandbox\n",
		"etc/hosts":       "127.0.0.1 localhost sandbox\n::1 localhost\n",
		"etc/resolv.conf": "",
	} {
		path := filepath.Join(top, name)
		if have, err := os.ReadFile(path); err == nil && string(have) == text {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return "", fmt.Errorf("mount points: %w", err)
		}
		if err := os.Chmod(path, 0o644); err != nil {
			return "", fmt.Errorf("mount points: %w", err)
		}
	}
	return top, nil
}

// mountRoot mounts an image's root below the skeleton. Without an upper layer the file system
// itself is read-only. The layers are passed as descriptors: no character of a path has a special
// meaning, no link is followed, and mountinfo inside reveals nothing about the host.
func mountRoot(target, skeleton, image string) error {
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
