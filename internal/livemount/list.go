package livemount

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/moby/sys/mountinfo"
)

// Below returns the mount points at root and below it, each once, the deepest first. It returns
// none if the path does not exist.
func Below(root string) ([]string, error) {
	path, err := realPath(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var points []string
	for _, m := range mounts {
		if !slices.Contains(points, m.Mountpoint) {
			points = append(points, m.Mountpoint)
		}
	}
	slices.SortStableFunc(points, func(a, b string) int { return len(b) - len(a) })
	return points, nil
}
