// Package quotadir makes folders whose files take a bounded number of octets.
//
// Three mechanisms: [Loop], an image file with an ext4 in it; [Project], a project quota of the host's file system; [None], a
// folder without a bound. A folder that [Make] filled is called a disk here; it is the caller's before and after, and is removed as
// any folder once it is not mounted. Below it:
//
//	disk.json   what was asked for and what was made
//	disk.img    Loop: the image, sparse; nothing but the kernel and e2fsprogs ever writes to it, and no sandbox sees it
//	mnt/        Loop: where it is mounted
//	mnt/files/  Loop: the root for the caller's folders
//	files/      Project and None: the same
//
// All but the root belongs to uid 0 with mode 0700. Calls on one disk order themselves by a lock on its folder, here and between
// processes; those on several run at the same time. It keeps no state in memory and starts no goroutine.
//
// A mounted image outlives this process, and its mount at the disk: every clone of the mount in a container holds the file system. So
// [Mount] looks for the loop device that has the image already and never makes a second one, whose writes would destroy the first one's.
//
// Errors are classed by containerd/errdefs; besides them [ErrBusy], [ErrAltered] and [*NoRoomError].
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

// Mechanism is how a folder is bounded.
type Mechanism string

// The mechanisms.
const (
	Loop    Mechanism = "loop"    // an image file with an ext4 in it, mounted through a loop device
	Project Mechanism = "project" // a project quota of the host's file system
	None    Mechanism = "none"    // no bound
)

// The errors callers tell apart.
var (
	// ErrBusy is slot.ErrBusy: something still uses the file system.
	ErrBusy = livemount.ErrBusy
	// ErrAltered: the image is not the one that was made; it is left alone.
	ErrAltered = fmt.Errorf("image was altered: %w", errdefs.ErrDataLoss)
)

// NoRoomError says that a disk cannot be made so small.
type NoRoomError struct {
	Bytes int64 // asked for
	Used  int64 // what the files take now
}

func (e *NoRoomError) Error() string {
	return fmt.Sprintf("cannot shrink to %d octets: %d are used", e.Bytes, e.Used)
}

// Unwrap classes it.
func (e *NoRoomError) Unwrap() error { return errdefs.ErrFailedPrecondition }

// Sizes that can be asked for.
const (
	MinBytes = 4 << 20
	MaxBytes = 16 << 40
)

// Options of Make.
type Options struct {
	// Bytes is what files may take; what the file system needs for itself comes on top. From MinBytes to MaxBytes; None does not look
	// at it.
	Bytes int64
	// UID and GID own the root. Its mode is 0700.
	UID, GID int
	// Mechanism must be named; see Detect.
	Mechanism Mechanism
}

// Make makes a disk in dir, an existing empty folder. On error dir is empty again. Unavailable: the mechanism does not work here.
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
			return fmt.Errorf("size of %d octets is not from %d to %d: %w", o.Bytes, int64(MinBytes), int64(MaxBytes), errdefs.ErrInvalidArgument)
		}
	case None:
	default:
		return fmt.Errorf("mechanism %q is not known: %w", o.Mechanism, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Mount makes the files reachable and returns their root, a folder in which the caller makes its own. The file system is nosuid and
// nodev. Mounting again gives the same root. After a crash or a power cut the journal is replayed; a file system that the kernel had
// found errors in is repaired first, which takes as long as it has files. ErrAltered: the image is not what was made.
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
		return "", fmt.Errorf("mount disk of %s: its root is not a folder: %w", dir, errors.Join(err, ErrAltered))
	}
	return root, nil
}

// Unmount ends what Mount began, and returns when the image is whole and unused. ErrBusy: a process has a file open, or the mount was
// cloned into a container; call it again when that has ended. A disk that is not mounted is no error.
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

// Mounted says whether the root can be used now. Project and None are always mounted.
func Mounted(dir string) (bool, error) {
	rec, err := readRecord(dir)
	if err != nil || rec.Mechanism != Loop {
		return err == nil, err
	}
	return livemount.IsMount(filepath.Join(dir, mountDir))
}

// Resize changes the bound. Growing works at rest, and mounted if the process has CAP_SYS_RESOURCE; shrinking at rest only, and takes as long as copying the files. A
// *NoRoomError says that they take more. FailedPrecondition: it is mounted and was to shrink, or has no bound. Cut short by a crash,
// the disk has the old size or the new one.
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
		err = fmt.Errorf("it has no bound: %w", errdefs.ErrFailedPrecondition)
	case bytes == rec.Bytes:
	case rec.Mechanism == Project:
		err = resizeProject(dir, &rec, bytes)
	default:
		err = resizeImage(ctx, dir, &rec, bytes)
	}
	if err != nil {
		return fmt.Errorf("resize disk of %s to %d octets: %w", dir, bytes, err)
	}
	return nil
}
