package ocidriver

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

	"github.com/moby/sys/mountinfo"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// CgroupsPath returns the path of a sandbox's cgroup in every hierarchy.
func CgroupsPath(id string) string { return "/orchestrator/" + id }

// MakeGVisorCgroups makes the cgroups of a sandbox of class gvisor, which runsc has to join, and
// returns their directories. FailedPrecondition: this host has cgroups that cannot cap it.
func (d Driver) MakeGVisorCgroups(id string, l runtime.Limits) ([]string, error) {
	caps := ocispec.GVisorCaps(l)
	dirs, err := cgroup.Make(CgroupsPath(id),
		cgroup.Share{MemoryBytes: caps.MemoryBytes, Pids: caps.Pids, CPU: caps.CPUs})
	if errors.Is(err, cgroup.ErrUnsupported) {
		return nil, d.Unfit(err.Error(), "a sandbox of class gvisor is capped by its cgroup alone")
	}
	return dirs, err
}

// CgroupsOf returns the directories of the cgroups that a sandbox still has, in all hierarchies.
func CgroupsOf(id string) ([]string, error) {
	hierarchies, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, fmt.Errorf("cgroups of sandbox %s: %w", id, err)
	}
	var dirs []string
	for _, m := range hierarchies {
		if dir := path.Join(m.Mountpoint, CgroupsPath(id)); Exists(dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs, nil
}

// RemoveCgroups kills whatever is in a sandbox's cgroups and removes them. The OCI runtime does
// this too; RemoveCgroups handles what it leaves behind, and what it never finished.
func RemoveCgroups(ctx context.Context, id string) error {
	for {
		dirs, err := CgroupsOf(id)
		if err != nil || len(dirs) == 0 {
			return err
		}
		var errs []error
		for _, dir := range dirs {
			errs = append(errs, removeTree(dir, CgroupsPath(id)))
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

// removeTree kills the processes in a cgroup and below it, and removes the directories. The error
// of one round names what remains.
func removeTree(dir, within string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// A frozen process does not die.
	for name, on := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
		if file := filepath.Join(dir, name); Exists(file) {
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
	if err := killProcs(filepath.Join(dir, "cgroup.procs"), within); err != nil {
		return err
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// killProcs kills the processes of a cgroup.procs file. It checks that a process is in the
// sandbox's cgroups again once it holds the process.
func killProcs(procs, within string) error {
	text, err := os.ReadFile(procs)
	if err != nil {
		return nil // gone, or a domain that lists none; rmdir reports
	}
	for field := range strings.FieldsSeq(string(text)) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 1 {
			continue
		}
		p, err := Open(pid)
		if err != nil {
			continue // dead by now, or the next round reports
		}
		if InCgroup(pid, within) {
			err = p.Kill()
		}
		p.Close()
		if err != nil {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
	}
	return nil
}

// InCgroup reports whether a process is in a cgroup, or below it, in any hierarchy.
func InCgroup(pid int, group string) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		// The runtime may have put our path below its own cgroup.
		if len(parts) == 3 && strings.Contains(parts[2]+"/", group+"/") {
			return true
		}
	}
	return false
}

// killedForMemory reports whether the kernel killed something in the sandbox's cgroup for memory.
func killedForMemory(id string) bool {
	dirs, err := CgroupsOf(id)
	if err != nil {
		return false
	}
	for _, dir := range dirs {
		for _, name := range []string{"memory.events", "memory.oom_control"} {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(text)) {
				if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok && n != "0" {
					return true
				}
			}
		}
	}
	return false
}
