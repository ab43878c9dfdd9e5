package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// process identifies one process. A pid can be reused, but not with the same start time before the
// next boot, which no cgroup survives. The pid is in the caller's pid namespace.
type process struct {
	space uint64
	pid   int
	start uint64
}

func lookUpProcess(pid int) (process, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, fmt.Errorf("look up process %d: %w", pid, err)
	}
	s, err := parseStat(string(text))
	if err != nil {
		return process{}, fmt.Errorf("look up process %d: %w", pid, err)
	}
	if s.state == 'Z' || s.state == 'X' {
		return process{}, fmt.Errorf("look up process %d: it is dead: %w", pid, fs.ErrNotExist)
	}
	space, err := pidNamespace("self")
	if err != nil {
		return process{}, err
	}
	return process{space: space, pid: pid, start: s.start}, nil
}

// pidNamespace returns the id of a process's pid namespace.
func pidNamespace(pid string) (uint64, error) {
	link, err := os.Readlink("/proc/" + pid + "/ns/pid")
	if err != nil {
		return 0, fmt.Errorf("pid namespace of process %s: %w", pid, err)
	}
	return strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]"), 10, 64)
}

// standInName returns the name of the stand-in of a sandbox: the cgroup made at the top of a
// hierarchy in which the sandbox has no cgroup of its own. The name identifies the owner, so that
// the stand-in can be found again, and removed once the owner is dead.
func (p process) standInName() string {
	return fmt.Sprintf("orchestrator-%d-%d-%d", p.space, p.pid, p.start)
}

var standInPattern = regexp.MustCompile(`^orchestrator-([0-9]{1,20})-([0-9]{1,10})-([0-9]{1,20})$`)

// parseStandIn is the inverse of standInName. It returns false for other names.
func parseStandIn(name string) (process, bool) {
	m := standInPattern.FindStringSubmatch(name)
	if m == nil {
		return process{}, false
	}
	space, err1 := strconv.ParseUint(m[1], 10, 64)
	pid, err2 := strconv.Atoi(m[2])
	start, err3 := strconv.ParseUint(m[3], 10, 64)
	p := process{space: space, pid: pid, start: start}
	return p, err1 == nil && err2 == nil && err3 == nil && p.standInName() == name
}

// strangerTimeout bounds how long an unrelated process may stay in a sandbox's cgroup: an engine's
// exec adds its helper to the cgroup before the helper enters the pid namespace.
const strangerTimeout = 200 * time.Millisecond

// ownsDir reports whether a cgroup belongs to one sandbox alone: it is not the top of the
// hierarchy, this process is not in or below it, and every process in or below it descends from the
// sandbox's init or shares its pid namespace, if that is a separate one.
func (h Host) ownsDir(name, dir string, init process) (bool, error) {
	if dir == "" || dir == h.mounts[name].point || h.containsCaller(name, dir) {
		return false, nil
	}
	for end := time.Now().Add(strangerTimeout); ; time.Sleep(10 * time.Millisecond) {
		stranger, err := hasStranger(dir, init)
		if err != nil || !stranger {
			return err == nil, err
		}
		if time.Now().After(end) {
			return false, nil
		}
	}
}

// containsCaller reports whether the calling process is in the cgroup or below it.
func (h Host) containsCaller(name, dir string) bool {
	mine, err := h.pathsOf(os.Getpid())
	return err == nil && (mine[name] == dir || strings.HasPrefix(mine[name], dir+"/"))
}

func hasStranger(name string, init process) (bool, error) {
	d, err := openDir(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for strangers in cgroup %s: %w", name, unwrapPath(err))
	}
	defer d.Close()
	pids, hidden, err := d.readProcs()
	if err != nil {
		return false, err
	}
	if hidden > 0 {
		return true, nil
	}
	for _, pid := range pids {
		if !belongsTo(pid, init) {
			return true, nil
		}
	}
	below, err := d.children()
	if isGone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for strangers in cgroup %s: %w", name, unwrapPath(err))
	}
	for _, child := range below {
		if bad, err := hasStranger(path.Join(name, child), init); bad || err != nil {
			return bad, err
		}
	}
	return false, nil
}

// belongsTo reports whether pid is in init's pid namespace, if that is a separate one, or descends
// from init. It returns true for a process that has ended.
func belongsTo(pid int, init process) bool {
	theirs, err1 := pidNamespace(strconv.Itoa(init.pid))
	its, err2 := pidNamespace(strconv.Itoa(pid))
	if err1 == nil && err2 == nil && theirs != init.space && its == theirs {
		return true
	}
	const generations = 256 // bounds the walk in case parents change during it
	for range generations {
		if pid == init.pid {
			return true
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return true
		}
		s, err := parseStat(string(text))
		if err != nil || s.parent <= 1 {
			return false
		}
		pid = s.parent
	}
	return false
}
