package images

import (
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	units "github.com/docker/go-units"

	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

// Free is how many bytes the store may still take of its file system: what has
// to stay free for the workspaces on it is not the store's.
func (s *Store) Free() (int64, error) {
	use, err := quotadir.Usage(s.dir)
	if err != nil {
		return 0, err
	}
	return max(0, use.Free-quotadir.Reserve(use)), nil
}

// room is asked for by whatever grows by what an archive holds: a few KiB of it
// may be many GiB here, and workspaces have no free block while the disk is
// nearly full. The zero value refuses nothing.
type room struct {
	s     *Store
	since int64 // bytes that were taken since it was looked at
}

// roomEach is how much is taken without another look.
const roomEach = 16 << 20

func (r *room) take(bytes int64) error {
	if r.since += bytes; r.s == nil || r.since < roomEach {
		return nil
	}
	r.since = 0
	free, err := r.s.Free()
	if err == nil && free < roomEach {
		err = fmt.Errorf("the disk of %s has %s left besides what stays free for workspaces: make room (orchestrator image gc): %w", r.s.dir, units.BytesSize(float64(free)), errdefs.ErrResourceExhausted)
	}
	return err
}

// into is a file that takes room.
type into struct {
	io.Writer
	room *room
}

// Write asks for the room first.
func (i into) Write(p []byte) (int, error) {
	if err := i.room.take(int64(len(p))); err != nil {
		return 0, err
	}
	return i.Writer.Write(p)
}
