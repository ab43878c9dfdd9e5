// Package quotadir makes directories whose files take a limited number of bytes.
//
// There are three mechanisms: [Loop], an image file with an ext4; [Project], a project quota of the
// host's file system; and [None], a directory without a limit. A directory that [Make] filled is
// called a disk. The caller creates the directory, and removes it like any other once it is not
// mounted. It contains:
//
//	disk.json   what was requested and made
//	disk.img    Loop: the sparse image, written by the kernel and e2fsprogs only
//	mnt/        Loop: the mount point
//	mnt/files/  Loop: the root for the caller's files
//	files/      Project and None: the root for the caller's files
//
// Everything but the root belongs to uid 0 with mode 0700. A lock on the directory serializes calls
// on one disk, also between processes. Calls on different disks run concurrently. The package keeps
// no state in memory and starts no goroutine.
//
// A mounted image outlives this process and even its mount point, because each clone of the mount
// in a container keeps the file system in use. So [Mount] reuses the loop device that has the
// image. A second device would corrupt the file system.
//
// Errors have a class of containerd/errdefs. Besides, there are [ErrBusy], [ErrAltered] and
// [*NoRoomError].
package quotadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// Mechanism is how a directory's size is limited.
type Mechanism string

// The mechanisms of a disk.
const (
	Loop    Mechanism = "loop"    // an image file with an ext4, mounted through a loop device
	Project Mechanism = "project" // a project quota of the host's file system
	None    Mechanism = "none"    // no limit
)

// Errors that callers can check with errors.Is.
var (
	// ErrBusy is livemount.ErrBusy: the file system is still in use.
	ErrBusy = livemount.ErrBusy
	// ErrAltered reports that the image is not the one that Make made. It is left unchanged.
	ErrAltered = fmt.Errorf("image was altered: %w", errdefs.ErrDataLoss)
)

// NoRoomError reports that the files do not fit in the requested size.
type NoRoomError struct {
	Bytes int64 // requested
	Used  int64 // used by the files now
}

// Error implements error.
func (e *NoRoomError) Error() string {
	return fmt.Sprintf("cannot shrink to %d bytes: %d are in use", e.Bytes, e.Used)
}

// Unwrap returns the errdefs class.
func (e *NoRoomError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Limits of a requested size.
const (
	MinBytes = 4 << 20
	MaxBytes = 16 << 40
)

// Options are the options of Make.
type Options struct {
	// Bytes is the limit for files, from MinBytes to MaxBytes. The file system's own overhead comes
	// on top. None ignores it.
	Bytes int64
	// UID and GID own the root. Its mode is 0700.
	UID, GID int
	// Mechanism is required; see Detect.
	Mechanism Mechanism
}

// Make makes a disk in dir, an existing empty directory. On error dir is empty again. Unavailable
// if the mechanism does not work on this host.
func Make(ctx context.Context, dir string, opt Options) error {
	if err := opt.validate(); err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	unlock, err := lock(ctx, dir)
	if err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	defer unlock()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("make disk: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("make disk: %s is not empty: %w", dir, errdefs.ErrAlreadyExists)
	}
	rec := record{Version: recordVersion, Mechanism: opt.Mechanism, Bytes: opt.Bytes}
	switch opt.Mechanism {
	case Loop:
		err = makeImage(ctx, dir, opt, &rec)
	case Project:
		err = makeProject(dir, opt, &rec)
	default:
		err = makeRoot(dir, opt)
	}
	if err == nil {
		err = rec.write(dir)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("make disk in %s: %w", dir, err), removeContent(dir))
	}
	return nil
}

func (o Options) validate() error {
	switch o.Mechanism {
	case Loop, Project:
		if o.Bytes < MinBytes || o.Bytes > MaxBytes {
			return fmt.Errorf("invalid size %d: must be from %d to %d bytes: %w",
				o.Bytes, int64(MinBytes), int64(MaxBytes), errdefs.ErrInvalidArgument)
		}
	case None:
	default:
		return fmt.Errorf("invalid mechanism %q: must be loop, project or none: %w",
			o.Mechanism, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Mount mounts a disk and returns its root, the directory for the caller's files. The file system
// is nosuid and nodev. Mounting again returns the same root. After a crash or power cut, the kernel
// replays the journal. If the kernel had found errors, Mount repairs the file system first; the
// time grows with the number of files. ErrAltered if the image is not the one that Make made.
func Mount(ctx context.Context, dir string) (root string, err error) {
	unlock, err := lock(ctx, dir)
	if err != nil {
		return "", fmt.Errorf("mount disk: %w", err)
	}
	defer unlock()
	rec, err := readRecord(dir)
	if err != nil {
		return "", fmt.Errorf("mount disk: %w", err)
	}
	if rec.Mechanism == Loop {
		if err := mountImage(ctx, dir, &rec); err != nil {
			return "", fmt.Errorf("mount disk of %s: %w", dir, err)
		}
	}
	root = rec.root(dir)
	if fi, err := os.Lstat(root); err != nil || !fi.IsDir() {
		return "", fmt.Errorf("mount disk of %s: its root is not a directory: %w", dir, errors.Join(err, ErrAltered))
	}
	return root, nil
}

// Unmount unmounts a disk, and returns when the image is consistent and unused. ErrBusy if a
// process has a file open or a container has a clone of the mount; call it again later. It returns
// nil if the disk is not mounted.
func Unmount(ctx context.Context, dir string) error {
	unlock, err := lock(ctx, dir)
	if err != nil {
		return fmt.Errorf("unmount disk: %w", err)
	}
	defer unlock()
	rec, err := readRecord(dir)
	if err != nil {
		return fmt.Errorf("unmount disk: %w", err)
	}
	if rec.Mechanism != Loop {
		return nil
	}
	if err := unmountImage(ctx, dir); err != nil {
		return fmt.Errorf("unmount disk of %s: %w", dir, err)
	}
	return nil
}

// Mounted reports whether the root can be used now. Project and None are always mounted.
func Mounted(dir string) (bool, error) {
	rec, err := readRecord(dir)
	if err != nil || rec.Mechanism != Loop {
		return err == nil, err
	}
	return livemount.IsMount(filepath.Join(dir, mountDir))
}

// Resize changes the limit. A mounted disk can grow if the process has CAP_SYS_RESOURCE. Shrinking
// needs an unmounted disk, and takes as long as a copy of its files. *NoRoomError if the files need
// more. FailedPrecondition if the disk has no limit, or ErrBusy if it is mounted and was to shrink.
// After a crash the disk has the old or the new size.
func Resize(ctx context.Context, dir string, bytes int64) error {
	unlock, err := lock(ctx, dir)
	if err != nil {
		return fmt.Errorf("resize disk: %w", err)
	}
	defer unlock()
	rec, err := readRecord(dir)
	if err != nil {
		return fmt.Errorf("resize disk: %w", err)
	}
	if err := (Options{Bytes: bytes, Mechanism: rec.Mechanism}).validate(); err != nil {
		return fmt.Errorf("resize disk: %w", err)
	}
	switch {
	case rec.Mechanism == None:
		err = fmt.Errorf("disk has no limit: %w", errdefs.ErrFailedPrecondition)
	case bytes == rec.Bytes:
	case rec.Mechanism == Project:
		err = resizeProject(dir, &rec, bytes)
	default:
		err = resizeImage(ctx, dir, &rec, bytes)
	}
	if err != nil {
		return fmt.Errorf("resize disk of %s to %d bytes: %w", dir, bytes, err)
	}
	return nil
}
