package quotadir

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Constants of linux/fs.h and linux/quota.h that x/sys does not have.
const (
	fsGetXattr     = 0x801c581f // FS_IOC_FSGETXATTR
	fsSetXattr     = 0x401c5820 // FS_IOC_FSSETXATTR
	projectInherit = 0x200      // FS_XFLAG_PROJINHERIT

	getQuota     = 0x800007<<8 | projectQuota // QCMD(Q_GETQUOTA, PRJQUOTA)
	setQuota     = 0x800008<<8 | projectQuota // QCMD(Q_SETQUOTA, PRJQUOTA)
	projectQuota = 2
	quotaLimits  = 0x5 // QIF_BLIMITS | QIF_ILIMITS
)

// xattr is struct fsxattr.
type xattr struct {
	Flags, ExtSize, Extents, Project, CowExtSize uint32
	_                                            [8]byte
}

// quota is struct if_dqblk. Block limits are in KiB, Space is in bytes.
type quota struct {
	BlocksHard, BlocksSoft, Space  uint64
	InodesHard, InodesSoft, Inodes uint64
	BlocksTime, InodesTime         uint64
	Valid                          uint32
	_                              uint32
}

// makeProject makes the root, gives it a new project id that everything below inherits, and sets
// the project's limits.
//
// A file's owner can remove the file from its project (FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS), unless
// a user namespace or a seccomp filter prevents these calls. So a project quota protects against
// mistakes, not against attacks.
func makeProject(dir string, opt Options, rec *record) error {
	if err := makeRoot(dir, opt); err != nil {
		return err
	}
	root, err := os.Open(filepath.Join(dir, rootDir))
	if err != nil {
		return err
	}
	defer root.Close()
	if rec.ProjectID, err = freeProject(root); err != nil {
		return err
	}
	if err := setLimits(root, rec.ProjectID, opt.Bytes); err != nil {
		return err
	}
	var attr xattr
	if err := ioctl(root, fsGetXattr, unsafe.Pointer(&attr)); err != nil {
		return unavailable("read project id", err)
	}
	attr.Flags |= projectInherit
	attr.Project = rec.ProjectID
	if err := ioctl(root, fsSetXattr, unsafe.Pointer(&attr)); err != nil {
		return unavailable("set project id", err)
	}
	// If the file system only accounts and does not enforce, it answers with the whole file
	// system's size.
	use, err := Usage(root.Name())
	if err != nil {
		return err
	}
	if use.Bytes > opt.Bytes {
		return fmt.Errorf("project quotas are not enforced: mount the file system with prjquota: %w",
			errdefs.ErrUnavailable)
	}
	return nil
}

// freeProject returns a random project id that is unused and far from those that administrators
// choose.
func freeProject(root *os.File) (uint32, error) {
	for range 100 {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never fails
		id := binary.LittleEndian.Uint32(b[:])&0x3fffffff | 0x40000000
		var q quota
		err := quotactl(root, getQuota, id, &q)
		switch {
		case errors.Is(err, unix.ENOENT): // XFS has no record of it.
			return id, nil
		case err != nil:
			return 0, unavailable("read project quotas", err)
		case q.Inodes == 0 && q.Space == 0:
			return id, nil
		}
	}
	return 0, fmt.Errorf("no free project id found: %w", errdefs.ErrUnavailable)
}

// setLimits limits the project to the given bytes, and to one file per 4 KiB.
func setLimits(root *os.File, id uint32, bytes int64) error {
	q := quota{
		BlocksHard: uint64(bytes / 1024), BlocksSoft: uint64(bytes / 1024),
		InodesHard: uint64(bytes/4096 + 64), InodesSoft: uint64(bytes/4096 + 64), Valid: quotaLimits,
	}
	if err := quotactl(root, setQuota, id, &q); err != nil {
		return unavailable("set a project quota", err)
	}
	return nil
}

// resizeProject changes the project's limits.
func resizeProject(dir string, rec *record, bytes int64) error {
	root, err := os.Open(rec.root(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	var q quota
	if err := quotactl(root, getQuota, rec.ProjectID, &q); err != nil {
		return unavailable("read project quotas", err)
	}
	if int64(q.Space) > bytes {
		return &NoRoomError{Bytes: bytes, Used: int64(q.Space)}
	}
	if err := setLimits(root, rec.ProjectID, bytes); err != nil {
		return err
	}
	rec.Bytes = bytes
	return rec.write(dir)
}

// unavailable adds the class Unavailable to an error.
func unavailable(what string, err error) error {
	return fmt.Errorf("%s: %w: %w", what, err, errdefs.ErrUnavailable)
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); no != 0 {
		return no
	}
	return nil
}

// quotactl calls quotactl_fd, which needs Linux 5.14. The older call needs the name of a block
// device.
func quotactl(root *os.File, cmd uintptr, id uint32, q *quota) error {
	_, _, no := unix.Syscall6(unix.SYS_QUOTACTL_FD, root.Fd(), cmd, uintptr(id), uintptr(unsafe.Pointer(q)), 0, 0)
	if no != 0 {
		return no
	}
	return nil
}
