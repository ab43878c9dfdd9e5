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

// counts is what exists at one moment. Things are kept by name, to report what is left over.
type counts struct {
	processes  map[string]string // PID → command line, without kernel threads
	zombies    map[string]string
	mounts     map[string]string
	cgroups    map[string]string
	namespaces map[string]string // network namespaces
	sockets    map[string]string // listening Unix sockets
	loops      map[string]string // loop devices in use
	files      map[string]string // files of the state directory, without images
	engine     map[string]string // objects in the engine: containers, volumes, snapshots, …

	descriptors, threads int   // of the service
	service              int64 // proportional memory of the service, bytes
	engineMemory         int64 // memory of the engine's processes
	lost                 int   // containers that the engine has lost track of
	database             int64 // state.db with its log, bytes
}

// listens are the flags of a listening Unix socket.
const listens = "00010000"

// kinds are the counts that must be the same at the end, in the order of the table.
var kinds = []string{
	"processes", "zombies", "mounts", "cgroups", "network namespaces", "unix sockets", "loop devices",
	"files in the state directory", "objects of the engine",
}

// kind returns the counted objects of a kind by name.
func (c counts) kind(name string) map[string]string {
	return map[string]map[string]string{
		"processes":                    c.processes,
		"zombies":                      c.zombies,
		"mounts":                       c.mounts,
		"cgroups":                      c.cgroups,
		"network namespaces":           c.namespaces,
		"unix sockets":                 c.sockets,
		"loop devices":                 c.loops,
		"files in the state directory": c.files,
		"objects of the engine":        c.engine,
	}[name]
}

// more returns what c has of a kind beyond before. It returns as many names as there are more,
// because names change with every sandbox.
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

// count counts what exists now; see apart. pid is the service, dir its state directory.
func count(pid int, dir string) (counts, error) {
	c := counts{
		processes: map[string]string{}, zombies: map[string]string{}, mounts: map[string]string{},
		cgroups: map[string]string{}, namespaces: map[string]string{},
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
		// Listening sockets only: connections belong to callers and are counted as descriptors.
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
		if what := strings.TrimSpace(string(text)); strings.HasPrefix(what, dir+"/") { // others use loop devices, too
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
	err = c.countService(pid)
	return c, err
}

// countService counts the descriptors, threads and memory of the service.
func (c *counts) countService(pid int) error {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	c.descriptors = len(entries)
	if entries, err = os.ReadDir(fmt.Sprintf("/proc/%d/task", pid)); err != nil {
		return err
	}
	c.threads = len(entries)
	c.service, err = memory(pid)
	return err
}

// countProcesses skips kernel threads: children of PID 2, and processes without a command line and
// without children.
func (c *counts) countProcesses() {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == 2 || pid == os.Getpid() {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // exited during the scan
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

// walk lists the directories of a tree, or everything in it. It skips mounts in a tree of files,
// which count as mounts.
func walk(dir string, dirsOnly bool, into map[string]string) {
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
			return nil //nolint:nilerr // files are removed during the walk
		}
		if d.IsDir() || !dirsOnly {
			into[path] = ""
		}
		if d.IsDir() && !dirsOnly && device(path) != top {
			return fs.SkipDir
		}
		return nil
	})
}

// memory returns a process's proportional share of memory in bytes.
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
	return 0, fmt.Errorf("/proc/%d/smaps_rollup has no Pss", pid)
}
