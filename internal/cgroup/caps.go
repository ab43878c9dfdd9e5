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

// setCapsV2 sets the caps of a v2 cgroup.
func setCapsV2(name string, s Share) error {
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

// quota returns the CPU time per period in microseconds.
func quota(cores float64) int64 { return int64(cores * cpuPeriod) }

func setPidsCap(name string, n int64) error {
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

// setCPUCapV1 sets quota and period. The kernel rejects a quota above that of the parent.
func setCPUCapV1(name string, cores float64) error {
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

// setMemoryCapV1 sets the cap of a v1 cgroup. Before kernel 5.11, a v1 cgroup counts its children
// only if use_hierarchy is set in it and in its parents. Without it, neither this cap nor the
// sandbox's would bind any command.
func setMemoryCapV1(parent, name string, bytes int64) error {
	for _, dir := range []string{parent, name} {
		if err := enableHierarchy(dir); err != nil {
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
	if err := setSocketCap(d, strconv.FormatInt(bytes/socketDivisor, 10)); err != nil {
		return err
	}
	return setMemoryV1(d, bytes)
}

// A v1 cgroup counts the memory of TCP and UDP sockets separately, and only if the cgroup itself
// has a cap on it. Without a cap, a few thousand loopback sockets hold gigabytes and can use up the
// host's limit for all sockets. A quarter of the memory cap is plenty for a sandbox without a
// network.
const (
	socketFile    = "memory.kmem.tcp.limit_in_bytes"
	socketDivisor = 4
)

// setSocketCap caps the memory of sockets of a v1 cgroup. On v2 it counts as ordinary memory.
func setSocketCap(d dir, value string) error {
	now, err := d.read(socketFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if samePages(now, value) {
		return nil // the kernel rejects setting it again while it is exceeded
	}
	return d.write(socketFile, value)
}

// samePages compares two caps after rounding down to whole pages, as the kernel does.
func samePages(a, b string) bool {
	n, err1 := strconv.ParseInt(strings.TrimSpace(a), 10, 64)
	m, err2 := strconv.ParseInt(strings.TrimSpace(b), 10, 64)
	page := int64(os.Getpagesize())
	return err1 == nil && err2 == nil && n/page == m/page
}

// inheritSockets copies the socket cap of the parent to a group. The parent's cap binds all groups
// together, but without its own cap a group's sockets are not counted.
func inheritSockets(parent, d dir) error {
	value, err := parent.read(socketFile)
	if isGone(err) {
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

func enableHierarchy(name string) error {
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
		return fmt.Errorf("%w: memory cgroup %s does not count its children; write 1 to %s of the cgroups above it before "+
			"containers start: %w",
			ErrUnsupported, name, file, err)
	}
	return nil
}
