package quotadir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// features are explicit, so that the host's mke2fs.conf has no effect.
const features = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg," +
	"sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// mountOptions return unused blocks to the host at once (discard). They make a file system with
// errors read-only, so that writes fail instead of being lost.
const mountOptions = "errors=remount-ro,discard"

// makeImage makes the image with its root, and fills in the record.
func makeImage(ctx context.Context, dir string, opt Options, rec *record) error {
	p := newLayout(opt.Bytes)
	name := filepath.Join(dir, imageFile)
	image, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer image.Close()
	rec.ImageBytes, rec.Journal = p.blocks*blockSize, p.journal
	if err := image.Truncate(rec.ImageBytes); err != nil {
		return fmt.Errorf("set image size to %d bytes: %w", rec.ImageBytes, err)
	}
	seed := filepath.Join(dir, "seed")
	if err := os.MkdirAll(filepath.Join(seed, rootDir), 0o700); err != nil {
		return err
	}
	if err := os.Lchown(filepath.Join(seed, rootDir), opt.UID, opt.GID); err != nil {
		return err
	}
	err = e2tool(ctx, "mkfs.ext4", "-q", "-F",
		"-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize), "-m", "0", "-O", features,
		"-N", strconv.FormatInt(p.perGroup*p.groups(), 10), "-J", fmt.Sprintf("size=%d", p.journal*blockSize>>20),
		"-E", "lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0", "-d", seed, name)
	if err != nil {
		return err
	}
	s, err := readSuper(image)
	if err != nil {
		return err
	}
	rec.UUID = s.uuid
	if err := s.check(rec); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(dir, mountDir), 0o700); err != nil {
		return err
	}
	return errors.Join(image.Sync(), os.RemoveAll(seed))
}

// openImage opens the image that the record describes, after it completes an interrupted resize.
func openImage(dir string, rec *record) (*os.File, error) {
	if err := finishShrink(dir, rec); err != nil {
		return nil, err
	}
	image, err := os.OpenFile(filepath.Join(dir, imageFile), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open image: %w: %w", err, ErrAltered)
	}
	if err := checkImage(image, rec); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", image.Name(), err), image.Close())
	}
	return image, nil
}

// checkImage returns ErrAltered unless the file is the one that the record describes. It completes
// an interrupted growth of the file.
func checkImage(image *os.File, rec *record) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil {
		return err
	}
	switch {
	case st.Mode != unix.S_IFREG|0o600 || st.Uid != 0 || st.Nlink != 1:
		return fmt.Errorf("not a regular file of root with mode 0600: %w", ErrAltered)
	case st.Size == rec.ImageBytes:
	case rec.FromBytes != 0 && st.Size == rec.FromBytes: // An interrupted growth.
		return image.Truncate(rec.ImageBytes) // setCapacity informs a device that has it.
	default:
		return fmt.Errorf("size is %d bytes, want %d: %w", st.Size, rec.ImageBytes, ErrAltered)
	}
	return nil
}

// mountImage mounts the image.
func mountImage(ctx context.Context, dir string, rec *record) error {
	mnt := filepath.Join(dir, mountDir)
	is, err := livemount.IsMount(mnt)
	if err != nil {
		return err
	}
	if is {
		if is, err = isHealthy(ctx, dir); err != nil || is {
			return err
		}
	}
	image, err := openImage(dir, rec)
	if err != nil {
		return err
	}
	defer image.Close()
	device, err := openDevice(ctx, dir, image, rec)
	if err != nil {
		return err
	}
	defer device.Close()
	if err := os.MkdirAll(mnt, 0o700); err != nil {
		return err
	}
	err = unix.Mount(device.Name(), mnt, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, mountOptions)
	if err != nil {
		return fmt.Errorf("mount %s: %w", device.Name(), err)
	}
	if hasFailed(mnt) { // A clone of an old mount kept the failed file system.
		err := fmt.Errorf("file system has an error and cannot be repaired while a clone of its mount exists: %w",
			ErrBusy)
		return errors.Join(err, livemount.Unbind(ctx, mnt))
	}
	return nil
}

// isHealthy reports whether the mounted file system is writable. After an error it unmounts the
// file system so that it can be repaired. ErrBusy while something uses it or has a clone of the
// mount, as a container has while it is created.
func isHealthy(ctx context.Context, dir string) (bool, error) {
	mnt := filepath.Join(dir, mountDir)
	if !hasFailed(mnt) {
		return true, nil
	}
	err := livemount.Unbind(ctx, mnt)
	if err == nil {
		err = waitDetached(ctx, dir)
	}
	if err != nil {
		return false, fmt.Errorf("file system has an error and cannot be repaired while in use: %w", err)
	}
	return false, nil
}

// openDevice opens the loop device of the image. If there is none, it checks the image, repairs it
// if the kernel found errors, and attaches it.
func openDevice(ctx context.Context, dir string, image *os.File, rec *record) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, livemount.BusyWait)
	defer cancel()
	for {
		free, err := lockImage(image)
		if err != nil {
			return nil, err
		}
		if free {
			break
		}
		// A device that is being detached has the lock, but no number any more.
		device, err := findAttached(image)
		if device != nil || err != nil {
			return device, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is attached or locked: %w", image.Name(), ErrBusy)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := checkAndRepair(context.WithoutCancel(ctx), dir, image, rec); err != nil {
		return nil, fmt.Errorf("%s: %w", image.Name(), err)
	}
	return attachLoop(image)
}

// checkAndRepair checks a detached image, completes an interrupted growth, and repairs errors that
// the kernel found.
func checkAndRepair(ctx context.Context, dir string, image *os.File, rec *record) error {
	s, err := readSuper(image)
	if err != nil {
		return err
	}
	if err := s.check(rec); err != nil {
		return err
	}
	if s.state&stateErrors != 0 || rec.FromBytes != 0 {
		if err := repair(ctx, image.Name()); err != nil {
			return err
		}
	}
	if rec.FromBytes == 0 {
		return nil
	}
	return growAtRest(ctx, dir, image, rec)
}

// unmountImage unmounts the image and returns when no loop device has it.
func unmountImage(ctx context.Context, dir string) error {
	mnt := filepath.Join(dir, mountDir)
	for {
		is, err := livemount.IsMount(mnt)
		if err != nil {
			return err
		}
		if !is {
			break
		}
		if err := livemount.Unbind(ctx, mnt); err != nil {
			return err
		}
	}
	return waitDetached(ctx, dir)
}

// cloneWait is how long to wait for clones of an unmounted mount. A container that is being created
// on the host clones every mount, which can take seconds on a busy host.
const cloneWait = 10 * time.Second

// waitDetached waits until no loop device has the image.
func waitDetached(ctx context.Context, dir string) error {
	image, err := os.OpenFile(filepath.Join(dir, imageFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil // This package made no image here.
	}
	if err != nil {
		return err
	}
	defer image.Close()
	ctx, cancel := context.WithTimeout(ctx, cloneWait)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		free, err := lockImage(image)
		if free || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("a clone of the mount is still in use%s: %w", cloneHolder(image), ErrBusy)
		case <-time.After(wait):
		}
	}
}

// cloneHolder describes a process whose mount namespace has the image mounted, as " by process 7
// (name)". It returns "" if it finds none: a mount can also live in a file descriptor.
func cloneHolder(image *os.File) string {
	device, err := findAttached(image)
	if device == nil || err != nil {
		return ""
	}
	defer device.Close()
	var s unix.Stat_t
	if err := unix.Fstat(int(device.Fd()), &s); err != nil {
		return ""
	}
	want := fmt.Appendf(nil, " %d:%d ", unix.Major(s.Rdev), unix.Minor(s.Rdev))
	files, _ := filepath.Glob("/proc/[0-9]*/mountinfo")
	for _, file := range files {
		if mounts, err := os.ReadFile(file); err != nil || !bytes.Contains(mounts, want) {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "comm"))
		return fmt.Sprintf(" by process %s (%s)", filepath.Base(filepath.Dir(file)), bytes.TrimSpace(name))
	}
	return ""
}
