package server

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// maxDirs is the maximum number of directories that may contain a command's working directory.
const maxDirs = 256

func absolute(paths []string) bool {
	return !slices.ContainsFunc(paths, func(p string) bool {
		return !filepath.IsAbs(p) || len(p) > wire.MaxPathBytes || strings.IndexByte(p, 0) >= 0
	})
}

// confine rejects a working directory outside the allowed directories. The command enters the
// resolved path. If a link replaces it after this check, it is followed, but only for a command
// that could go there anyway.
func confine(cmd *wire.Command, p *prefork.Program) *wire.Failure {
	if len(cmd.Dirs) == 0 {
		return nil
	}
	real, err := resolve(p.Dir)
	if err != nil {
		errno := syscall.EIO
		errors.As(err, &errno)
		return stepFailure(&prefork.StepError{Step: prefork.StepDir, Errno: errno}, cmd)
	}
	for _, dir := range cmd.Dirs {
		if top, err := resolve(dir); err == nil &&
			(real == top || strings.HasPrefix(real, strings.TrimSuffix(top, "/")+"/")) {
			p.Dir = real
			return nil
		}
	}
	return wire.Failf(wire.PermissionDenied, "cwd", "%.200q is outside the allowed directories", cmd.Cwd)
}

// resolve returns the path of a directory without links. The directory need not be readable.
func resolve(dir string) (string, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
}

// resources maps runtime.UlimitNames to the kernel's numbers.
var resources = map[string]int{
	"as": unix.RLIMIT_AS, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA, "fsize": unix.RLIMIT_FSIZE,
	"rss": unix.RLIMIT_RSS, "stack": unix.RLIMIT_STACK,
}

// checkUlimits rejects invalid limits.
func checkUlimits(limits map[string]int64) error {
	if err := runtime.ValidateUlimits(limits); err != nil {
		return fmt.Errorf("invalid limits of commands: %w", err)
	}
	return nil
}

// applyUlimits sets the limits of a command's first process, which its children inherit, before it
// executes the command. The guest itself has none of them: CPU time and address space of the
// sandbox's whole life must not count against a command.
func (s *Server) applyUlimits(pid int) *wire.Failure {
	for _, name := range slices.Sorted(maps.Keys(s.Ulimits)) {
		n := uint64(s.Ulimits[name])
		var have unix.Rlimit
		if err := unix.Prlimit(pid, resources[name], nil, &have); err == nil && have.Max < n {
			n = have.Max // the guest may not raise it
		}
		if err := unix.Prlimit(pid, resources[name], &unix.Rlimit{Cur: n, Max: n}, nil); err != nil {
			return wire.Failf(wire.FailedPrecondition, "", "set limit %s of the command: %v", name, err)
		}
	}
	return nil
}
