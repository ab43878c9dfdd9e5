package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
)

// capV2 sets the caps of a v2 cgroup.
func capV2(name string, s Share) error {
	d, err := openDir(name)
	if err != nil {
		return err
	}
	defer d.Close()
	if s.MemoryBytes > 0 {
		if err := setMemoryV2(d, s.MemoryBytes); err != nil {
			return err
		}
	}
	if s.Pids > 0 {
		if err := d.write("pids.max", strconv.FormatInt(s.Pids, 10)); err != nil {
			return err
		}
	}
	if s.CPU > 0 {
		return d.write("cpu.max", fmt.Sprintf("%d %d", quota(s.CPU), cpuPeriod))
	}
	return nil
}

// quota is the CPU time per period, µs.
func quota(cores float64) int64 { return int64(cores * cpuPeriod) }

func capPids(name string, n int64) error {
	if n == 0 {
		return nil
	}
	d, err := openDir(name)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.write("pids.max", strconv.FormatInt(n, 10))
}

// capCPUV1 sets quota and period. The kernel refuses a quota above that of the parent.
func capCPUV1(name string, cores float64) error {
	if cores == 0 {
		return nil
	}
	d, err := openDir(name)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.write("cpu.cfs_period_us", strconv.Itoa(cpuPeriod)); err != nil {
		return err
	}
	return d.write("cpu.cfs_quota_us", strconv.FormatInt(quota(cores), 10))
}

// capMemoryV1 sets the cap of a v1 cgroup. Before kernel 5.11 a v1 cgroup counts its children only if use_hierarchy says so, in it and above
// it: without it neither this cap nor the sandbox's would bind any exec.
func capMemoryV1(parent, name string, bytes int64) error {
	for _, dir := range []string{parent, name} {
		if err := countChildren(dir); err != nil {
			return err
		}
	}
	if bytes == 0 {
		return nil
	}
	d, err := openDir(name)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := capSockets(d, strconv.FormatInt(bytes/socketPart, 10)); err != nil {
		return err
	}
	return setMemoryV1(d, bytes)
}

// A v1 cgroup counts what TCP and UDP sockets hold apart from all other memory, and not at all in a cgroup without a cap of its own on it: then
// some thousand sockets on the loopback hold gigabytes, and use up what all sockets of the host may have together. A part of the memory cap is
// plenty for a sandbox without a network.
const (
	socketFile = "memory.kmem.tcp.limit_in_bytes"
	socketPart = 4
)

// capSockets caps what the sockets of a v1 cgroup hold; those of a v2 cgroup count as its memory.
func capSockets(d dir, value string) error {
	now, err := d.read(socketFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if sameNumber(now, value) {
		return nil // setting it again is refused while it is exceeded
	}
	return d.write(socketFile, value)
}

// sameNumber compares a cap, which the kernel rounds down to whole pages.
func sameNumber(a, b string) bool {
	n, err1 := strconv.ParseInt(strings.TrimSpace(a), 10, 64)
	m, err2 := strconv.ParseInt(strings.TrimSpace(b), 10, 64)
	page := int64(os.Getpagesize())
	return err1 == nil && err2 == nil && n/page == m/page
}

// inheritSockets gives a group the cap of its parent, which binds them all together: without one of its own its sockets are not counted.
func inheritSockets(parent, d dir) error {
	value, err := parent.read(socketFile)
	if gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
	if err != nil {
		return fmt.Errorf("%s/%s: %w", parent.name, socketFile, err)
	}
	if n >= math.MaxInt64&^int64(os.Getpagesize()-1) {
		return nil // no cap
	}
	return d.write(socketFile, strconv.FormatInt(n, 10))
}

func countChildren(name string) error {
	d, err := openDir(name)
	if err != nil {
		return err
	}
	defer d.Close()
	const file = "memory.use_hierarchy"
	on, err := d.read(file)
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(on) == "1" {
		return nil
	}
	if err != nil {
		return err
	}
	if err := d.write(file, "1"); err != nil {
		return fmt.Errorf("%w: memory cgroup %s does not count its children; write 1 to %s of the cgroups above it before containers start: %w",
			ErrUnsupported, name, file, err)
	}
	return nil
}
