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

// Mode says how the host's cgroups are laid out.
type Mode string

// The modes. With v1 controllers beside the cgroup2 tree (ModeHybrid), that tree serves only the kill and CPU time here, even if some
// controllers are in it: a host that mixes the two per controller reports those as absent.
const (
	ModeV1     Mode = "v1"
	ModeHybrid Mode = "hybrid"
	ModeV2     Mode = "v2"
)

// Host says what this host's cgroups can do. Memory, Pids and CPU: the cap can be enforced, and we may write there. Kill: the kernel has
// cgroup.kill (5.14), without which a kill takes longer but is as complete. FastMoves: the cgroup2 tree is mounted with favordynmods;
// without it the first move of a process after a pause waits 5-15 ms for the kernel. Unified: mount point of the cgroup2 tree, or "".
type Host struct {
	Mode                    Mode
	Memory, Pids, CPU, Kill bool
	FastMoves               bool
	Unified                 string

	mounts map[string]mount // hierarchy → its mount; on v2 only Unified
}

// Detect looks at the mounts of the calling process. It changes nothing. An error means that no cgroups are mounted at all.
func Detect() (Host, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Host{}, fmt.Errorf("detect cgroups: %w", err)
	}
	h, err := layout(parseMounts(string(text)))
	if err != nil {
		return Host{}, err
	}
	h.Kill = h.Unified != "" && writable(h.Unified) && kernelAtLeast(5, 14)
	on := func(c string) bool {
		m, ok := h.mounts[c]
		return ok && writable(m.point)
	}
	if h.Mode == ModeV2 {
		list, err := os.ReadFile(path.Join(h.Unified, "cgroup.controllers"))
		if err != nil {
			return Host{}, fmt.Errorf("detect cgroups: %w", err)
		}
		have := strings.Fields(string(list))
		on = func(c string) bool { return slices.Contains(have, c) && writable(h.Unified) }
	}
	h.Memory, h.Pids, h.CPU = on(Memory), on(Pids), on(CPU)
	return h, nil
}

// layout sorts the mounts. Of several mounts of one hierarchy the one that shows most of it wins, and then the first.
func layout(mounts []mount) (Host, error) {
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

// writable asks for a directory that may be written to, on a mount that is not read-only.
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

// Paths are the host directories of a process's cgroups by hierarchy ([Names]; on v2 only [Unified]).
type Paths map[string]string

// Of returns the cgroups a process is in now. A hierarchy that the host does not mount, or whose mount does not show the process's cgroup, is left
// out; none at all is an error. pid is in the caller's pid namespace.
func Of(pid int) (Paths, error) {
	h, err := Detect()
	if err != nil {
		return nil, err
	}
	return h.of(pid)
}

func (h Host) of(pid int) (Paths, error) {
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
		if dir, ok := m.dir(cgroup); ok {
			paths[name] = dir
		}
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("cgroups of process %d: none of them is visible below the mounts of this process", pid)
	}
	return paths, nil
}
