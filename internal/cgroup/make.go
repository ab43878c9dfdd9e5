package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

// Make makes a cgroup with path at ("/orchestrator/x") in every hierarchy that a cap needs, and in
// the cgroup2 tree if there is one, and sets the caps. It is for a runtime that is capped as a
// whole. It returns the directories; a process joins by writing its pid to cgroup.procs of each. An
// existing cgroup is completed. On failure Make removes what it made. It returns [ErrUnsupported]
// for a cap that this host cannot enforce.
func Make(at string, s Share) (dirs []string, err error) {
	h, err := Detect()
	if err != nil {
		return nil, err
	}
	if err := h.check(s); err != nil {
		return nil, err
	}
	if !path.IsAbs(at) || path.Clean(at) != at || at == "/" {
		return nil, fmt.Errorf("make cgroup %q: not a clean absolute path", at)
	}
	var made []string
	defer func() {
		if err == nil {
			return
		}
		for _, d := range slices.Backward(made) {
			_ = os.Remove(d) // fails unless empty, so it is safe
		}
	}()
	for _, name := range h.hierarchies(s) {
		dir, fresh, err := h.makeAt(name, at, s)
		made = append(made, fresh...)
		if err != nil {
			return nil, fmt.Errorf("make cgroup %s: %w", at, err)
		}
		dirs = append(dirs, dir)
	}
	if len(dirs) == 0 {
		return nil, fmt.Errorf("make cgroup %s: %w", at, errors.Join(ErrNone, ErrUnsupported))
	}
	return dirs, nil
}

// makeAt makes the cgroup in one hierarchy. Parents that it makes have no caps.
func (h Host) makeAt(name, at string, s Share) (dir string, made []string, err error) {
	dir = h.mounts[name].point
	parts := strings.Split(strings.TrimPrefix(at, "/"), "/")
	for _, part := range parts {
		if name == Unified && h.Mode == ModeV2 {
			if err := enableControllers(dir, h.controllers(s)); err != nil {
				return "", made, err
			}
		}
		dir = path.Join(dir, part)
		fresh, err := mkdirs(dir)
		made = append(made, fresh...)
		if err != nil {
			return "", made, err
		}
	}
	switch {
	case name == Unified && h.Mode == ModeV2:
		err = setCapsV2(dir, s)
	case name == Memory:
		err = setMemoryCapV1(path.Dir(dir), dir, s.MemoryBytes)
	case name == Pids:
		err = setPidsCap(dir, s.Pids)
	case name == CPU:
		err = setCPUCapV1(dir, s.CPU)
	}
	return dir, made, err
}

// controllers returns the controllers that the caps of a v2 cgroup need.
func (h Host) controllers(s Share) []string {
	var need []string
	for _, c := range []struct {
		name string
		want bool
	}{{Memory, s.MemoryBytes > 0}, {Pids, s.Pids > 0}, {CPU, s.CPU > 0}} {
		if c.want {
			need = append(need, c.name)
		}
	}
	return need
}
