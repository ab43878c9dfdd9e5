package volumes

import (
	"fmt"
	"path"
	"path/filepath"
	"sort"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// selectDeltas returns the changes that paths select, and the directories that those changes need.
// A path that selects nothing is a *PathError. No paths select everything.
func (v *overlayView) selectDeltas(paths []string) ([]*delta, error) {
	selected, unmatched, err := v.matchPaths(paths)
	if err != nil {
		return nil, err
	}
	if unmatched != "" {
		return nil, &PathError{Overlay: v.overlay.ID, Path: unmatched}
	}
	need := map[string]bool{} // A file that is committed needs its directories too.
	for i := range v.deltas {
		if !selected[i] || v.deltas[i].kind == Removed {
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
		if len(paths) == 0 || selected[i] || need[v.deltas[i].path] {
			out = append(out, &v.deltas[i])
		}
	}
	return out, nil
}

// matchPaths reports for each change whether a path selects it or a directory above it, and returns
// the first path that selects nothing. Because the changes are sorted, those below a directory are
// contiguous. The cost stays low even if a caller passes one path per change.
func (v *overlayView) matchPaths(paths []string) (selected []bool, unmatched string, err error) {
	edges := make([]int, len(v.deltas)+1) // paths that start to match at this index, minus those that stop
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
		if !found && unmatched == "" {
			unmatched = p
		}
	}
	selected, depth := make([]bool, len(v.deltas)), 0
	for i := range selected {
		depth += edges[i]
		selected[i] = depth > 0
	}
	return selected, unmatched, nil
}

// relativePath converts a caller's path into one relative to the workspace. InvalidArgument if it
// is outside.
func relativePath(p string) (string, error) {
	rel := strings.TrimPrefix(strings.TrimPrefix(p, MountedAt), "/")
	if strings.HasPrefix(p, "/") && p != MountedAt && !strings.HasPrefix(p, MountedAt+"/") {
		return "", fmt.Errorf("invalid path %q: not in %s: %w", clip.Message(p), MountedAt, errdefs.ErrInvalidArgument)
	}
	if rel = path.Clean(rel); rel == "." {
		return "", nil
	}
	if !filepath.IsLocal(rel) {
		return "", fmt.Errorf("invalid path %q: outside the workspace: %w", clip.Message(p), errdefs.ErrInvalidArgument)
	}
	return rel, nil
}
