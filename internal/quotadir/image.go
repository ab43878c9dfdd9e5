package quotadir

import (
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

// features are named, so that the host's mke2fs.conf decides nothing.
const features = "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"

// mountOptions: what the image has no use for any more goes back to the host at once (discard). A file system with errors is read-only from
// then on: writes are refused instead of lost.
const mountOptions = "errors=remount-ro,discard"

// makeImage makes the image and the root in it, and notes what they are.
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
		return fmt.Errorf("size of %d octets: %w", rec.ImageBytes, err)
	}
	seed := filepath.Join(dir, "seed")
	if err := os.MkdirAll(filepath.Join(seed, rootDir), 0o700); err != nil {
		return err
	}
	if err := os.Lchown(filepath.Join(seed, rootDir), opt.UID, opt.GID); err != nil {
		return err
	}
	err = e2tool(ctx, "mkfs.ext4", "-q", "-F", "-b", strconv.Itoa(blockSize), "-I", strconv.Itoa(inodeSize), "-m", "0", "-O", features,
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

// openImage opens the image as the record has it, after ending a change of its size that was cut short.
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

func checkImage(image *os.File, rec *record) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &st); err != nil {
		return err
	}
	switch {
	case st.Mode != unix.S_IFREG|0o600 || st.Uid != 0 || st.Nlink != 1:
		return fmt.Errorf("it is not root's own plain file: %w", ErrAltered)
	case st.Size == rec.ImageBytes:
	case rec.FromBytes != 0 && st.Size == rec.FromBytes: // growing was cut short
		return image.Truncate(rec.ImageBytes) // a device that has it learns of it by setCapacity
	default:
		return fmt.Errorf("it has %d octets, not %d: %w", st.Size, rec.ImageBytes, ErrAltered)
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
	if err := unix.Mount(device.Name(), mnt, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, mountOptions); err != nil {
		return fmt.Errorf("mount %s: %w", device.Name(), err)
	}
	if hasFailed(mnt) { // a clone of a mount that is no more has kept it as it was
		return errors.Join(fmt.Errorf("the file system met an error, and cannot be repaired beside a clone of its mount: %w", ErrBusy), livemount.Unbind(ctx, mnt))
	}
	return nil
}

// isHealthy says whether what is mounted can be written. What cannot, after an error, is unmounted so that it can be
// repaired: ErrBusy while something uses it, or has a clone of the mount, as a container does for a moment that is being made.
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
		return false, fmt.Errorf("the file system met an error, and cannot be repaired while it is used: %w", err)
	}
	return false, nil
}

// openDevice opens the loop device that has the image, or makes it one: then the image is checked first, and repaired if the kernel had found
// errors in it.
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
		// One that is on its way out has the lock and no number any more.
		device, err := findAttached(image)
		if device != nil || err != nil {
			return device, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: something has it: %w", image.Name(), ErrBusy)
		case <-time.After(5 * time.Millisecond):
		}
	}
	if err := checkAndRepair(context.WithoutCancel(ctx), dir, image, rec); err != nil {
		return nil, fmt.Errorf("%s: %w", image.Name(), err)
	}
	return attachLoop(image)
}

// checkAndRepair checks an image that nothing has, ends a growth that was cut short, and repairs what the kernel found errors in.
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

// unmountImage returns when no loop device has the image.
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

// cloneWait is how long a clone of a mount is waited for that has been unmounted: a container of anybody on the host has one of every
// mount while it is being made, on a busy host for seconds.
const cloneWait = 10 * time.Second

// waitDetached waits for it until nothing has the image.
func waitDetached(ctx context.Context, dir string) error {
	image, err := os.OpenFile(filepath.Join(dir, imageFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ELOOP) {
		return nil // no image of ours
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
			return fmt.Errorf("a clone of the mount is still used: %w", ErrBusy)
		case <-time.After(wait):
		}
	}
}
