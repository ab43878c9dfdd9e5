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

// Processes returns the host PIDs for which match is true. It skips processes that exit during the
// scan.
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

// procFile returns a file of a process in /proc, or nothing if the process is gone.
func procFile(pid int, name string) []byte {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + name)
	return b
}

// Marked returns the host PIDs with a word in their command line. Zombies have none.
func Marked(word string) []int {
	return Processes(func(pid int) bool {
		return pid != os.Getpid() && bytes.Contains(procFile(pid, "cmdline"), []byte(word))
	})
}

// MountsUnder returns the mount points at or below a directory.
func MountsUnder(tb testing.TB, dir string) []string {
	tb.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		tb.Fatal(err)
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

// cgroupsNamed returns the cgroup directories of all hierarchies whose path contains one of the
// words.
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

// Docker runs the docker command against the test engine.
func Docker(tb testing.TB, args ...string) string {
	tb.Helper()
	cmd := exec.Command("docker", append([]string{"--host", Need(tb, EnvDocker)}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		tb.Fatalf("docker %v: %v: %s", args, err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// Containerd runs ctr against the test containerd in the service's namespace.
func Containerd(tb testing.TB, args ...string) (string, error) {
	tb.Helper()
	out, err := exec.Command("ctr",
		append([]string{"--address", Need(tb, EnvContainerd), "--namespace", "orchestrator"}, args...)...).Output()
	return strings.TrimSpace(string(out)), err
}

// recorded returns the containers in containerd, in any state, that mount something of the state
// directory.
func (s *Server) recorded() []string {
	ids, err := Containerd(s.t, "containers", "list", "--quiet")
	if err != nil {
		s.t.Fatalf("containers of containerd: %v", err)
	}
	var found []string
	for id := range strings.FieldsSeq(ids) {
		// An error means that the container was removed in between.
		if info, err := Containerd(s.t, "containers", "info", id); err == nil && strings.Contains(info, s.dir+"/") {
			found = append(found, id)
		}
	}
	slices.Sort(found)
	return found
}

// containers returns the engine's containers, in any state, that mount something of the state
// directory.
func (s *Server) containers() []string {
	if s.Runtime != "docker" {
		return nil
	}
	out := Docker(s.t, "ps", "--all", "--no-trunc", "--filter", "label=orchestrator.owner", "--format",
		"{{.Names}} {{.Mounts}}")
	var found []string
	for line := range strings.Lines(out) {
		if name, mounts, _ := strings.Cut(line, " "); strings.Contains(mounts, filepath.Base(s.root)+"/") {
			found = append(found, name)
		}
	}
	return found
}

// Engine returns the ids of sandboxes that the engine has, in any state: containers or, for the
// embedded runtime, directories on disk.
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

// Cgroups returns the cgroup directories of a sandbox that note has recorded.
func (s *Server) Cgroups(id string) []string {
	s.mu.Lock()
	word := s.words[id]
	s.mu.Unlock()
	return cgroupsNamed(slices.DeleteFunc([]string{id, word}, func(w string) bool { return w == "" }))
}

// Seen returns the ids of all sandboxes that had anything on the host when a process of the server
// ended.
func (s *Server) Seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.words))
}

// Inside returns the host PIDs of a sandbox, including its PID 1.
func (s *Server) Inside(id string) []int {
	s.t.Helper()
	word := s.cgroupWord(id)
	return Processes(func(pid int) bool { return bytes.Contains(procFile(pid, "cgroup"), []byte(word)) })
}

// Commands returns the host PIDs of a sandbox without the guest's, including zombies.
func (s *Server) Commands(id string) []int {
	s.t.Helper()
	return slices.DeleteFunc(s.Inside(id), func(pid int) bool {
		exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return err == nil && strings.HasSuffix(strings.TrimSuffix(exe, " (deleted)"), "/guest")
	})
}

// cgroupWord returns the word that the paths of a sandbox's cgroups contain.
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

// Init returns the host PID of a sandbox's PID 1.
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

// ofState returns the host PIDs in any sandbox of this state directory, recognised by the mount of
// its guest binary.
func (s *Server) ofState() []int {
	own, _ := os.Readlink("/proc/self/ns/mnt")
	word := []byte(filepath.Base(s.root) + "/")
	return Processes(func(pid int) bool {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		return err == nil && ns != own && bytes.Contains(procFile(pid, "mountinfo"), word)
	})
}

// Describe returns the PIDs with their command lines and states, for messages.
func Describe(pids []int) string {
	var b strings.Builder
	for _, pid := range pids {
		fmt.Fprintf(&b, "\n  %d %s %s", pid, bytes.ReplaceAll(procFile(pid, "cmdline"), []byte{0}, []byte{' '}),
			bytes.Fields(append(procFile(pid, "stat"), " ? ? ?"...))[2])
	}
	return b.String()
}

// PeakMemory returns the peak resident memory of a process in bytes.
func PeakMemory(tb testing.TB, pid int) int64 {
	tb.Helper()
	for line := range strings.Lines(string(procFile(pid, "status"))) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "VmHWM:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return kib << 10
		}
	}
	tb.Fatalf("process %d has no memory", pid)
	return 0
}

// Dead reports whether a process is gone or a zombie.
func Dead(pid int) bool {
	stat := string(procFile(pid, "stat"))
	_, after, ok := strings.Cut(stat, ") ")
	return !ok || strings.HasPrefix(after, "Z") || strings.HasPrefix(after, "X")
}
