package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// memory is a process's resident memory and its proportional share, in bytes.
type memory struct{ rss, pss int64 }

// memoryOf returns the memory of a process.
func memoryOf(pid int) (memory, error) {
	path := fmt.Sprintf("/proc/%d/smaps_rollup", pid)
	var m memory
	var err error
	if m.rss, err = kilobytes(path, "Rss"); err != nil {
		return m, err
	}
	m.pss, err = kilobytes(path, "Pss")
	return m, err
}

// kilobytes reads a "Name: 123 kB" line and returns bytes.
func kilobytes(path, name string) (int64, error) {
	v := lineOf(path, name)
	n, err := strconv.ParseInt(strings.TrimSuffix(v, " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %s is %q", path, name, v)
	}
	return n << 10, nil
}

// resetPeak resets the peak resident size of a process; peak reads it.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

// peak returns the peak resident memory of a process in bytes.
func peak(pid int) (int64, error) { return kilobytes(fmt.Sprintf("/proc/%d/status", pid), "VmHWM") }

// processorTime returns the CPU time a process has used, in steps of 10 ms.
func processorTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, after, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(after)
	if len(f) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat is short", pid)
	}
	user, err1 := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond, errors.Join(err1, err2)
}

// guest is PID 1 of a sandbox, with all processes inside.
type guest struct {
	pid int
	all []int
}

// guests finds the sandboxes of a state directory by the mount of their guest binary.
func guests(root string) ([]guest, error) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	word := []byte(filepath.Base(root) + "/")
	byNS := map[string]*guest{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		proc := "/proc/" + e.Name()
		ns, err := os.Readlink(proc + "/ns/mnt")
		if err != nil || ns == own {
			continue
		}
		mounts, err := os.ReadFile(proc + "/mountinfo")
		if err != nil || !bytes.Contains(mounts, word) {
			continue
		}
		g := byNS[ns]
		if g == nil {
			g = &guest{}
			byNS[ns] = g
		}
		g.all = append(g.all, pid)
		// PID 1 must be a guest: a container being created sees the host's mounts for a moment,
		// including ours.
		argv, err := os.ReadFile(proc + "/cmdline")
		if err != nil || !bytes.HasPrefix(argv, []byte(wire.GuestPath+"\x00")) {
			continue
		}
		if f := strings.Fields(lineOf(proc+"/status", "NSpid")); len(f) > 1 && f[len(f)-1] == "1" {
			g.pid = pid
		}
	}
	var found []guest
	for _, g := range byNS {
		if g.pid != 0 {
			found = append(found, *g)
		}
	}
	return found, nil
}

// holds reports whether every guest in some is also in all.
func holds(all, some []guest) bool {
	pids := map[int]bool{}
	for _, g := range all {
		pids[g.pid] = true
	}
	for _, g := range some {
		if !pids[g.pid] {
			return false
		}
	}
	return true
}

// mountsUnder reports whether anything is mounted below a directory.
func mountsUnder(dir string) bool {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], dir+"/") {
			return true
		}
	}
	return false
}

// parentOf returns the parent of a process.
func parentOf(pid int) (int, error) {
	return strconv.Atoi(lineOf(fmt.Sprintf("/proc/%d/status", pid), "PPid"))
}
