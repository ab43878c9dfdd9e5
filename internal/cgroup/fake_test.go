package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeTree writes files to a temporary directory and opens it as if cgroups were mounted there.
func fakeTree(t *testing.T, files map[string]string) *Tree {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := openTree(root, func(dir) (bool, error) { return true, nil })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}

func TestUsageReadsAvailableCounters(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  Usage
	}{
		"v1": {map[string]string{
			"memory/cgroup.procs": "", "memory/memory.max_usage_in_bytes": "4096\n",
			"memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
			"pids/cgroup.procs":         "", "pids/pids.events": "max 5\n", "pids/pids.peak": "9\n",
			"cpu/cgroup.procs": "", "cpu/cpuacct.usage_user": "2000\n", "cpu/cpuacct.usage_sys": "1000\n",
		}, Usage{CPUUser: 2000, CPUSystem: 1000, MemoryPeak: 4096, PidsPeak: 9, OOMKills: 3, PidsDenied: 5}},
		"hybrid": {map[string]string{
			"memory/cgroup.procs": "", "memory/memory.max_usage_in_bytes": "4096\n", "memory/memory.oom_control": "oom_kill 1\n",
			"pids/cgroup.procs": "", "pids/pids.events": "max 0\n",
			"unified/cgroup.procs": "", "unified/cpu.stat": "usage_usec 30\nuser_usec 20\nsystem_usec 10\n",
		}, Usage{CPUUser: 20 * time.Microsecond, CPUSystem: 10 * time.Microsecond, MemoryPeak: 4096, OOMKills: 1}},
		"v2": {map[string]string{
			"unified/cgroup.procs": "", "unified/cpu.stat": "usage_usec 30\nuser_usec 20\nsystem_usec 10\n",
			"unified/memory.peak": "8192\n", "unified/memory.events": "low 0\noom 2\noom_kill 2\noom_group_kill 1\n",
			"unified/pids.max": "20\n", "unified/pids.peak": "20\n", "unified/pids.events": "max 7\n",
		}, Usage{CPUUser: 20 * time.Microsecond, CPUSystem: 10 * time.Microsecond, MemoryPeak: 8192, PidsPeak: 20,
			OOMKills: 2, PidsDenied: 7}},
		"an old kernel": {map[string]string{"memory/cgroup.procs": "", "memory/memory.oom_control": "under_oom 0\n"},
			Usage{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := fakeTree(t, tt.files).Usage()
			if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
				t.Errorf("Usage: %v; want no error and (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestUsageOfRemovedGroupIsAnError(t *testing.T) {
	if _, err := fakeTree(t, map[string]string{"memory/other": ""}).Usage(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Usage of a removed group = %v, want %v", err, fs.ErrNotExist)
	}
}

func TestOpenTreeIgnoresPlainDirectories(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenTree(filepath.Join(dir, "missing")); !errors.Is(err, ErrNone) {
		t.Errorf("OpenTree of a missing directory = %v, want %v", err, ErrNone)
	}
	for _, name := range Names() {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenTree(dir); !errors.Is(err, ErrNone) {
		t.Errorf("OpenTree of plain directories = %v, want %v", err, ErrNone)
	}
}

func TestOpenTreeRefusesLinks(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/sys/fs/cgroup", filepath.Join(dir, Unified)); err != nil {
		t.Fatal(err)
	}
	if tree, err := OpenTree(dir); err == nil {
		tree.Close()
		t.Error("OpenTree followed a symbolic link out of its directory, want an error")
	}
}

func TestMakeRefusesInvalidNames(t *testing.T) {
	tree := fakeTree(t, map[string]string{"memory/cgroup.procs": "", "pids/cgroup.procs": ""})
	for _, bad := range []string{"", "..", ".", "a/b", "/a", "A", "a b", "a\x00", "ä", "a.b", strings.Repeat("a", 65)} {
		if g, err := tree.Make(bad); err == nil {
			t.Errorf("Make(%q) = group %s, want an error", bad, g.Name())
		}
	}
	g, err := tree.Make("exec-1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Make("exec-1"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second Make of a name = %v, want %v", err, fs.ErrExist)
	}
	for range 2 {
		if err := g.Remove(); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
}

func TestMakeRollsBackOnError(t *testing.T) {
	tree := fakeTree(t, map[string]string{"memory/cgroup.procs": "", "pids/x/cgroup.procs": ""})
	if _, err := tree.Make("x"); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("Make = %v, want %v", err, fs.ErrExist)
	}
	if tree.dirs[0].has("x") {
		t.Error("the group is left in the first hierarchy, want it removed")
	}
	if !tree.dirs[1].has("x") {
		t.Error("a group that was there before is removed, want it kept")
	}
}

func TestAddRefusesSpecialPids(t *testing.T) {
	tree := fakeTree(t, map[string]string{"memory/cgroup.procs": ""})
	g, err := tree.Make("x")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{-1, 0, 1} {
		if err := g.Add(pid); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Add(%d) = %v, want an error other than %v", pid, err, fs.ErrNotExist)
		}
	}
}

func TestUnenforceableShareIsRefused(t *testing.T) {
	none := Host{Mode: ModeHybrid}
	for name, s := range map[string]Share{Memory: {MemoryBytes: 1 << 20}, Pids: {Pids: 1}, CPU: {CPU: 0.5}} {
		err := none.check(s)
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), name+" controller") ||
			!strings.Contains(err.Error(), "mount") {
			t.Errorf("check(%+v) = %v, want Unsupported that names the %s controller and a mount", s, err, name)
		}
	}
	if err := none.check(Share{}); err != nil {
		t.Errorf("check of a share without caps = %v, want no error", err)
	}
	all := Host{Memory: true, Pids: true, CPU: true}
	for _, s := range []Share{{MemoryBytes: -1}, {Pids: -1}, {CPU: -1}, {CPU: 0.001}, {CPU: 1e30}} {
		if err := all.check(s); err == nil {
			t.Errorf("check(%+v) = nil, want an error", s)
		}
	}
}

func TestGrantableControllers(t *testing.T) {
	for name, tt := range map[string]struct {
		confined bool
		procs    string
		want     []string
	}{
		"top of the tree":                     {false, "1\n", []string{"cpu", "memory", "pids"}},
		"own part, empty":                     {true, "", []string{"cpu", "memory", "pids"}},
		"own part, with processes at its top": {true, "7\n", []string{"memory"}},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{
			"cgroup.controllers": "cpu memory pids\n", "cgroup.subtree_control": "memory\n", "cgroup.procs": tt.procs,
		} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := Host{Mode: ModeV2, Unified: dir, Confined: tt.confined}.grantable()
		if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
			t.Errorf("%s: error %v; controllers (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestFixForConfinedHost(t *testing.T) {
	h := Host{Mode: ModeV2, Unified: t.TempDir(), Confined: true}
	if got, want := h.Fix(CPU), "host's cgroup namespace"; !strings.Contains(got, want) {
		t.Errorf("Fix(%q) = %q, want it to contain %q", CPU, got, want)
	}
}
