package server

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
)

// sandboxCounters are the files with the counters of the whole sandbox's cgroup. A path is empty if
// the file is not visible inside the sandbox.
type sandboxCounters struct{ memory, pids string }

// findSandboxCounters looks for the files where containers mount cgroup v2 and v1.
func findSandboxCounters(root string) sandboxCounters {
	first := func(names ...string) string {
		for _, name := range names {
			if st, err := os.Stat(filepath.Join(root, name)); err == nil && st.Mode().IsRegular() {
				return filepath.Join(root, name)
			}
		}
		return ""
	}
	return sandboxCounters{
		memory: first("memory.events", "memory/memory.oom_control"),
		pids:   first("pids.events", "pids/pids.events"),
	}
}

func (a sandboxCounters) read() cgroup.Usage {
	return cgroup.Usage{OOMKills: readCounter(a.memory, "oom_kill"), PidsDenied: readCounter(a.pids, "max")}
}

// readCounter returns the value of a key in a flat keyed file, or 0 if it is missing.
func readCounter(path, key string) int64 {
	if path == "" {
		return 0
	}
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		name, value, ok := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		if ok && string(name) == key {
			n, err := strconv.ParseInt(string(value), 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}
