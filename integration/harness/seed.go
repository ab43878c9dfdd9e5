package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/sandbox-orchestrator/orchestrator/images"
)

// Seed is an image store with the sandbox image, imported and unpacked once for all servers of a
// test process.
type Seed struct {
	// More names environment variables with archives of further images.
	More []string

	dir  string
	once sync.Once
	err  error
}

// Close removes the store.
func (s *Seed) Close() error {
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}

// fill imports the archives once.
func (s *Seed) fill(archives ...string) error {
	s.once.Do(func() { s.err = s.importOnce(archives) })
	return s.err
}

// importOnce imports the archives into a new store.
func (s *Seed) importOnce(archives []string) (err error) {
	if s.dir, err = os.MkdirTemp("", "seed"); err != nil {
		return err
	}
	store, err := images.Open(images.Options{Dir: s.dir})
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := importOne(store, archive); err != nil {
			return err
		}
	}
	return nil
}

// importOne imports and unpacks one archive.
func importOne(store *images.Store, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	ctx := context.Background()
	img, err := store.Import(ctx, f, "")
	if err != nil {
		return fmt.Errorf("import %s: %w", archive, err)
	}
	got, err := store.Resolve(img.ID)
	if err != nil {
		return err
	}
	_, err = store.Root(ctx, got)
	return err
}

// plant puts the image into the store of a state directory without copying it. It links archives,
// and symlinks unpacked roots, which are never written again.
func (s *Seed) plant(store string) error {
	for _, dir := range []string{"archives", "roots", "tmp"} {
		if err := os.MkdirAll(filepath.Join(store, dir), 0o700); err != nil {
			return err
		}
	}
	index, err := os.ReadFile(filepath.Join(s.dir, "index.json"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(store, "index.json"), index, 0o600); err != nil {
		return err
	}
	for _, kind := range []string{"archives", "roots"} {
		found, err := os.ReadDir(filepath.Join(s.dir, kind))
		if err != nil {
			return err
		}
		for _, e := range found {
			from, to := filepath.Join(s.dir, kind, e.Name()), filepath.Join(store, kind, e.Name())
			if kind == "roots" {
				err = os.Symlink(from, to)
			} else {
				err = linkAll(from, to)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// linkAll creates a directory with hard links to the files of another one.
func linkAll(from, to string) error {
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	errs := []error{os.MkdirAll(to, 0o700)}
	for _, f := range files {
		errs = append(errs, os.Link(filepath.Join(from, f.Name()), filepath.Join(to, f.Name())))
	}
	return errors.Join(errs...)
}
