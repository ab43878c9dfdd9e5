package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limit caps the memory (bytes, without swap where the kernel supports it) and cores of this group,
// within the caps of all commands. Zero means no separate cap. Call it before a process of the
// group starts its work. A value above the caps of all commands is not an error: then these bind.
// It returns ErrUnsupported if the delegated hierarchies cannot enforce the cap.
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

// dirOf returns the group's directory in a hierarchy.
func (g *Group) dirOf(kind string) (dir, bool) {
	for _, d := range g.dirs {
		if d.kind == kind {
			return d.dir, true
		}
	}
	return dir{}, false
}

func (g *Group) limitMemory(bytes int64) error {
	if d, ok := g.dirOf(Memory); ok {
		if err := limitSockets(d, bytes/socketDivisor); err != nil {
			return err
		}
		return setMemoryV1(d, bytes)
	}
	if d, ok := g.dirOf(Unified); ok && d.has("memory.max") {
		return setMemoryV2(d, bytes)
	}
	return fmt.Errorf("%w: no memory controller was delegated", ErrUnsupported)
}

// limitSockets lowers the cap inherited from the parent.
func limitSockets(d dir, bytes int64) error {
	if now, ok := d.readNumber(socketFile); !ok || now <= bytes {
		return nil
	}
	return setSocketCap(d, strconv.FormatInt(bytes, 10))
}

func (g *Group) limitCPU(cores float64) error {
	if d, ok := g.dirOf(CPU); ok {
		return limitCPUV1(d, cores)
	}
	d, ok := g.dirOf(Unified)
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

// enableCPU enables the cpu controller for the groups. It is off by default because it costs every
// command a little, and few need it.
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

// limitCPUV1 sets quota and period. The kernel rejects a quota above the parent's; this is not an
// error, since the group cannot use more anyway.
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

// setMemoryV2 caps memory and disables swap. Otherwise a command would push memory to the host's
// swap instead of meeting its cap.
func setMemoryV2(d dir, bytes int64) error {
	if err := d.write("memory.max", strconv.FormatInt(bytes, 10)); err != nil {
		return err
	}
	if err := d.write("memory.swap.max", "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// setMemoryV1 caps memory, and swap if it is accounted.
func setMemoryV1(d dir, bytes int64) error {
	const (
		limit = "memory.limit_in_bytes"
		both  = "memory.memsw.limit_in_bytes" // memory plus swap; never below limit
	)
	value := strconv.FormatInt(bytes, 10)
	if !d.has(both) {
		// Swap is not accounted here. Swappiness 0 keeps the cgroup's own memory pressure from
		// swapping it out.
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
