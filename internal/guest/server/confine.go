package server

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
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
		if top, err := resolve(dir); err == nil && (real == top || strings.HasPrefix(real, strings.TrimSuffix(top, "/")+"/")) {
			p.Dir = real
			return nil
		}
	}
	return wire.Failf(wire.PermissionDenied, "cwd", "%.200q leads out of the folders that are allowed", cmd.Cwd)
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
