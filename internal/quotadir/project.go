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

// From linux/fs.h and linux/quota.h, which x/sys does not have.
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

// quota is struct if_dqblk; block limits are in KiB, Space in octets.
type quota struct {
	BlocksHard, BlocksSoft, Space  uint64
	InodesHard, InodesSoft, Inodes uint64
	BlocksTime, InodesTime         uint64
	Valid                          uint32
	_                              uint32
}

// makeProject makes the root, gives it a number of its own that all below inherit, and bounds that.
//
// The owner of a file can take it out of its project again (FS_IOC_FSSETXATTR, FS_IOC_SETFLAGS), unless he is in a user namespace of
// his own or under a filter that refuses these calls: it bounds who makes mistakes, not who means harm.
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
		return unavailable("read the project of a folder", err)
	}
	attr.Flags |= projectInherit
	attr.Project = rec.ProjectID
	if err := ioctl(root, fsSetXattr, unsafe.Pointer(&attr)); err != nil {
		return unavailable("give a project to a folder", err)
	}
	// A file system that counts and does not enforce shows itself by answering for the whole of it.
	use, err := Usage(root.Name())
	if err != nil {
		return err
	}
	if use.Bytes > opt.Bytes {
		return fmt.Errorf("the file system does not enforce project quotas: mount it with prjquota: %w", errdefs.ErrUnavailable)
	}
	return nil
}

// freeProject finds a number that nothing has, far from those that people give.
func freeProject(root *os.File) (uint32, error) {
	for range 100 {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never fails
		id := binary.LittleEndian.Uint32(b[:])&0x3fffffff | 0x40000000
		var q quota
		err := quotactl(root, getQuota, id, &q)
		switch {
		case errors.Is(err, unix.ENOENT): // XFS knows nothing of it
			return id, nil
		case err != nil:
			return 0, unavailable("read project quotas", err)
		case q.Inodes == 0 && q.Space == 0:
			return id, nil
		}
	}
	return 0, fmt.Errorf("no free project number was found: %w", errdefs.ErrUnavailable)
}

// setLimits limits octets, and files to one for each 4 KiB.
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

func unavailable(what string, err error) error {
	return fmt.Errorf("%s: %w: %w", what, err, errdefs.ErrUnavailable)
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, no := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); no != 0 {
		return no
	}
	return nil
}

// quotactl needs Linux 5.14 (quotactl_fd): the older call wants the name of a block device.
func quotactl(root *os.File, cmd uintptr, id uint32, q *quota) error {
	_, _, no := unix.Syscall6(unix.SYS_QUOTACTL_FD, root.Fd(), cmd, uintptr(id), uintptr(unsafe.Pointer(q)), 0, 0)
	if no != 0 {
		return no
	}
	return nil
}
