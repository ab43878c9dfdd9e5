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

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// The files of a workspace are a generation: a folder. What changes files
// beside overlays that are mounted on them does not touch their generation: it
// makes the next one, as a clone, changes that, and then, in one step, says that
// this is the current one. So a change is there whole or not at all, whenever
// the process dies, and an overlay's lower layer never changes under it.
//
// Generations share the inodes of what did not change. Therefore nothing writes
// to files in place while an overlay is mounted on any generation: a lease that
// may write has the workspace without overlays, and what the host writes is a
// new file under an old name.
//
// A generation that is not the current one goes with the last lease on it.

// state says which generation is the current one.
type state struct {
	Version int `json:"version"`
	Current int `json:"current"`
	// Pins are leases on another generation than the current one.
	Pins map[string]int `json:"pins,omitempty"`
	// Writer is who may be writing to files in place, if overlays have to know.
	Writer *writer `json:"writer,omitempty"`
	// History is what was changed of late, the oldest first.
	History []change `json:"history,omitempty"`
}

// writer is a time in which files are written to in place.
type writer struct {
	By    string    `json:"by"`
	Since time.Time `json:"since"` // as files of the workspace are stamped
}

// change tells who changed which paths.
type change struct {
	Generation int       `json:"generation"` // the one that it made
	By         string    `json:"by"`
	At         time.Time `json:"at"`
	Paths      [][]byte  `json:"paths"`
}

const (
	stateVersion    = 1
	maxHistory      = 64
	maxHistoryPath  = 2000     // paths of one change that are remembered
	maxHistoryBytes = 64 << 10 // and their octets: all of it has to be read again, see maxState
)

// addChange adds a change to the history, which stays bounded.
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

// lastChanges finds the last change of a path, or of a folder above it.
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

// generationName is the folder of a generation.
func generationName(n int) string {
	if n == 0 {
		return dataDir
	}
	return dataDir + "." + strconv.Itoa(n)
}

// generationOf is the number of a generation's folder.
func generationOf(name string) (int, bool) {
	if name == dataDir {
		return 0, true
	}
	text, ok := strings.CutPrefix(name, dataDir+".")
	n, err := strconv.Atoi(text)
	return n, ok && err == nil && n > 0
}

// newGeneration is a generation that is being made.
const newGeneration = newPrefix + "data"

// makeData makes an empty folder of files.
func makeData(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := os.Chown(dir, runtime.CommandUID, runtime.CommandGID); err != nil {
		return err
	}
	return os.Chmod(dir, 0o755)
}

// forkGeneration makes the next generation, has it changed, and makes it the current one.
// skip names what does not come along. After an error nothing has changed:
// *FullError if the workspace had no room for it.
func (ws *mountedWorkspace) forkGeneration(ctx context.Context, skip func(rel string) bool, alter func(dst *tree) error, c change) (err error) {
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

// buildGeneration fills a folder with what the current generation has, changed.
func (ws *mountedWorkspace) buildGeneration(ctx context.Context, dir string, skip func(rel string) bool, alter func(dst *tree) error) error {
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
		return fmt.Errorf("write the files out: %w", err)
	}
	return nil
}

// promoteGeneration makes a finished folder the current generation.
func (ws *mountedWorkspace) promoteGeneration(ctx context.Context, temp string, c change) error {
	next := ws.e.state
	next.Current, next.Pins = next.Current+1, map[string]int{}
	for lease, n := range ws.m.pinnedGenerations(ws.e) {
		next.Pins[lease] = n
	}
	c.Generation = next.Current
	next.History = append([]change(nil), next.History...)
	next.addChange(c)
	if err := ws.m.removeAll(ctx, ws.generationPath(next.Current)); err != nil { // of a crash, in between
		return err
	}
	if err := os.Rename(temp, ws.generationPath(next.Current)); err != nil {
		return err
	}
	hitFailpoint("volumes.generation.made")
	err := syncDir(ws.root) // a power cut must not leave what is told of without what is there
	if err == nil {
		err = ws.saveState(next)
	}
	if err != nil {
		return errors.Join(err, ws.m.removeAll(context.WithoutCancel(ctx), ws.generationPath(next.Current)))
	}
	hitFailpoint("volumes.generation.current")
	return nil
}

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

// readState reads what save wrote. The first generation needs no file.
func readState(content string) (state, error) {
	s := state{Version: stateVersion}
	if err := readJSON(filepath.Join(content, stateFile), maxState, &s); err != nil {
		return s, err
	}
	if s.Version != stateVersion || s.Current < 0 {
		return s, fmt.Errorf("%s is of version %d, this build reads %d: %w", stateFile, s.Version, stateVersion, errdefs.ErrFailedPrecondition)
	}
	return s, nil
}

// removeOldGenerations removes generations that nobody needs, and what was being made of one.
// While somebody writes in place it is left for later: a file's stamp changes
// with the number of its names, which would look like a change.
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
	if !ws.m.leasesRestored { // leases of an earlier process are not all known yet
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
