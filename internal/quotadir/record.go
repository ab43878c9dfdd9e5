package quotadir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
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

// record is what was made. Its file is replaced whole.
type record struct {
	Version   int       `json:"version"`
	Mechanism Mechanism `json:"mechanism"`
	Bytes     int64     `json:"bytes,omitempty"`
	// UUID is the file system's, ImageBytes the size of the image, Journal the blocks of its journal. Loop.
	UUID       string `json:"uuid,omitempty"`
	ImageBytes int64  `json:"image_bytes,omitempty"`
	Journal    int64  `json:"journal,omitempty"`
	// FromBytes is the size of the image before a change that was begun and not seen to end, 0 if there is none.
	FromBytes int64 `json:"from_bytes,omitempty"`
	// ProjectID is the host's number for the quota. Project.
	ProjectID uint32 `json:"project_id,omitempty"`
}

func (r *record) root(dir string) string {
	if r.Mechanism == Loop {
		return filepath.Join(dir, mountDir, rootDir)
	}
	return filepath.Join(dir, rootDir)
}

func readRecord(dir string) (record, error) {
	f, err := os.OpenFile(filepath.Join(dir, recordFile), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return record{}, fmt.Errorf("%s is no disk: %w", dir, errdefs.ErrNotFound)
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
		return record{}, fmt.Errorf("%s is of version %d, this build reads %d: %w", f.Name(), r.Version, recordVersion, errdefs.ErrFailedPrecondition)
	}
	if err := (Options{Bytes: r.Bytes, Mechanism: r.Mechanism}).validate(); err != nil {
		return record{}, fmt.Errorf("%s: %w: %w", f.Name(), err, ErrAltered)
	}
	return r, nil
}

// write makes the record outlive a power cut.
func (r *record) write(dir string) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, recordFile)
	f, err := os.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(text, '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(name+".new", name); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// lock orders the calls on one disk. It waits until ctx ends.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("folder %q is not absolute: %w", dir, errdefs.ErrInvalidArgument)
	}
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		err = errors.Join(err, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	wait := time.Millisecond
	for {
		switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return func() { _ = f.Close() }, nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another change of %s: %w", dir, context.Cause(ctx)), f.Close())
		case <-time.After(wait):
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}

// makeRoot makes the root of a disk that is no image.
func makeRoot(dir string, opt Options) error {
	root := filepath.Join(dir, rootDir)
	if err := os.Mkdir(root, 0o700); err != nil {
		return err
	}
	return os.Lchown(root, opt.UID, opt.GID)
}

// removeContent removes what a Make that went wrong left; no command was ever near it.
func removeContent(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}
