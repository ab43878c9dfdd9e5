package livemount

import (
	"errors"
	"os"
	"slices"
	"strings"
)

// Below lists the places at root and below it where something is mounted, each once, the deepest first; none if there is no
// such path.
func Below(root string) ([]string, error) {
	path, err := realPath(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	mounts, err := readMounts()
	if err != nil {
		return nil, err
	}
	var points []string
	for _, m := range mounts {
		if (m.point == path || strings.HasPrefix(m.point, path+"/")) && !slices.Contains(points, m.point) {
			points = append(points, m.point)
		}
	}
	slices.SortStableFunc(points, func(a, b string) int { return len(b) - len(a) })
	return points, nil
}
