package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Share fills the new store directory to with the images of the store in from, without copying
// their files: both have the same archives and unpacked roots, which no store writes again. Nobody
// may remove or change the store in from while the other one exists. Directories are absolute
// paths.
func Share(from, to string) error {
	index, err := os.ReadFile(filepath.Join(from, indexFile))
	if err != nil {
		return fmt.Errorf("share images: %w", err)
	}
	for _, kind := range []string{"archives", "roots"} {
		if err := shareAll(filepath.Join(from, kind), filepath.Join(to, kind)); err != nil {
			return fmt.Errorf("share images: %w", err)
		}
	}
	// Last: a store without an index has no images.
	if err := os.WriteFile(filepath.Join(to, indexFile), index, 0o600); err != nil {
		return fmt.Errorf("share images: %w", err)
	}
	return nil
}

// shareAll makes the directory to with symbolic links to the entries of from.
func shareAll(from, to string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
