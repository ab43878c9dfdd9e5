package images

import (
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	units "github.com/docker/go-units"

	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

// Free returns how many bytes the store may still use on its filesystem. A reserve for workspaces
// is not counted.
func (s *Store) Free() (int64, error) {
	use, err := quotadir.Usage(s.dir)
	if err != nil {
		return 0, err
	}
	return max(0, use.Free-quotadir.Reserve(use)), nil
}

// spaceChecker checks the free space while files are unpacked: a small archive can expand to many
// GiB, and workspaces need free blocks. The zero value checks nothing.
type spaceChecker struct {
	s     *Store
	since int64 // bytes written since the last check
}

// roomEach is the number of bytes written between two checks.
const roomEach = 16 << 20

// take accounts for bytes to be written. The error is ResourceExhausted if the disk is nearly full.
func (r *spaceChecker) take(bytes int64) error {
	if r.since += bytes; r.s == nil || r.since < roomEach {
		return nil
	}
	r.since = 0
	free, err := r.s.Free()
	if err == nil && free < roomEach {
		err = fmt.Errorf("disk of %s has only %s left beyond the reserve for workspaces: "+
			"free space with orchestrator image gc: %w",
			r.s.dir, units.BytesSize(float64(free)), errdefs.ErrResourceExhausted)
	}
	return err
}

// spaceCheckedFile is a file whose writes check the free space.
type spaceCheckedFile struct {
	io.Writer
	room *spaceChecker
}

// Write implements io.Writer.
func (i spaceCheckedFile) Write(p []byte) (int, error) {
	if err := i.room.take(int64(len(p))); err != nil {
		return 0, err
	}
	return i.Writer.Write(p)
}
