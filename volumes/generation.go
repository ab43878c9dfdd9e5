package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// A generation is a directory with all files of a workspace. While overlays are mounted, a change
// never modifies their generation. It clones the current generation, modifies the clone, and makes
// it current in one step. So a change is atomic even if the process is killed, and an overlay's
// lower layer never changes.
//
// Generations share the inodes of unchanged files. So nothing writes to files in place while an
// overlay is mounted on any generation. A lease that may write excludes overlays, and host programs
// replace files instead of writing in place.
//
// A generation that is not current is removed with its last lease.

// state is the content of a workspace's state.json.
type state struct {
	Version int `json:"version"`
	Current int `json:"current"`
	// Pins maps leases to their generation if it is not the current one.
	Pins map[string]int `json:"pins,omitempty"`
	// Writer is set while files may be written in place and kept overlays need to know which.
	Writer *writer `json:"writer,omitempty"`
	// History holds recent changes, oldest first.
	History []change `json:"history,omitempty"`
}

// writer describes a period in which files are written in place.
type writer struct {
	By    string    `json:"by"`
	Since time.Time `json:"since"` // on the clock of the workspace's file timestamps
}

// change records who changed which paths.
type change struct {
	Generation int       `json:"generation"` // that the change created
	By         string    `json:"by"`
	At         time.Time `json:"at"`
	Paths      [][]byte  `json:"paths"`
}

const (
	stateVersion    = 1
	maxHistory      = 64
	maxHistoryPath  = 2000     // paths recorded per change
	maxHistoryBytes = 64 << 10 // bytes of these paths; the whole history must fit in maxState
)

// addChange appends a change to the history and drops the oldest ones over the limit.
func (s *state) addChange(c change) {
	c.Paths = c.Paths[:min(len(c.Paths), maxHistoryPath)]
	for i, text := 0, 0; i < len(c.Paths); i++ {
		if text += len(c.Paths[i]); text > maxHistoryBytes {
			c.Paths = c.Paths[:i]
		}
	}
	s.History = append(s.History, c)
	if more := len(s.History) - maxHistory; more > 0 {
		s.History = append([]change(nil), s.History[more:]...)
	}
}

// lastChanges returns a function that finds the last change of a path or of a directory above it.
func (s *state) lastChanges() func(rel string) (change, bool) {
	last := sync.OnceValue(func() map[string]int {
		last := map[string]int{}
		for i, c := range s.History {
			for _, p := range c.Paths {
				last[string(p)] = i
			}
		}
		return last
	})
	return func(rel string) (change, bool) {
		found := -1
		for _, p := range append(parents(rel), rel) {
			if i, ok := last()[p]; ok {
				found = max(found, i)
			}
		}
		if found < 0 {
			return change{}, false
		}
		return s.History[found], true
	}
}

// generationName returns the directory name of generation n.
func generationName(n int) string {
	if n == 0 {
		return dataDir
	}
	return dataDir + "." + strconv.Itoa(n)
}

// generationOf returns the generation number of a directory name.
func generationOf(name string) (int, bool) {
	if name == dataDir {
		return 0, true
	}
	text, ok := strings.CutPrefix(name, dataDir+".")
	n, err := strconv.Atoi(text)
	return n, ok && err == nil && n > 0
}

// newGeneration is the directory name of a generation under construction.
const newGeneration = newPrefix + "data"

// makeData creates an empty generation directory.
func makeData(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chown(dir, runtime.CommandUID, runtime.CommandGID); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// forkGeneration clones the current generation without the paths that skip reports, modifies the
// clone with alter, and makes it current. On error nothing has changed. *FullError means that the
// workspace has no space for it.
func (ws *mountedWorkspace) forkGeneration(ctx context.Context, skip func(rel string) bool,
	alter func(dst *tree) error, c change,
) (err error) {
	temp := filepath.Join(ws.root, newGeneration)
	if err := ws.m.removeAll(ctx, temp); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ws.m.removeAll(context.WithoutCancel(ctx), temp))
		}
	}()
	if err := ws.buildGeneration(ctx, temp, skip, alter); err != nil {
		return ws.asFullError(err, forGeneration)
	}
	return ws.promoteGeneration(ctx, temp, c)
}

// buildGeneration clones the current generation into dir and modifies it.
func (ws *mountedWorkspace) buildGeneration(ctx context.Context, dir string, skip func(rel string) bool,
	alter func(dst *tree) error,
) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	src, err := openTree(ws.currentPath())
	if err != nil {
		return err
	}
	defer src.close()
	dst, err := openTree(dir)
	if err != nil {
		return err
	}
	defer dst.close()
	if err := clone(ctx, src, dst, skip, linkFile); err != nil {
		return err
	}
	if err := alter(dst); err != nil {
		return err
	}
	if err := unix.Syncfs(fdOf(dst.top)); err != nil {
		return fmt.Errorf("sync files: %w", err)
	}
	return nil
}

// promoteGeneration makes a finished directory the current generation.
func (ws *mountedWorkspace) promoteGeneration(ctx context.Context, temp string, c change) error {
	next := ws.e.state
	next.Current, next.Pins = next.Current+1, map[string]int{}
	for lease, n := range ws.m.pinnedGenerations(ws.e) {
		next.Pins[lease] = n
	}
	c.Generation = next.Current
	next.History = append([]change(nil), next.History...)
	next.addChange(c)
	// A crash before the state was saved may have left one.
	if err := ws.m.removeAll(ctx, ws.generationPath(next.Current)); err != nil {
		return err
	}
	if err := os.Rename(temp, ws.generationPath(next.Current)); err != nil {
		return err
	}
	hitFailpoint("volumes.generation.made")
	err := hostfile.SyncDir(ws.root) // Sync first: after a power cut the state must not name a missing generation.
	if err == nil {
		err = ws.saveState(next)
	}
	if err != nil {
		return errors.Join(err, ws.m.removeAll(context.WithoutCancel(ctx), ws.generationPath(next.Current)))
	}
	hitFailpoint("volumes.generation.current")
	return nil
}

// saveState writes state.json and updates the entry.
func (ws *mountedWorkspace) saveState(s state) error {
	s.Version = stateVersion
	if err := writeJSON(filepath.Join(ws.m.contentPath(ws.e.meta), stateFile), s); err != nil {
		return err
	}
	ws.m.mu.Lock()
	ws.e.state = s
	ws.m.mu.Unlock()
	return nil
}

// readState reads what saveState wrote. A missing file means the first generation.
func readState(content string) (state, error) {
	s := state{Version: stateVersion}
	if err := readJSON(filepath.Join(content, stateFile), maxState, &s); err != nil {
		return s, err
	}
	if s.Version != stateVersion || s.Current < 0 {
		return s, fmt.Errorf("unsupported version %d of %s: this build reads %d: %w",
			s.Version, stateFile, stateVersion, errdefs.ErrFailedPrecondition)
	}
	return s, nil
}

// removeOldGenerations removes generations without users, and unfinished ones. It does nothing
// while files are written in place: removing a hard link changes a file's change time, which would
// look like a write.
func (ws *mountedWorkspace) removeOldGenerations(ctx context.Context) error {
	if ws.e.state.Writer != nil {
		return nil
	}
	needed := map[int]bool{ws.e.state.Current: true}
	ws.m.mu.Lock()
	for _, h := range ws.e.holds {
		needed[h.generation] = true
	}
	for n, users := range ws.e.readers {
		needed[n] = needed[n] || users > 0
	}
	if !ws.m.leasesRestored { // Not all leases of the earlier process are known yet.
		for _, n := range ws.e.state.Pins {
			needed[n] = true
		}
	}
	ws.m.mu.Unlock()
	entries, err := os.ReadDir(ws.root)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range entries {
		n, is := generationOf(f.Name())
		if is && !needed[n] || f.Name() == newGeneration {
			errs = append(errs, ws.m.removeAll(ctx, filepath.Join(ws.root, f.Name())))
		}
	}
	return errors.Join(errs...)
}
