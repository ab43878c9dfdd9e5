package quotadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// loopTries limits the attempts to get a free device: another process can take it between the query
// and the attach.
const loopTries = 64

// attachLoop attaches the image to a loop device that the kernel detaches with its last user. The
// returned file is one user. The image's lock (see lockImage) passes to the device, which holds the
// open file.
func attachLoop(image *os.File) (*os.File, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open loop control: %w: %w", err, errdefs.ErrUnavailable)
	}
	defer control.Close()
	for range loopTries {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w: %w", err, errdefs.ErrUnavailable)
		}
		device, err := openLoop(n)
		if err != nil {
			return nil, err
		}
		err = configureLoop(device, image)
		if err == nil {
			return device, nil
		}
		_ = device.Close()
		if !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENXIO) {
			return nil, fmt.Errorf("attach %s to %s: %w", image.Name(), device.Name(), err)
		}
	}
	return nil, fmt.Errorf("attach %s: lost %d loop devices to other processes: %w",
		image.Name(), loopTries, errdefs.ErrUnavailable)
}

// configureLoop asks for direct I/O. Without it, every block is cached twice, and the second copy
// is charged to no cgroup. If the host's file system has no direct I/O, the kernel does without.
func configureLoop(device, image *os.File) error {
	cfg := unix.LoopConfig{Fd: uint32(image.Fd()), Size: blockSize}
	cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
	copy(cfg.Info.File_name[:len(cfg.Info.File_name)-1], filepath.Dir(image.Name()))
	return unix.IoctlLoopConfigure(int(device.Fd()), &cfg)
}

// openLoop opens device n. It creates the device node if /dev is not a devtmpfs.
func openLoop(n int) (*os.File, error) {
	const major = 7
	name := fmt.Sprintf("/dev/loop%d", n)
	device, err := os.OpenFile(name, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		err = unix.Mknod(name, unix.S_IFBLK|0o600, int(unix.Mkdev(major, uint32(n))))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("make %s: %w: %w", name, err, errdefs.ErrUnavailable)
		}
		device, err = os.OpenFile(name, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, fmt.Errorf("open loop device: %w: %w", err, errdefs.ErrUnavailable)
	}
	return device, nil
}

// lockImage reports whether no loop device has the image. If so, it keeps that state until the file
// is closed or attached. The lock belongs to the open file, which a loop device holds while it has
// the image, even after this process ends.
func lockImage(image *os.File) (free bool, err error) { return hostfile.TryLock(image, unix.LOCK_EX) }

// findAttached finds and opens the loop device that has the image, which keeps the device. It
// returns nil if there is none.
func findAttached(image *os.File) (*os.File, error) {
	var want unix.Stat_t
	if err := unix.Fstat(int(image.Fd()), &want); err != nil {
		return nil, err
	}
	loops, err := attachedLoops()
	if err != nil {
		return nil, err
	}
	for _, n := range loops {
		device, err := openLoop(n)
		if err != nil {
			continue // It was detached since.
		}
		info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
		if err == nil && info.Device == want.Dev && info.Inode == want.Ino {
			return device, nil
		}
		_ = device.Close()
	}
	return nil, nil
}

// attachedLoops returns the numbers of the loop devices that have a file.
func attachedLoops() ([]int, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var loops []int
	for _, f := range files {
		var n int
		if _, err := fmt.Sscanf(strings.TrimPrefix(f, "/sys/block/loop"), "%d/", &n); err == nil {
			loops = append(loops, n)
		}
	}
	return loops, nil
}

// setCapacity informs the device that its file's size changed.
func setCapacity(device *os.File) error {
	if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("set size of %s: %w", device.Name(), err)
	}
	return nil
}

// growExt4 grows the mounted ext4 that contains dir to the given number of blocks.
func growExt4(dir string, blocks uint64) error {
	const ext4ResizeFS = 0x40086610 // EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64)
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ext4ResizeFS, uintptr(unsafe.Pointer(&blocks))); no != 0 {
		return fmt.Errorf("grow the file system: %w", no)
	}
	return nil
}
