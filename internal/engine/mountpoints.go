package engine

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// checkMountPoints refuses a template whose further folders are not in its
// image, where the unpacked image can be looked at. Engines that do not show it
// make what is missing in a sandbox's own layer.
func checkMountPoints(img runtime.Image, tmpfs map[string]int64) error {
	if img.Root == "" || len(tmpfs) == 0 {
		return nil
	}
	root, err := os.OpenRoot(img.Root)
	if err != nil {
		return fmt.Errorf("image %s: %w", img.Ref, err)
	}
	defer root.Close()
	for _, path := range slices.Sorted(maps.Keys(tmpfs)) {
		at := ""
		for part := range strings.SplitSeq(strings.TrimPrefix(path, "/"), "/") {
			at = strings.TrimPrefix(at+"/"+part, "/")
			info, err := root.Lstat(at)
			if err != nil || !info.IsDir() { // a link could lead to what is ours
				return fmt.Errorf("tmpfs %q: image %s has no folder /%s (a link is none): make it in the image, or choose another place: %w", path, img.Ref, at, errdefs.ErrFailedPrecondition)
			}
		}
	}
	return nil
}
