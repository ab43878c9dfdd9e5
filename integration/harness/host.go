package harness

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Processes lists the host's processes for which match is true. One that ends
// meanwhile is left out.
func Processes(match func(pid int) bool) []int {
	entries, _ := os.ReadDir("/proc")
	var found []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && match(pid) {
			found = append(found, pid)
		}
	}
	return found
}

// procFile reads a file of a process; one that is gone is empty.
func procFile(pid int, name string) []byte {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + name)
	return b
}

// Marked lists the processes with a word in their command line, as the host
// sees them. Zombies have none.
func Marked(word string) []int {
	return Processes(func(pid int) bool {
		return pid != os.Getpid() && bytes.Contains(procFile(pid, "cmdline"), []byte(word))
	})
}

// MountsUnder lists mount points at or below a folder.
func MountsUnder(t testing.TB, dir string) []string {
	t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (fields[4] == dir || strings.HasPrefix(fields[4], dir+"/")) {
			found = append(found, fields[4])
		}
	}
	return found
}

// cgroupsNamed lists cgroup folders, of every hierarchy, whose path has one of
// the words in it.
func cgroupsNamed(words []string) []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // others come and go
		}
		if slices.ContainsFunc(words, func(w string) bool { return strings.Contains(path, w) }) {
			found = append(found, path)
		}
		return nil
	})
	return found
}

// Docker runs the engine's own command line against the engine of the tests.
func Docker(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command("docker", append([]string{"--host", Need(t, EnvDocker)}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("docker %v: %v: %s", args, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// Containerd runs the client of the tests' containerd in the service's namespace.
func Containerd(t testing.TB, args ...string) (string, error) {
	t.Helper()
	out, err := exec.Command("ctr", append([]string{"--address", Need(t, EnvContainerd), "--namespace", "orchestrator"}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}

// recorded lists the containers that containerd has on record, in any state, that
// have something of the state directory mounted.
func (s *Server) recorded() []string {
	ids, err := Containerd(s.t, "containers", "list", "--quiet")
	if err != nil {
		s.t.Fatalf("containers of containerd: %v", err)
	}
	var found []string
	for id := range strings.FieldsSeq(ids) {
		// An error is one that went meanwhile.
		if info, err := Containerd(s.t, "containers", "info", id); err == nil && strings.Contains(info, s.dir+"/") {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}

// containers lists the engine's containers, in any state, that something of
// the state directory is mounted in.
func (s *Server) containers() []string {
	if s.Runtime != "docker" {
		return nil
	}
	out := Docker(s.t, "ps", "--all", "--no-trunc", "--filter", "label=orchestrator.owner", "--format", "{{.Names}} {{.Mounts}}")
	var found []string
	for line := range strings.Lines(out) {
		if name, mounts, _ := strings.Cut(line, " "); strings.Contains(mounts, filepath.Base(s.root)+"/") {
			found = append(found, name)
		}
	}
	return found
}

// Engine lists the sandboxes that the engine has, in any state: containers, or
// for the embedded runtime what is on disk.
func (s *Server) Engine() []string {
	switch s.Runtime {
	case "containerd":
		return s.recorded()
	case "oci":
		return s.Cells()
	}
	var ids []string
	for _, name := range s.containers() {
		ids = append(ids, strings.TrimPrefix(name, "orchestrator-"))
	}
	slices.Sort(ids)
	return ids
}

// Cgroups lists cgroup folders of a sandbox that has ever been seen.
func (s *Server) Cgroups(id string) []string {
	s.mu.Lock()
	word := s.words[id]
	s.mu.Unlock()
	return cgroupsNamed(slices.DeleteFunc([]string{id, word}, func(w string) bool { return w == "" }))
}

// Seen lists all sandboxes that ever had something on the host when a process
// of the server ended.
func (s *Server) Seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.words))
}

// Inside lists the host's processes in a sandbox, its first one too.
func (s *Server) Inside(id string) []int {
	s.t.Helper()
	word := s.cgroupWord(id)
	return Processes(func(pid int) bool { return bytes.Contains(procFile(pid, "cgroup"), []byte(word)) })
}

// Commands lists the host's processes in a sandbox but for the guest's own;
// dead ones that nobody has reaped are among them.
func (s *Server) Commands(id string) []int {
	s.t.Helper()
	return slices.DeleteFunc(s.Inside(id), func(pid int) bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return err == nil && strings.HasSuffix(strings.TrimSuffix(exe, " (deleted)"), "/guest")
	})
}

// cgroupWord is what the paths of a sandbox's cgroups have in them.
func (s *Server) cgroupWord(id string) string {
	s.t.Helper()
	if s.Runtime != "docker" {
		return id
	}
	s.mu.Lock()
	word := s.words[id]
	s.mu.Unlock()
	if word == "" || word == id {
		word = Docker(s.t, "inspect", "--format", "{{.Id}}", "orchestrator-"+id)
		s.mu.Lock()
		s.words[id] = word
		s.mu.Unlock()
	}
	return word
}

// Init is the host's pid of a sandbox's first process.
func (s *Server) Init(id string) int {
	s.t.Helper()
	for _, pid := range s.Inside(id) {
		for line := range strings.Lines(string(procFile(pid, "status"))) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == "NSpid:" && f[len(f)-1] == "1" {
				return pid
			}
		}
	}
	s.t.Fatalf("sandbox %s has no first process", id)
	return 0
}

// ofState lists the processes in any sandbox of this state directory: its
// guest's binary is mounted there, and nowhere else.
func (s *Server) ofState() []int {
	own, _ := os.Readlink("/proc/self/ns/mnt")
	word := []byte(filepath.Base(s.root) + "/")
	return Processes(func(pid int) bool {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		return err == nil && ns != own && bytes.Contains(procFile(pid, "mountinfo"), word)
	})
}

// Describe tells of processes for a message: pid, command line, state.
func Describe(pids []int) string {
	var b strings.Builder
	for _, pid := range pids {
		fmt.Fprintf(&b, "\n  %d %s %s", pid, bytes.ReplaceAll(procFile(pid, "cmdline"), []byte{0}, []byte{' '}), bytes.Fields(append(procFile(pid, "stat"), " ? ? ?"...))[2])
	}
	return b.String()
}

// PeakMemory is the most resident memory that a process ever had, in bytes.
func PeakMemory(t testing.TB, pid int) int64 {
	t.Helper()
	for line := range strings.Lines(string(procFile(pid, "status"))) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatalf("process %d has no memory", pid)
	return 0
}

// Dead says whether a process is gone, or waits for nothing but its parent.
func Dead(pid int) bool {
	stat := string(procFile(pid, "stat"))
	_, after, ok := strings.Cut(stat, ") ")
	return !ok || strings.HasPrefix(after, "Z") || strings.HasPrefix(after, "X")
}
