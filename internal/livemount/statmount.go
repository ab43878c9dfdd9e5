package livemount

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// statmountRequest is struct mnt_id_req, and statmountReply the beginning of struct statmount, from
// linux/mount.h.
type statmountRequest struct {
	size, spare uint32
	id, mask    uint64
}

type statmountReply struct {
	size, opts              uint32
	mask                    uint64
	devMajor, devMinor      uint32
	magic                   uint64
	sbFlags, fsType         uint32
	id, parent              uint64
	oldID, oldParent        uint32
	attributes, propagation uint64
	_                       [432]byte // the kernel writes its own size, which is 512 today
}

// statmountBasic requests the ids, attributes and propagation.
const statmountBasic = 0x2

// statShared asks the kernel whether the mount of f is shared. The error is errors.ErrUnsupported
// if the kernel cannot answer.
func statShared(f *os.File) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID_UNIQUE, &st); err != nil {
		return false, err
	}
	if st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return false, fmt.Errorf("unique mount ids: %w", errors.ErrUnsupported)
	}
	req := statmountRequest{id: st.Mnt_id, mask: statmountBasic}
	req.size = uint32(unsafe.Sizeof(req))
	var reply statmountReply
	_, _, errno := unix.Syscall6(unix.SYS_STATMOUNT, uintptr(unsafe.Pointer(&req)), uintptr(unsafe.Pointer(&reply)),
		unsafe.Sizeof(reply), 0, 0, 0)
	runtime.KeepAlive(&req)
	switch {
	case errno == unix.ENOSYS || errno == unix.EPERM || reply.mask&statmountBasic == 0 && errno == 0:
		return false, fmt.Errorf("statmount: %w", errors.ErrUnsupported) // an old kernel, or a seccomp filter
	case errno != 0:
		return false, fmt.Errorf("statmount: %w", errno)
	}
	return reply.propagation&unix.MS_SHARED != 0, nil
}
