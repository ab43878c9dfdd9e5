package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
)

// hostView is what the host sees of a running sandbox.
type hostView struct {
	pidNamespace  string   // target of /proc/<pid>/ns/pid
	namespaceFile *os.File // keeps the namespace's inode number from being reused
	init          int      // host PID of the sandbox's PID 1
	cgroups       []string // cgroup directories of PID 1
}

// process is a process of a sandbox, as the host sees it.
type process struct {
	pid, uid int
	name     string
	// alive reports whether one of its threads can still run program code.
	alive bool
}

func (p process) String() string {
	state := "dead"
	if p.alive {
		state = "alive"
	}
	return fmt.Sprintf("%d %s (uid %d, %s)", p.pid, p.name, p.uid, state)
}

// findOnHost finds the sandbox on the host by starting a command with a unique argument.
func (b *box) findOnHost(t *testing.T) hostView {
	t.Helper()
	if b.suite.hidesProcesses() {
		return b.findByPID(t)
	}
	mark := randomName()
	cmd := bash("echo here; read -r _")
	cmd.Argv = append(cmd.Argv, mark)
	input, end := io.Pipe()
	defer end.Close()
	r := b.startCommand(t, cmd, guest.IO{Stdin: input})
	r.waitOutput(t, "here")
	var v hostView
	for _, pid := range hostPIDs(t) {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil &&
			bytes.HasSuffix(text, []byte(mark+"\x00")) {
			v.pidNamespace, _ = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
			v.namespaceFile, _ = os.Open(fmt.Sprintf("/proc/%d/ns/pid", pid))
		}
	}
	_ = end.Close()
	r.waitResult(t)
	for _, pid := range namespaceProcesses(t, v.pidNamespace) {
		if statusField(pid, "NSpid", -1) == "1" {
			v.init = pid
		}
	}
	if v.init == 0 {
		t.Fatalf("no PID 1 of %s found on the host, want one", v.pidNamespace)
	}
	dirs, err := cgroupsOf(v.init)
	// In some hierarchies PID 1 may be in the engine's cgroup, which is not the sandbox's.
	own := regexp.MustCompile(regexp.QuoteMeta(b.spec.ID) + "|[0-9a-f]{64}")
	for _, dir := range dirs {
		if own.MatchString(dir) {
			v.cgroups = append(v.cgroups, dir)
		}
	}
	if err != nil || len(v.cgroups) == 0 {
		t.Fatalf("cgroups of process %d = %q, %v; want a separate one and no error", v.init, dirs, err)
	}
	return v
}

// hostPIDs returns all PIDs of the host.
func hostPIDs(t *testing.T) []int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// namespaceProcesses returns the host PIDs of the processes in a PID namespace.
func namespaceProcesses(t *testing.T, ns string) []int {
	t.Helper()
	return slices.DeleteFunc(hostPIDs(t), func(pid int) bool {
		at, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
		return err != nil || at != ns
	})
}

// hostProcesses returns the host PIDs of the sandbox's processes.
func (b *box) hostProcesses(t *testing.T) []int {
	t.Helper()
	if b.suite.hidesProcesses() {
		return cgroupProcesses(b.host.cgroups)
	}
	return namespaceProcesses(t, b.host.pidNamespace)
}

// commandProcesses returns the sandbox's processes that belong to commands. Processes of uid 0 are
// the guest's, including pre-forked ones.
func (b *box) commandProcesses(t *testing.T) []process {
	t.Helper()
	if b.suite.hidesProcesses() {
		return b.commandsSeenInside(t)
	}
	var found []process
	for _, pid := range b.hostProcesses(t) {
		uid, err := strconv.Atoi(statusField(pid, "Uid", 0))
		if err != nil || uid == 0 {
			continue
		}
		found = append(found, process{pid: pid, uid: uid, name: statusField(pid, "Name", 0), alive: isAlive(pid)})
	}
	return found
}

// statusField returns a word of a line in /proc/<pid>/status, or "" if the process is gone. Word -1
// is the last.
func statusField(pid int, key string, part int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && k == key {
			parts := strings.Fields(v)
			if part < 0 {
				part += len(parts)
			}
			if part >= 0 && part < len(parts) {
				return parts[part]
			}
		}
	}
	return ""
}

// flagExiting is PF_EXITING: the kernel is tearing the thread down and it never returns to its
// program.
const flagExiting = 0x4

// isAlive reports whether a process has a thread that is neither dead nor exiting. It looks at all
// threads: the first may be a zombie while others run.
func isAlive(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return true
	}
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		if len(fields) < 7 || fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		if flags, err := strconv.ParseUint(fields[6], 10, 64); err != nil || flags&flagExiting == 0 {
			return true
		}
	}
	return false
}

// checkDead fails if a process of the user is alive now, and waits until its zombies are reaped.
func (b *box) checkDead(t *testing.T, uid int) {
	t.Helper()
	mine := func() []process {
		return slices.DeleteFunc(b.commandProcesses(t), func(p process) bool { return p.uid != uid })
	}
	for range 3 {
		if left := slices.DeleteFunc(mine(), func(p process) bool { return !p.alive }); len(left) > 0 {
			t.Errorf("%d processes alive after the reported ending, want none; among them %v",
				len(left), left[:min(len(left), 5)])
			return
		}
	}
	eventually(t, "the dead processes are reaped", func() (bool, string) {
		left := mine()
		return len(left) == 0, fmt.Sprint(left)
	})
}

// cgroupsOf returns the cgroup directories of a process, without root cgroups.
func cgroupsOf(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var dirs []string
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[2] == "/" {
			continue
		}
		for _, point := range cgroupMounts(string(mounts), parts[1]) {
			dirs = append(dirs, filepath.Join(point, parts[2]))
		}
	}
	return dirs, nil
}

// cgroupMounts returns the mount points of the cgroup hierarchy with these controllers; "" means
// version 2.
func cgroupMounts(mountinfo, controllers string) []string {
	var points []string
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		first, _, _ := strings.Cut(controllers, ",")
		if r[0] == "cgroup2" && controllers == "" || r[0] == "cgroup" && first != "" &&
			slices.Contains(strings.Split(r[2], ","), first) {
			points = append(points, l[4])
		}
	}
	return points
}

// checkRemoved checks that a removed sandbox left no process, mount, cgroup, file or object in the
// engine.
func (b *box) checkRemoved(t *testing.T) {
	t.Helper()
	// Ignore zombies: whichever process inherited them has to reap them, not the driver.
	if left := slices.DeleteFunc(b.hostProcesses(t), func(pid int) bool { return !isAlive(pid) }); b.host.init != 0 &&
		len(left) > 0 {
		t.Errorf("processes alive after removal = %v, want none", left)
	}
	for _, dir := range b.host.cgroups {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("cgroup %s after removal: %v, want it removed", dir, err)
		}
	}
	b.suite.checkNoTrace(t, b.spec.ID)
}

// checkNoTrace looks for a sandbox's id in everything that outlives its processes.
func (s *suite) checkNoTrace(t *testing.T, id string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, id) {
			t.Errorf("mount left after removal, want none: %s", line)
		}
	}
	// Do not go deeper in the state directory: it contains root filesystems.
	for top, depth := range map[string]int{s.state: 3, "/sys/fs/cgroup": 9} {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			// Ignore errors: other programs create and remove cgroups at the same time.
			if err == nil && strings.Contains(filepath.Base(path), id) {
				t.Errorf("%s exists after removal, want it removed", path)
			}
			if d != nil && d.IsDir() && strings.Count(path[len(top):], "/") >= depth {
				return fs.SkipDir
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	found, err := s.driver.List(ctx, s.owner)
	if err != nil {
		t.Error(err)
	}
	for _, f := range found {
		if f.ID == id {
			t.Errorf("List after removal has %+v, want it removed", f)
		}
	}
	if s.Leftovers == nil {
		return
	}
	for _, left := range s.Leftovers(t, id) {
		t.Errorf("the engine has %s after removal, want nothing left", left)
	}
}
