package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMakeSetsCapsFirst(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	h, err := Detect()
	if err != nil || !h.Memory || !h.Pids || !h.CPU {
		t.Skipf("this host has not all controllers: %+v, %v", h, err)
	}
	at := fmt.Sprintf("/orchestrator-test-make/t%d", os.Getpid())
	var dirs []string
	t.Cleanup(func() {
		for _, d := range dirs {
			_ = os.Remove(d)
			_ = os.Remove(filepath.Dir(d))
		}
	})
	for range 2 { // the second time it exists
		if dirs, err = Make(at, Share{MemoryBytes: 64 << 20, Pids: 50, CPU: 0.5}); err != nil {
			t.Fatal(err)
		}
	}
	want := map[string]string{
		"memory.limit_in_bytes": "67108864", "memory.max": "67108864", "pids.max": "50", "cpu.cfs_quota_us": "50000",
		"cpu.max": "50000 100000",
	}
	seen := 0
	for _, dir := range dirs {
		if !strings.HasSuffix(dir, at) {
			t.Errorf("Make made %s, want a directory that ends in %s", dir, at)
		}
		for name, value := range want {
			if got, err := os.ReadFile(filepath.Join(dir, name)); err == nil {
				seen++
				if strings.TrimSpace(string(got)) != value {
					t.Errorf("%s/%s is %s, want %s", dir, name, got, value)
				}
			}
		}
	}
	if seen != 3 {
		t.Errorf("%v have %d caps, want 3", dirs, seen)
	}
}

func TestMakeRefusesInvalidPaths(t *testing.T) {
	for _, at := range []string{"", "/", "x", "/x/../y", "/x/"} {
		if _, err := Make(at, Share{Pids: 50}); err == nil {
			t.Errorf("Make(%q) succeeded, want an error", at)
		}
	}
}
