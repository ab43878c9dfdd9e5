package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestFiguresCoverWholeSandbox(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  Figures
	}{
		"v1": {map[string]string{
			"memory/cgroup.procs": "", "memory/memory.usage_in_bytes": "9000\n", "memory/memory.limit_in_bytes": "65536\n",
			"memory/memory.stat": "inactive_file 1\ntotal_inactive_file 1000\n",
			"pids/cgroup.procs":  "", "pids/pids.current": "4\n", "pids/pids.max": "20\n",
			"cpu/cgroup.procs": "", "cpu/cpuacct.usage": "3000\n",
		}, Figures{CPU: 3000, Memory: 8000, MemoryLimit: 65536, Pids: 4, PidsLimit: 20}},
		"a stand-in, whose commands have the caps": {map[string]string{
			"memory/cgroup.procs": "", "memory/memory.usage_in_bytes": "9000\n",
			"memory/memory.limit_in_bytes":      "9223372036854771712\n",
			"memory/cmds/memory.limit_in_bytes": "4096\n",
			"pids/cgroup.procs":                 "", "pids/pids.current": "4\n", "pids/pids.max": "max\n",
			"pids/cmds/pids.max":   "7\n",
			"unified/cgroup.procs": "", "unified/cpu.stat": "usage_usec 30\nuser_usec 20\nsystem_usec 10\n",
		}, Figures{CPU: 30 * time.Microsecond, Memory: 9000, MemoryLimit: 4096, Pids: 4, PidsLimit: 7}},
		"v2": {map[string]string{
			"unified/cgroup.procs": "", "unified/cpu.stat": "usage_usec 30\n", "unified/memory.current": "9000\n",
			"unified/memory.stat": "inactive_file 500\n",
			"unified/memory.max":  "65536\n", "unified/pids.current": "3\n", "unified/pids.max": "20\n",
		}, Figures{CPU: 30 * time.Microsecond, Memory: 8500, MemoryLimit: 65536, Pids: 3, PidsLimit: 20}},
		"no caps at all": {map[string]string{
			"memory/cgroup.procs": "", "memory/memory.usage_in_bytes": "1\n",
			"memory/memory.limit_in_bytes": "9223372036854771712\n",
			"memory/memory.stat":           "total_inactive_file 5\n",
		}, Figures{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := delegatedBelow(t, tt.files).Figures()
			if err != nil || got != tt.want {
				t.Errorf("Figures = %+v, %v; want %+v and no error", got, err, tt.want)
			}
		})
	}
}

func TestFiguresOfRemovedSandboxAreAnError(t *testing.T) {
	emptied := delegatedBelow(t, map[string]string{"memory/other": ""})
	removed := delegatedBelow(t, map[string]string{"memory/cgroup.procs": ""})
	if err := os.RemoveAll(filepath.Dir(removed.Dirs[Memory])); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*Delegated{emptied, removed} {
		if f, err := d.Figures(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Figures of a removed sandbox = %+v, %v; want %v", f, err, fs.ErrNotExist)
		}
	}
}

// delegatedBelow writes files of a sandbox's cgroups and returns a Delegated whose directories are
// below them.
func delegatedBelow(t *testing.T, files map[string]string) *Delegated {
	t.Helper()
	root := t.TempDir()
	d := &Delegated{Dirs: map[string]string{}}
	for name, text := range files {
		p := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range Names() {
		if exists(filepath.Join(root, kind)) {
			d.Dirs[kind] = filepath.Join(root, kind, commands)
		}
	}
	return d
}
