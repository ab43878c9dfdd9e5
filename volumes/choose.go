package volumes

import (
	"fmt"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"github.com/containerd/errdefs"
)

// selectDeltas finds the changes that paths name, and folders that those need.
func (v *overlayView) selectDeltas(paths []string) ([]*delta, error) {
	named, none, err := v.matchPaths(paths)
	if err != nil {
		return nil, err
	}
	if none != "" {
		return nil, &PathError{Overlay: v.overlay.ID, Path: none}
	}
	need := map[string]bool{} // a folder has to be there for what is in it
	for i := range v.deltas {
		if !named[i] || v.deltas[i].kind == Removed {
			continue
		}
		for _, up := range parents(v.deltas[i].path) {
			if f := v.upperDirs[up]; f != nil && (f.kind == Added || f.kind == Changed && !isDir(&f.base)) {
				need[up] = true
			}
		}
	}
	var out []*delta
	for i := range v.deltas {
		if len(paths) == 0 || named[i] || need[v.deltas[i].path] {
			out = append(out, &v.deltas[i])
		}
	}
	return out, nil
}

// matchPaths says of each change whether paths name it or a folder above it, and which
// of the paths is the first that names none. The changes are sorted, so that those
// in a folder stand together: callers may give as many paths as there are changes.
func (v *overlayView) matchPaths(paths []string) (named []bool, none string, err error) {
	edges := make([]int, len(v.deltas)+1) // how many paths begin to name, less those that end to
	find := func(p string) int {
		return sort.Search(len(v.deltas), func(i int) bool { return v.deltas[i].path >= p })
	}
	mark := func(from, to int) bool {
		edges[from]++
		edges[to]--
		return from < to
	}
	for _, p := range paths {
		rel, err := relativePath(p)
		if err != nil {
			return nil, "", err
		}
		found := false
		if at := find(rel); rel == "" {
			found = mark(0, len(v.deltas))
		} else if at < len(v.deltas) && v.deltas[at].path == rel {
			found = mark(at, at+1)
		}
		if rel != "" && mark(find(rel+"/"), find(rel+string('/'+1))) {
			found = true
		}
		if !found && none == "" {
			none = p
		}
	}
	named, depth := make([]bool, len(v.deltas)), 0
	for i := range named {
		depth += edges[i]
		named[i] = depth > 0
	}
	return named, none, nil
}

// relativePath is a caller's path as paths of a tree are.
func relativePath(p string) (string, error) {
	rel := strings.TrimPrefix(strings.TrimPrefix(p, MountedAt), "/")
	if strings.HasPrefix(p, "/") && p != MountedAt && !strings.HasPrefix(p, MountedAt+"/") {
		return "", fmt.Errorf("%s is not in %s: %w", shorten(p), MountedAt, errdefs.ErrInvalidArgument)
	}
	if rel = path.Clean(rel); rel == "." {
		return "", nil
	}
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%s is not in the workspace: %w", shorten(p), errdefs.ErrInvalidArgument)
	}
	return rel, nil
}
