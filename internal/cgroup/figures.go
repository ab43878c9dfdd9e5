package cgroup

import (
	"fmt"
	"io/fs"
	"path"
	"time"
)

// Figures is the current usage of a sandbox, including its guest. CPU is the CPU time since it was
// made; the other values are current. Memory is in bytes. It includes files in memory file systems,
// but not the file cache that the kernel drops first. A limit of 0 means that the sandbox has none;
// limits of its parents and the host are ignored.
type Figures struct {
	CPU                 time.Duration
	Memory, MemoryLimit int64
	Pids, PidsLimit     int64
}

// noLimit is the minimum value that a v1 memory cgroup reports if it has no cap.
const noLimit = 1 << 62

// Figures reads the counters of the parents of the commands' cgroups: the sandbox's own cgroups or
// their stand-ins. Values that a hierarchy does not count are 0. It returns fs.ErrNotExist if the
// sandbox is gone. It reads about ten small files.
func (d *Delegated) Figures() (Figures, error) {
	var f Figures
	for _, kind := range Names() { // the cgroup2 tree comes last, as in readUsage
		dir, ok := d.Dirs[kind]
		if !ok {
			continue
		}
		if err := f.add(kind, path.Dir(dir)); err != nil {
			return Figures{}, fmt.Errorf("figures of cgroup %s: %w", path.Dir(dir), err)
		}
	}
	return f, nil
}

func (f *Figures) add(kind, name string) error {
	d, err := openDir(name)
	if err != nil {
		return err
	}
	defer d.Close()
	if !d.has("cgroup.procs") {
		return fs.ErrNotExist
	}
	switch kind {
	case Memory:
		f.memoryV1(d)
	case Pids:
		f.pids(d)
	case CPU:
		n, _ := d.readNumber("cpuacct.usage")
		f.CPU = time.Duration(n)
	case Unified:
		f.unified(d)
	}
	return nil
}

// memoryV1 uses the commands' cap if the sandbox has none: a stand-in has no caps.
func (f *Figures) memoryV1(d dir) {
	const limit = "memory.limit_in_bytes"
	f.Memory, _ = d.readNumber("memory.usage_in_bytes")
	f.Memory = max(f.Memory-d.readKeyed("memory.stat")["total_inactive_file"], 0)
	if f.MemoryLimit, _ = d.readNumber(limit); f.MemoryLimit >= noLimit {
		f.MemoryLimit, _ = d.readNumber(commands + "/" + limit)
	}
	if f.MemoryLimit >= noLimit {
		f.MemoryLimit = 0
	}
}

// pids also uses the commands' cap if the sandbox has none.
func (f *Figures) pids(d dir) {
	f.Pids, _ = d.readNumber("pids.current")
	n, ok := d.readNumber("pids.max")
	if !ok {
		n, _ = d.readNumber(commands + "/pids.max")
	}
	f.PidsLimit = n
}

// unified reads no memory and pids on hybrid hosts.
func (f *Figures) unified(d dir) {
	if cpu := d.readKeyed("cpu.stat"); cpu != nil {
		f.CPU = time.Duration(cpu["usage_usec"]) * time.Microsecond
	}
	if n, ok := d.readNumber("memory.current"); ok {
		f.Memory = max(n-d.readKeyed("memory.stat")["inactive_file"], 0)
		if f.MemoryLimit, ok = d.readNumber("memory.max"); !ok {
			f.MemoryLimit, _ = d.readNumber(commands + "/memory.max")
		}
	}
	if d.has("pids.current") {
		f.pids(d)
	}
}
