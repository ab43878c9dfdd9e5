package quotadir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

const (
	recordVersion = 1
	recordFile    = "disk.json"
	imageFile     = "disk.img"
	newImageFile  = "disk.img.new"
	mountDir      = "mnt"
	rootDir       = "files"
	maxRecord     = 4 << 10
)

// record describes what was made. Its file is replaced atomically.
type record struct {
	Version   int       `json:"version"`
	Mechanism Mechanism `json:"mechanism"`
	Bytes     int64     `json:"bytes,omitempty"`
	// UUID identifies the file system, ImageBytes is the image's size and Journal the number of
	// journal blocks. Loop only.
	UUID       string `json:"uuid,omitempty"`
	ImageBytes int64  `json:"image_bytes,omitempty"`
	Journal    int64  `json:"journal,omitempty"`
	// FromBytes is the image's size before a resize that has not completed, or 0.
	FromBytes int64 `json:"from_bytes,omitempty"`
	// ProjectID is the id of the project quota. Project only.
	ProjectID uint32 `json:"project_id,omitempty"`
}

// root returns the directory for the caller's files.
func (r *record) root(dir string) string {
	if r.Mechanism == Loop {
		return filepath.Join(dir, mountDir, rootDir)
	}
	return filepath.Join(dir, rootDir)
}

// readRecord reads and checks the record of a disk. NotFound if dir is not a disk.
func readRecord(dir string) (record, error) {
	f, err := os.OpenFile(filepath.Join(dir, recordFile), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return record{}, fmt.Errorf("disk %s not found: %w", dir, errdefs.ErrNotFound)
	}
	if err != nil {
		return record{}, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return record{}, err
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, fmt.Errorf("%s: %w: %w", f.Name(), err, ErrAltered)
	}
	if r.Version != recordVersion {
		return record{}, fmt.Errorf("unsupported version %d of %s: this build reads %d: %w",
			r.Version, f.Name(), recordVersion, errdefs.ErrFailedPrecondition)
	}
	if err := (Options{Bytes: r.Bytes, Mechanism: r.Mechanism}).validate(); err != nil {
		return record{}, fmt.Errorf("%s: %w: %w", f.Name(), err, ErrAltered)
	}
	return r, nil
}

// write replaces the record's file and syncs it.
func (r *record) write(dir string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return hostfile.ReplaceSynced(filepath.Join(dir, recordFile), append(text, '\n'), 0o600, nil)
}

// lock serializes the calls on one disk. It waits until ctx ends.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("directory %q must be an absolute path: %w", dir, errdefs.ErrInvalidArgument)
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		err = errors.Join(err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	if err := hostfile.Lock(ctx, f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// makeRoot makes the root of a disk without an image.
func makeRoot(dir string, opt Options) error {
	root := filepath.Join(dir, rootDir)
	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	return os.Lchown(root, opt.UID, opt.GID)
}

// removeContent removes what a failed Make left. No command had access to it.
func removeContent(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}
