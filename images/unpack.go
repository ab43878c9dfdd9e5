package images

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// mountPoints are created as directories in every root, because the root is read-only later. Other
// files at these paths are replaced.
var mountPoints = []string{"dev", "proc", "sys", "tmp", "run", "run/orchestrator", "home", "home/user", "workspace"}

// Root returns the host path of the unpacked root filesystem of an image. It unpacks the image
// first if needed; concurrent calls unpack once. Callers must not write to it.
func (s *Store) Root(ctx context.Context, image runtime.Image) (string, error) {
	if err := checkDigest(image.ID); err != nil {
		return "", fmt.Errorf("unpack image: %w", err)
	}
	if s.unpacked(image.ID) {
		return s.rootPath(image.ID), nil
	}
	unlock, err := s.unpacking.Lock(ctx, image.ID)
	if err != nil {
		return "", fmt.Errorf("wait for image %s to be unpacked: %w", image.ID, err)
	}
	defer unlock()
	if s.unpacked(image.ID) {
		return s.rootPath(image.ID), nil
	}
	s.mu.Lock()
	_, _, err = s.index.find(image.ID)
	s.mu.Unlock()
	if err != nil {
		return "", err
	}
	if err := s.unpack(ctx, image.ID); err != nil {
		return "", diskError(fmt.Errorf("unpack image %s: %w", image.ID, err))
	}
	s.log.Info("image unpacked", "image", image.ID, "root", s.rootPath(image.ID))
	return s.rootPath(image.ID), nil
}

func (s *Store) unpack(ctx context.Context, id string) error {
	stage, undo, err := s.stage()
	if err != nil {
		return err
	}
	defer undo()
	archive, from, err := readArchive(ctx, s.archivePath(id), id, s.limits, s.arch)
	if err != nil {
		return err
	}
	defer archive.Close()
	root := filepath.Join(stage, "root", "fs")
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	// Commands of any user need access to the root.
	if err := os.Chmod(root, 0o755); err != nil { // the parent directories are private
		return err
	}
	if err := s.fill(ctx, root, from.layers); err != nil {
		return err
	}
	if err := syncFS(root); err != nil {
		return err
	}
	return hostfile.RenameSynced(filepath.Dir(root), s.path("roots", hexOf(id)))
}

// fill applies the layers in order and creates the mount points.
func (s *Store) fill(ctx context.Context, root string, layers []layer) (err error) {
	left := s.limits.budget()
	t, err := openTree(root, s.owners, left)
	if err != nil {
		return err
	}
	t.room.s = s
	defer func() { err = errors.Join(err, t.close()) }()
	for i, l := range layers {
		if err := applyLayer(ctx, t, l, left); err != nil {
			return fmt.Errorf("layer %d: %w", i, err)
		}
	}
	for _, name := range mountPoints {
		if err := t.mountPoint(name); err != nil {
			return fmt.Errorf("make mount point /%s: %w", name, err)
		}
	}
	return nil
}

// applyLayer unpacks one layer. It checks the digest again: the archive was on disk since the
// import.
func applyLayer(ctx context.Context, t *tree, l layer, left *budget) error {
	r, size, err := l.open()
	if err != nil {
		return err
	}
	defer r.Close()
	sum := newDigester()
	content := io.TeeReader(&bounded{ctx, r, size}, sum)
	t.nextLayer()
	if err := walk(ctx, content, left, t.apply); err != nil {
		return err
	}
	if _, err := copyAll(io.Discard, content); err != nil { // the rest after the end mark
		return err
	}
	if sum.digest() != l.diff {
		return invalid("content has digest %s, want %s as in the configuration", sum.digest(), l.diff)
	}
	return nil
}

// mountPoint creates a directory and replaces any other file at its path.
func (t *tree) mountPoint(name string) error {
	info, err := t.root.Lstat(name)
	if err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		if err := t.root.Remove(name); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_, err = makeDir(t.root, name)
	return err
}

// note records a path of the current layer and the directories above it.
func (t *tree) note(real string) {
	for ; real != "."; real = path.Dir(real) {
		key := keyOf(real)
		if _, known := t.layerPaths[key]; known {
			return
		}
		t.layerPaths[key] = struct{}{}
	}
}

// hide removes a path of lower layers. Files of the current layer stay, regardless of the order of
// file and whiteout.
func (t *tree) hide(real string) error {
	if err := t.left.step(1 + strings.Count(real, "/")); err != nil {
		return err
	}
	if _, mine := t.layerPaths[keyOf(real)]; !mine {
		return t.root.RemoveAll(real)
	}
	info, err := t.root.Lstat(real)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || !info.IsDir() {
		return err
	}
	return t.hideIn(real)
}

// keyOf returns a fixed-size key for a path: a layer may have a million paths of 4 KiB.
func keyOf(real string) [sha256.Size]byte { return sha256.Sum256([]byte(real)) }

// hideIn applies hide to every entry of a directory.
func (t *tree) hideIn(real string) error {
	dir, err := t.root.Open(path.Join(".", real))
	if err != nil {
		return err
	}
	names, err := dir.Readdirnames(-1)
	if err := errors.Join(err, dir.Close()); err != nil {
		return err
	}
	for _, name := range names {
		if err := t.hide(path.Join(real, name)); err != nil {
			return err
		}
	}
	return nil
}

// syncFS syncs the filesystem of path at once: one sync per file would take minutes.
func syncFS(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close()) // a descriptor fits an int
}
