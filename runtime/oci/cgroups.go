package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cgroupsPath is a sandbox's cgroup in every hierarchy.
func cgroupsPath(id string) string { return "/orchestrator/" + id }

// cgroupPoints are the mount points of all cgroup hierarchies, from the text of a mountinfo file.
func cgroupPoints(mountinfo string) []string {
	var points []string
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(line, " - ")
		l := strings.Fields(left)
		if ok && len(l) > 4 && (strings.HasPrefix(right, "cgroup ") || strings.HasPrefix(right, "cgroup2 ")) {
			points = append(points, l[4])
		}
	}
	return points
}

// cgroupsOf are the cgroups that a sandbox still has.
func cgroupsOf(id string) ([]string, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cgroups of sandbox %s: %w", id, err)
	}
	var dirs []string
	for _, point := range cgroupPoints(string(text)) {
		if dir := path.Join(point, cgroupsPath(id)); exists(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// removeCgroups kills whatever is in a sandbox's cgroups and removes them. The runtime does so as well; this is for what it leaves, and for
// what it never finished.
func removeCgroups(ctx context.Context, id string) error {
	for {
		dirs, err := cgroupsOf(id)
		if err != nil || len(dirs) == 0 {
			return err
		}
		var errs []error
		for _, dir := range dirs {
			errs = append(errs, removeTree(dir, cgroupsPath(id)))
		}
		if err = errors.Join(errs...); err == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// removeTree kills and removes a cgroup with all below it; the error of one round says what is still there.
func removeTree(dir, within string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// What is frozen does not die.
	for name, on := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
		if file := filepath.Join(dir, name); exists(file) {
			_ = os.WriteFile(file, []byte(on), 0) // the kill shows whether it worked
		}
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name()), within); err != nil {
				return err
			}
		}
	}
	if err := killAll(filepath.Join(dir, "cgroup.procs"), within); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// killAll kills the processes of a cgroup.procs file. That each is in the sandbox's cgroups is looked at again once it is held.
func killAll(procs, within string) error {
	text, err := os.ReadFile(procs)
	if err != nil {
		return nil // gone, or a domain that lists none; rmdir tells
	}
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 1 {
			continue
		}
		p, err := openProcess(pid)
		if err != nil {
			continue // dead by now, or the next round tells
		}
		if inCgroup(pid, within) {
			err = p.kill()
		}
		p.close()
		if err != nil {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}
