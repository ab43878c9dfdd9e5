package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// limited returns a group in hierarchies that are plain directories with these files.
func limited(t *testing.T, files map[string]string) (*Group, func(name string) string) {
	t.Helper()
	tree := fakeTree(t, files)
	g := &Group{name: "g", tree: tree}
	for _, d := range tree.dirs {
		child, err := d.open("g")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { child.Close() })
		g.dirs = append(g.dirs, hierarchyDir{dir: child, kind: d.kind})
	}
	return g, func(name string) string {
		kind, file, _ := strings.Cut(name, "/")
		for _, d := range tree.dirs {
			if d.kind == kind {
				b, err := os.ReadFile(filepath.Join(d.file.Name(), file))
				if err != nil {
					t.Fatal(err)
				}
				return string(b)
			}
		}
		t.Fatalf("hierarchy %s not found", kind)
		return ""
	}
}

// After a shorter text, a plain file keeps the rest of its old content. The kernel's files do not.
func starts(t *testing.T, name, got, want string) {
	t.Helper()
	if !strings.HasPrefix(got, want) {
		t.Errorf("%s is %q, want %q", name, got, want)
	}
}

func TestLimitAppliesToOneGroup(t *testing.T) {
	for name, tt := range map[string]struct{ files, want map[string]string }{
		"v1": {
			map[string]string{
				"memory/g/memory.limit_in_bytes": "", "memory/g/memory.memsw.limit_in_bytes": "",
				"memory/g/memory.kmem.tcp.limit_in_bytes": "999999999999",
				"cpu/g/cpu.cfs_period_us":                 "", "cpu/g/cpu.cfs_quota_us": "",
			},
			map[string]string{
				"memory/g/memory.limit_in_bytes": "67108864", "memory/g/memory.memsw.limit_in_bytes": "67108864",
				"memory/g/memory.kmem.tcp.limit_in_bytes": "16777216",
				"cpu/g/cpu.cfs_period_us":                 "100000", "cpu/g/cpu.cfs_quota_us": "50000",
			},
		},
		"v1 without accounting of swap": {
			map[string]string{"memory/g/memory.limit_in_bytes": "", "memory/g/memory.swappiness": "60",
				"cpu/g/cpu.cfs_period_us": "", "cpu/g/cpu.cfs_quota_us": ""},
			map[string]string{"memory/g/memory.limit_in_bytes": "67108864", "memory/g/memory.swappiness": "0"},
		},
		"v2": {
			map[string]string{"unified/g/memory.max": "", "unified/g/memory.swap.max": "", "unified/g/cpu.max": ""},
			map[string]string{"unified/g/memory.max": "67108864", "unified/g/memory.swap.max": "0",
				"unified/g/cpu.max": "50000 100000"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, read := limited(t, tt.files)
			if err := g.Limit(64<<20, 0.5); err != nil {
				t.Fatal(err)
			}
			for file, want := range tt.want {
				starts(t, file, read(file), want)
			}
		})
	}
}

func TestLimitEnablesCPUController(t *testing.T) {
	g, read := limited(t, map[string]string{
		"unified/cgroup.controllers": "cpuset cpu memory pids\n", "unified/cgroup.subtree_control": "",
		"unified/g/memory.max": "",
	})
	// The kernel would create the file now.
	if err := g.Limit(0, 0.5); err == nil {
		t.Error("Limit without a cpu.max = nil, want an error")
	}
	starts(t, "subtree_control", read("unified/cgroup.subtree_control"), "+cpu")
}

func TestUnenforceableLimitIsRefused(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"no controllers": {"unified/g/cgroup.procs": "", "unified/cgroup.controllers": "memory pids\n"},
		"pids alone":     {"pids/g/cgroup.procs": ""},
		"no quotas":      {"cpu/g/cpu.shares": ""},
	} {
		g, _ := limited(t, files)
		if err := g.Limit(0, 1); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: Limit of CPUs = %v, want %v", name, err, ErrUnsupported)
		}
		if err := g.Limit(1<<20, 0); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: Limit of memory = %v, want %v", name, err, ErrUnsupported)
		}
		if err := g.Limit(0, 0); err != nil {
			t.Errorf("%s: Limit of nothing = %v, want no error", name, err)
		}
	}
}
