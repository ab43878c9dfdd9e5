package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// skeletonVersion changes whenever writeSkeleton does.
const skeletonVersion = "2"

// writeSkeleton makes the mount points of every sandbox, as real directories whatever the image has
// at their paths, and the three files that name the machine. The image is untrusted: nothing in it
// is followed.
func writeSkeleton(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, name := range []string{".", "proc", "sys", "dev", "tmp", "run", "run/orchestrator", "workspace", "home",
		"home/user", "etc"} {
		if err := makeFolder(root, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	for name, text := range map[string]string{
		"etc/hostname":    "sandbox\n",
		"etc/hosts":       "127.0.0.1 localhost sandbox\n::1 localhost\n",
		"etc/resolv.conf": "",
	} {
		if err := makeFile(root, name, text); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// makeFolder makes name a real directory of root. If it was a directory, its content stays.
func makeFolder(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err == nil && !info.IsDir() {
		if err := root.Remove(name); err != nil {
			return err
		}
		err = fs.ErrNotExist
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = root.Mkdir(name, 0o755)
	}
	if err != nil {
		return err
	}
	mode := os.FileMode(0o755) // regardless of our umask
	if name == "tmp" {
		mode = 0o777 | os.ModeSticky // runtimes give a tmpfs the mode of what it covers
	}
	if err := root.Lchown(name, 0, 0); err != nil {
		return err
	}
	return root.Chmod(name, mode)
}

// makeFile replaces whatever is at name with a new file.
func makeFile(root *os.Root, name, text string) error {
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Chmod(0o644), f.Close())
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
