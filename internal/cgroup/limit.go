package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limit caps what the group alone may use, below what all commands may have: bytes
// of memory, without swap where the kernel can say so, and cores. Zero is no cap
// of its own. It is to be called before a process of the group does its work. More
// than all commands may have is no error: then that cap binds.
//
// ErrUnsupported: the hierarchies that were delegated cannot do it.
func (g *Group) Limit(memory int64, cores float64) error {
	if memory > 0 {
		if err := g.limitMemory(memory); err != nil {
			return fmt.Errorf("limit memory of group %s: %w", g.name, err)
		}
	}
	if cores > 0 {
		if err := g.limitCPU(cores); err != nil {
			return fmt.Errorf("limit cpu of group %s: %w", g.name, err)
		}
	}
	return nil
}

// in is the group's directory in a hierarchy.
func (g *Group) in(kind string) (dir, bool) {
	for _, d := range g.dirs {
		if d.kind == kind {
			return d.dir, true
		}
	}
	return dir{}, false
}

func (g *Group) limitMemory(bytes int64) error {
	if d, ok := g.in(Memory); ok {
		if err := limitSockets(d, bytes/socketPart); err != nil {
			return err
		}
		return setMemoryV1(d, bytes)
	}
	if d, ok := g.in(Unified); ok && d.has("memory.max") {
		return setMemoryV2(d, bytes)
	}
	return fmt.Errorf("%w: no memory controller was delegated", ErrUnsupported)
}

// limitSockets lowers the cap that the group has from its parent.
func limitSockets(d dir, bytes int64) error {
	if now, ok := d.number(socketFile); !ok || now <= bytes {
		return nil
	}
	return capSockets(d, strconv.FormatInt(bytes, 10))
}

func (g *Group) limitCPU(cores float64) error {
	if d, ok := g.in(CPU); ok {
		return limitCPUV1(d, cores)
	}
	d, ok := g.in(Unified)
	if !ok {
		return fmt.Errorf("%w: no cpu controller was delegated", ErrUnsupported)
	}
	value := fmt.Sprintf("%d %d", quota(cores), cpuPeriod)
	if !d.has("cpu.max") {
		if err := g.tree.enableCPU(); err != nil {
			return err
		}
	}
	return d.write("cpu.max", value)
}

// enableCPU gives the groups the cpu controller. They do not have it from the
// start: it costs every command a little, and few ask for it.
func (t *Tree) enableCPU() error {
	for _, d := range t.dirs {
		if d.kind != Unified {
			continue
		}
		if have, err := d.read("cgroup.controllers"); err == nil && hasWord(have, CPU) {
			return d.write("cgroup.subtree_control", "+"+CPU)
		}
	}
	return fmt.Errorf("%w: no cpu controller was delegated; give the sandbox a cap of cpu", ErrUnsupported)
}

func hasWord(text, word string) bool {
	for f := range strings.FieldsSeq(text) {
		if f == word {
			return true
		}
	}
	return false
}

// limitCPUV1 takes the kernel's refusal of more than the parent has as what it
// means: that much cannot be used in any case.
func limitCPUV1(d dir, cores float64) error {
	if !d.has("cpu.cfs_quota_us") {
		return fmt.Errorf("%w: the kernel has no quotas of cpu time", ErrUnsupported)
	}
	if err := d.write("cpu.cfs_period_us", strconv.Itoa(cpuPeriod)); err != nil {
		return err
	}
	err := d.write("cpu.cfs_quota_us", strconv.FormatInt(quota(cores), 10))
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

// setMemoryV2 caps memory, and swap where there is any: without this a command
// pushes its memory out to the host's swap instead of meeting its cap.
func setMemoryV2(d dir, bytes int64) error {
	if err := d.write("memory.max", strconv.FormatInt(bytes, 10)); err != nil {
		return err
	}
	if err := d.write("memory.swap.max", "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// setMemoryV1 caps memory, and swap where it is accounted.
func setMemoryV1(d dir, bytes int64) error {
	const (
		limit = "memory.limit_in_bytes"
		both  = "memory.memsw.limit_in_bytes" // memory and swap together; never below limit
	)
	value := strconv.FormatInt(bytes, 10)
	if !d.has(both) {
		// Swap is not accounted here. Swappiness 0 keeps this cgroup's own pressure from swapping it out.
		if err := d.write("memory.swappiness", "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return d.write(limit, value)
	}
	// The order depends on whether the cap grows or shrinks.
	if d.write(both, value) != nil {
		if err := d.write(limit, value); err != nil {
			return err
		}
		return d.write(both, value)
	}
	return d.write(limit, value)
}
