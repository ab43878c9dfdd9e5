package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mode is the layout of the host's cgroups.
type Mode string

// The modes. In ModeHybrid the cgroup2 tree is only used for the kill and for CPU time, even if
// some controllers are in it. A host that mixes v1 and v2 per controller reports the latter as
// absent.
const (
	ModeV1     Mode = "v1"
	ModeHybrid Mode = "hybrid"
	ModeV2     Mode = "v2"
)

// Host describes what this host's cgroups support. Memory, Pids and CPU: the cap can be enforced
// and this process may write it. Kill: the kernel has cgroup.kill (5.14); without it a kill takes
// longer but is as complete. FastMoves: the cgroup2 tree is mounted with favordynmods; without it
// the first move of a process after a pause takes 5 to 15 ms. Unified: the mount point of the
// cgroup2 tree, or "". Confined: this process sees only a part of the cgroup2 tree, as in a
// container with a cgroup namespace.
type Host struct {
	Mode                    Mode
	Memory, Pids, CPU, Kill bool
	FastMoves               bool
	Unified                 string
	Confined                bool

	mounts map[string]mount // by hierarchy; on v2 only Unified
}

// Detect inspects the mounts of the calling process. It changes nothing. It fails if no cgroups are
// mounted.
func Detect() (Host, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Host{}, fmt.Errorf("detect cgroups: %w", err)
	}
	h, err := detectLayout(parseMounts(string(text)))
	if err != nil {
		return Host{}, err
	}
	h.Kill = h.Unified != "" && writable(h.Unified) && kernelAtLeast(5, 14)
	on := func(c string) bool {
		m, ok := h.mounts[c]
		return ok && writable(m.point)
	}
	if h.Mode == ModeV2 {
		h.Confined = exists(path.Join(h.Unified, "cgroup.type")) // the top of the whole tree has none
		list, err := h.grantable()
		if err != nil {
			return Host{}, fmt.Errorf("detect cgroups: %w", err)
		}
		on = func(c string) bool { return slices.Contains(list, c) && writable(h.Unified) }
	}
	h.Memory, h.Pids, h.CPU = on(Memory), on(Pids), on(CPU)
	return h, nil
}

// grantable returns the controllers that cgroups at the top of the cgroup2 tree can have. If this
// process sees only a part of the tree, processes in its topmost cgroup keep the kernel from
// enabling another controller below it.
func (h Host) grantable() ([]string, error) {
	file := "cgroup.controllers"
	if h.Confined {
		held, err := os.ReadFile(path.Join(h.Unified, "cgroup.procs"))
		if err != nil {
			return nil, err
		}
		if len(held) > 0 {
			file = "cgroup.subtree_control"
		}
	}
	list, err := os.ReadFile(path.Join(h.Unified, file))
	return strings.Fields(string(list)), err
}

// detectLayout sorts the mounts. If a hierarchy is mounted several times, the mount that shows most
// of it wins, then the first.
func detectLayout(mounts []mount) (Host, error) {
	h := Host{mounts: map[string]mount{}}
	add := func(name string, m mount) {
		if old, ok := h.mounts[name]; !ok || len(m.root) < len(old.root) {
			h.mounts[name] = m
		}
	}
	v1 := false
	for _, m := range mounts {
		if m.v2 {
			add(Unified, m)
			continue
		}
		for _, c := range v1Names() {
			if m.has(c) {
				add(c, m)
				v1 = true
			}
		}
	}
	u, v2 := h.mounts[Unified]
	h.Unified, h.FastMoves = u.point, u.has("favordynmods")
	switch {
	case v1 && v2:
		h.Mode = ModeHybrid
	case v1:
		h.Mode = ModeV1
	case v2:
		h.Mode = ModeV2
	default:
		return Host{}, errors.New("detect cgroups: none is mounted; mount a cgroup2 file system at /sys/fs/cgroup")
	}
	return h, nil
}

// writable reports whether a directory can be written to and its mount is not read-only.
func writable(dir string) bool { return unix.Access(dir, unix.W_OK) == nil }

func kernelAtLeast(major, minor int) bool {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return false
	}
	a, rest, _ := strings.Cut(unix.ByteSliceToString(u.Release[:]), ".")
	b, _, _ := strings.Cut(rest, ".")
	x, err1 := strconv.Atoi(a)
	y, err2 := strconv.Atoi(strings.TrimRight(b, "-+abcdefghijklmnopqrstuvwxyz"))
	return err1 == nil && err2 == nil && (x > major || x == major && y >= minor)
}

// Paths maps hierarchies ([Names]; on v2 only [Unified]) to the host directories of a process's
// cgroups.
type Paths map[string]string

// Of returns the current cgroups of a process. It omits hierarchies that the host does not mount,
// or whose mount does not show the cgroup, and fails if none is left. pid is in the caller's pid
// namespace.
func Of(pid int) (Paths, error) {
	h, err := Detect()
	if err != nil {
		return nil, err
	}
	return h.pathsOf(pid)
}

func (h Host) pathsOf(pid int) (Paths, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, fmt.Errorf("cgroups of process %d: %w", pid, err)
	}
	paths := Paths{}
	for name, cgroup := range parseProc(string(text)) {
		m, ok := h.mounts[name]
		if !ok {
			continue
		}
		if dir, ok := m.cgroupDir(cgroup); ok {
			paths[name] = dir
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("cgroups of process %d: none of them is visible below the mounts of this process", pid)
	}
	return paths, nil
}
