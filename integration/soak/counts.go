//go:build integration

package soak

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// counts is what there is at one moment. Things are kept by name, so that
// what is left over can be told.
type counts struct {
	processes  map[string]string // pid → command line; kernel threads left out
	zombies    map[string]string
	mounts     map[string]string
	cgroups    map[string]string
	namespaces map[string]string // of networks
	sockets    map[string]string // unix sockets that listen
	loops      map[string]string // loop devices in use
	files      map[string]string // of the state directory but for images
	engine     map[string]string // what the engine has: containers, volumes, snapshots, …

	descriptors, threads int   // of the service
	service              int64 // its proportional memory, bytes
	engineMemory         int64 // that of the engine's processes
	lost                 int   // containers that the engine has lost track of
	database             int64 // state.db with its log, bytes
}

// listens are the flags of a unix socket that takes connections.
const listens = "00010000"

// kinds are the things that have to be the same at the end, in the order of the
// table.
var kinds = []string{"processes", "zombies", "mounts", "cgroups", "network namespaces", "unix sockets", "loop devices", "files in the state directory", "objects of the engine"}

func (c counts) kind(name string) map[string]string {
	return map[string]map[string]string{
		"processes": c.processes, "zombies": c.zombies, "mounts": c.mounts, "cgroups": c.cgroups, "network namespaces": c.namespaces,
		"unix sockets": c.sockets, "loop devices": c.loops, "files in the state directory": c.files, "objects of the engine": c.engine,
	}[name]
}

// more lists what c has of a kind beyond what was there before: as many as there
// are more, for names change with every sandbox.
func (c counts) more(before counts, kind string) []string {
	was, is := before.kind(kind), c.kind(kind)
	if len(is) <= len(was) {
		return nil
	}
	var list []string
	for name, what := range is {
		if _, ok := was[name]; !ok {
			list = append(list, strings.TrimSpace(name+" "+what))
		}
	}
	slices.Sort(list)
	return list
}

// count looks at what there is, see apart. pid is the service, dir its state directory.
func count(pid int, dir string) (counts, error) {
	c := counts{
		processes: map[string]string{}, zombies: map[string]string{}, mounts: map[string]string{}, cgroups: map[string]string{}, namespaces: map[string]string{},
		sockets: map[string]string{}, loops: map[string]string{}, files: map[string]string{}, engine: map[string]string{},
	}
	c.countProcesses()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 {
			c.mounts[f[0]] = f[4]
		}
	}
	listening, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return c, err
	}
	for line := range strings.Lines(string(listening)) {
		// Those that listen: connections are the callers', and counted as descriptors.
		if f := strings.Fields(line); len(f) > 7 && f[3] == listens {
			c.sockets[f[6]] = f[7]
		}
	}
	backing, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return c, err
	}
	for _, file := range backing {
		text, _ := os.ReadFile(file)
		if what := strings.TrimSpace(string(text)); strings.HasPrefix(what, dir+"/") { // others have some too
			c.loops[file] = what
		}
	}
	walk("/sys/fs/cgroup", true, c.cgroups)
	dropForeign(c.cgroups)
	walk(dir, false, c.files)
	for name := range c.files {
		rel, _ := filepath.Rel(dir, name)
		if first, _, _ := strings.Cut(rel, "/"); first == "images" {
			delete(c.files, name)
		}
	}
	for _, name := range []string{"state.db", "state.db-wal", "audit.db", "audit.db-wal"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			c.database += info.Size()
		}
	}
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return c, err
	}
	c.descriptors = len(entries)
	if entries, err = os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)); err != nil {
		return c, err
	}
	c.threads = len(entries)
	c.service, err = memory(pid)
	return c, err
}

// countProcesses leaves out what the kernel runs for itself: children of pid 2,
// and those without a command line that no other process is the parent of.
func (c *counts) countProcesses() {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 2 || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // gone meanwhile
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		f := strings.Fields(after)
		if len(f) < 2 || f[1] == "2" {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		what := string(bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte{' '}))
		if f[0] == "Z" {
			c.zombies[e.Name()] = string(stat)
			continue
		}
		c.processes[e.Name()] = what
		if ns, err := os.Readlink("/proc/" + e.Name() + "/ns/net"); err == nil {
			c.namespaces[ns] = what
		}
	}
}

// walk lists a tree: folders alone, or everything; not what is mounted in a tree
// of files, which is counted as a mount.
func walk(dir string, folders bool, into map[string]string) {
	device := func(path string) uint64 {
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil {
			return 0
		}
		return uint64(st.Dev)
	}
	top := device(dir)
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // what goes meanwhile is not there
		}
		if d.IsDir() || !folders {
			into[path] = ""
		}
		if d.IsDir() && !folders && device(path) != top {
			return fs.SkipDir
		}
		return nil
	})
}

// memory is a process's proportional share, in bytes.
func memory(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Pss:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("process %d tells no memory", pid)
}
