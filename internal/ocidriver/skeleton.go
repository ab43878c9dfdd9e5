package ocidriver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// SkeletonVersion changes whenever WriteSkeleton does.
const SkeletonVersion = "2"

// WriteSkeleton makes the mount points of every sandbox below dir, as real directories whatever an
// image has at their paths, and the three files that name the machine. The image is untrusted:
// nothing in it is followed. A file that is as it should be stays, since sandboxes may use it.
func WriteSkeleton(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { // every sandbox reads it
		return err
	}
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

// makeFile replaces whatever is at name with a new file, unless it is such a file.
func makeFile(root *os.Root, name, text string) error {
	if info, err := root.Lstat(name); err == nil && info.Mode() == 0o644 && info.Size() == int64(len(text)) {
		own, ok := info.Sys().(*syscall.Stat_t)
		have, err := root.ReadFile(name)
		if err == nil && string(have) == text && ok && own.Uid == 0 && own.Gid == 0 && own.Nlink == 1 {
			return nil
		}
	}
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

// MakeProbeRoot makes the root of a trial of gVisor. It contains only the guest.
func MakeProbeRoot(root, guest string) error {
	text, err := os.ReadFile(guest)
	if err != nil {
		return err
	}
	return errors.Join(
		os.Mkdir(root, 0o755), // in a directory of root's
		os.WriteFile(filepath.Join(root, "guest"), text, 0o755), // a program
	)
}
