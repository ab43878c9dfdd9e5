package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
)

// Make makes a cgroup of that path ("/orchestrator/x") in every hierarchy that a cap needs, and in the cgroup2 tree where there is one, with the
// caps in force before anybody is in it: for a runtime that is to be capped as a whole, itself included. It returns the directories; whoever is
// to be in it writes itself to cgroup.procs of each. One that is there is completed. When it fails it removes what it made.
//
// [ErrUnsupported] for a cap that this host cannot enforce.
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
			_ = os.Remove(d) // only when empty, so it harms nobody
		}
	}()
	for _, name := range h.wanted(s) {
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

// makeAt makes it in one hierarchy. Those above it that are made have no caps.
func (h Host) makeAt(name, at string, s Share) (dir string, made []string, err error) {
	dir = h.mounts[name].point
	parts := strings.Split(strings.TrimPrefix(at, "/"), "/")
	for _, part := range parts {
		if name == Unified && h.Mode == ModeV2 {
			if err := enable(dir, h.controllers(s)); err != nil {
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
		err = capV2(dir, s)
	case name == Memory:
		err = capMemoryV1(path.Dir(dir), dir, s.MemoryBytes)
	case name == Pids:
		err = capPids(dir, s.Pids)
	case name == CPU:
		err = capCPUV1(dir, s.CPU)
	}
	return dir, made, err
}

// controllers are those that the caps of a v2 cgroup need.
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
