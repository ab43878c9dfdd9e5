package templates

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// checkMountPoints refuses a template whose tmpfs directories do not exist in its image. It checks
// only unpacked images: other container engines create missing directories in the sandbox's own
// layer.
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
			if err != nil || !info.IsDir() { // a symlink could lead to a host path
				return fmt.Errorf(
					"tmpfs %q: image %s has no directory /%s (a symlink is not allowed): create it in the image, or choose another path: %w",
					path,
					img.Ref,
					at,
					errdefs.ErrFailedPrecondition,
				)
			}
		}
	}
	return nil
}
