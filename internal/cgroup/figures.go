package cgroup

import (
	"fmt"
	"io/fs"
	"path"
	"time"
)

// Figures are what a sandbox uses now, its guest included. CPU is the time on the processors since it was made; the others are of this moment.
// Memory is bytes, files in memory file systems included, without the cache of files that the kernel drops first when there is need. Limits of 0 are none
// in force at the sandbox; what is above it, as the whole host's, does not count.
type Figures struct {
	CPU                 time.Duration
	Memory, MemoryLimit int64
	Pids, PidsLimit     int64
}

// noLimit is what a v1 memory cgroup without a cap may say at least: the largest number of whole pages that fits.
const noLimit = 1 << 62

// Figures reads the counters of the cgroups that the commands' lie in: the sandbox's own, or what stands in for it. What a hierarchy does not keep stays 0.
// fs.ErrNotExist once the sandbox is gone. Cheap: some ten small files.
func (d *Delegated) Figures() (Figures, error) {
	var f Figures
	for _, kind := range Names() { // the cgroup2 tree comes last, as in usage
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
		n, _ := d.number("cpuacct.usage")
		f.CPU = time.Duration(n)
	case Unified:
		f.unified(d)
	}
	return nil
}

// memoryV1 takes the commands' cap where the sandbox has none: a stand-in has no caps of its own.
func (f *Figures) memoryV1(d dir) {
	const limit = "memory.limit_in_bytes"
	f.Memory, _ = d.number("memory.usage_in_bytes")
	f.Memory = max(f.Memory-d.keyed("memory.stat")["total_inactive_file"], 0)
	if f.MemoryLimit, _ = d.number(limit); f.MemoryLimit >= noLimit {
		f.MemoryLimit, _ = d.number(commands + "/" + limit)
	}
	if f.MemoryLimit >= noLimit {
		f.MemoryLimit = 0
	}
}

// pids does likewise.
func (f *Figures) pids(d dir) {
	f.Pids, _ = d.number("pids.current")
	n, ok := d.number("pids.max")
	if !ok {
		n, _ = d.number(commands + "/pids.max")
	}
	f.PidsLimit = n
}

// unified has neither memory nor pids on hybrid hosts.
func (f *Figures) unified(d dir) {
	if cpu := d.keyed("cpu.stat"); cpu != nil {
		f.CPU = time.Duration(cpu["usage_usec"]) * time.Microsecond
	}
	if n, ok := d.number("memory.current"); ok {
		f.Memory = max(n-d.keyed("memory.stat")["inactive_file"], 0)
		if f.MemoryLimit, ok = d.number("memory.max"); !ok {
			f.MemoryLimit, _ = d.number(commands + "/memory.max")
		}
	}
	if d.has("pids.current") {
		f.pids(d)
	}
}
