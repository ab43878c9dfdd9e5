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

// process names one process for good: pids are used again, pid and start time together are not before the next boot, and no cgroup
// outlives that. The pid namespace is that of the caller, in which the pid is meant.
type process struct {
	space uint64
	pid   int
	start uint64
}

func lookUp(pid int) (process, error) {
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
	space, err := pidSpace("self")
	if err != nil {
		return process{}, err
	}
	return process{space: space, pid: pid, start: s.start}, nil
}

// pidSpace is the number of a process's pid namespace.
func pidSpace(pid string) (uint64, error) {
	link, err := os.Readlink("/proc/" + pid + "/ns/pid")
	if err != nil {
		return 0, fmt.Errorf("pid namespace of process %s: %w", pid, err)
	}
	return strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(link, "pid:["), "]"), 10, 64)
}

// A stand-in is the cgroup that we make at the top of a hierarchy where a sandbox has no cgroup of its own. Its name says whose it is,
// so that it can be found again and, when its owner is dead, swept away by anyone.
func (p process) standIn() string {
	return fmt.Sprintf("orchestrator-%d-%d-%d", p.space, p.pid, p.start)
}

var standInName = regexp.MustCompile(`^orchestrator-([0-9]{1,20})-([0-9]{1,10})-([0-9]{1,20})$`)

// parseStandIn is the reverse of standIn; false for a name of another form.
func parseStandIn(name string) (process, bool) {
	m := standInName.FindStringSubmatch(name)
	if m == nil {
		return process{}, false
	}
	space, err1 := strconv.ParseUint(m[1], 10, 64)
	pid, err2 := strconv.Atoi(m[2])
	start, err3 := strconv.ParseUint(m[3], 10, 64)
	p := process{space: space, pid: pid, start: start}
	return p, err1 == nil && err2 == nil && err3 == nil && p.standIn() == name
}

// ownPatience bounds how long a stranger in a sandbox's cgroup may be a process that is only passing through: an engine's exec puts its
// helper into the cgroup before that enters the pid namespace.
const ownPatience = 200 * time.Millisecond

// own says whether a cgroup belongs to one sandbox alone: it is not the top of the hierarchy, we are not in or below it, and whoever is
// in or below it descends from the sandbox's init or shares its pid namespace, if that is not ours.
func (h Host) own(name, dir string, init process) (bool, error) {
	if dir == "" || dir == h.mounts[name].point || h.inside(name, dir) {
		return false, nil
	}
	for end := time.Now().Add(ownPatience); ; time.Sleep(10 * time.Millisecond) {
		stranger, err := strangerIn(dir, init)
		if err != nil || !stranger {
			return err == nil, err
		}
		if time.Now().After(end) {
			return false, nil
		}
	}
}

// inside says whether the calling process is in the cgroup or below it.
func (h Host) inside(name, dir string) bool {
	mine, err := h.of(os.Getpid())
	return err == nil && (mine[name] == dir || strings.HasPrefix(mine[name], dir+"/"))
}

func strangerIn(name string, init process) (bool, error) {
	d, err := openDir(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for strangers in cgroup %s: %w", name, bare(err))
	}
	defer d.Close()
	pids, hidden, err := d.procs()
	if err != nil {
		return false, err
	}
	if hidden > 0 {
		return true, nil
	}
	for _, pid := range pids {
		if !kin(pid, init) {
			return true, nil
		}
	}
	below, err := d.children()
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for strangers in cgroup %s: %w", name, bare(err))
	}
	for _, child := range below {
		if bad, err := strangerIn(path.Join(name, child), init); bad || err != nil {
			return bad, err
		}
	}
	return false, nil
}

// kin says whether pid is in init's pid namespace, a namespace of its own, or descends from init. A process that is gone is kin.
func kin(pid int, init process) bool {
	theirs, err1 := pidSpace(strconv.Itoa(init.pid))
	its, err2 := pidSpace(strconv.Itoa(pid))
	if err1 == nil && err2 == nil && theirs != init.space && its == theirs {
		return true
	}
	const generations = 256 // bounds the walk should a parent change under it
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
