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

// memory is what a process holds: all that is resident, and its part of what
// is shared.
type memory struct{ rss, pss int64 }

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

// kilobytes reads a "Name:  123 kB" line, in bytes.
func kilobytes(path, name string) (int64, error) {
	v := lineOf(path, name)
	n, err := strconv.ParseInt(strings.TrimSuffix(v, " kB"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %s is %q", path, name, v)
	}
	return n << 10, nil
}

// resetPeak makes the kernel forget the highest resident size of a process,
// peak reads it.
func resetPeak(pid int) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)
}

func peak(pid int) (int64, error) { return kilobytes(fmt.Sprintf("/proc/%d/status", pid), "VmHWM") }

// processorTime is what a process has used so far, in steps of 10 ms.
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

// guest is the first process of a sandbox, with all that run inside.
type guest struct {
	pid int
	all []int
}

// guests finds the sandboxes of a state directory: their guest's binary is
// mounted there and nowhere else.
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
		// A container that is being made sees the host's mounts for a moment, ours too; so the first process has to be a guest.
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

// holds says whether all first processes of some are among others.
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

// mountsUnder says whether something is mounted below a folder.
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

// parentOf is the parent of a process.
func parentOf(pid int) (int, error) {
	return strconv.Atoi(lineOf(fmt.Sprintf("/proc/%d/status", pid), "PPid"))
}
