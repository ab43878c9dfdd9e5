package ocidriver

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// rlimitNumbers maps the limits of ocispec that the kernel may refuse because our own limit is
// lower.
func rlimitNumbers() map[string]int {
	return map[string]int{
		"RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE,
		"RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
	}
}

// FitRlimits lowers limits that exceed our own hard limits if these cannot be raised: a tighter
// limit protects as well. The number of open files is an exception: it was requested, so it fails
// instead.
func FitRlimits(list []specs.POSIXRlimit) error { return FitRlimitsOf(0, list) }

// FitRlimitsOf is FitRlimits for sandboxes that the process starter starts.
func FitRlimitsOf(starter int, list []specs.POSIXRlimit) error {
	for i, r := range list {
		number, ok := rlimitNumbers()[r.Type]
		if !ok {
			continue
		}
		var own unix.Rlimit
		if err := unix.Prlimit(starter, number, nil, &own); err != nil {
			return fmt.Errorf("%s: %w", r.Type, err)
		}
		if r.Hard <= own.Max || hasResourceCapability(starter) {
			continue
		}
		if number == unix.RLIMIT_NOFILE {
			return fmt.Errorf("limits.open_files is %d, but the process that starts sandboxes may give no more than %d: "+
				"raise its limit (LimitNOFILE= of the unit, ulimit -n) "+
				"or lower limits.open_files: %w", r.Hard, own.Max, errdefs.ErrFailedPrecondition)
		}
		list[i].Hard, list[i].Soft = own.Max, min(r.Soft, own.Max)
	}
	return nil
}

// hasResourceCapability reports whether a process has CAP_SYS_RESOURCE.
func hasResourceCapability(pid int) bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3, Pid: int32(pid)}
	var sets [2]unix.CapUserData
	err := unix.Capget(&head, &sets[0])
	return err == nil && sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
