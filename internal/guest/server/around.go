package server

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
)

// around are the files in which the cgroup of the whole sandbox counts, as far
// as they can be seen from inside; "" where they cannot.
type around struct{ memory, pids string }

// findAround looks for them as cgroup v2 and v1 are mounted in containers.
func findAround(root string) around {
	first := func(names ...string) string {
		for _, name := range names {
			if st, err := os.Stat(filepath.Join(root, name)); err == nil && st.Mode().IsRegular() {
				return filepath.Join(root, name)
			}
		}
		return ""
	}
	return around{
		memory: first("memory.events", "memory/memory.oom_control"),
		pids:   first("pids.events", "pids/pids.events"),
	}
}

func (a around) read() cgroup.Usage {
	return cgroup.Usage{OOMKills: counter(a.memory, "oom_kill"), PidsDenied: counter(a.pids, "max")}
}

// counter reads the value of a key, 0 if there is none.
func counter(path, key string) int64 {
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
