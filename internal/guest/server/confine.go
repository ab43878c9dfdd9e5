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

// maxDirs bounds the folders that a command's working directory may be in.
const maxDirs = 256

func absolute(paths []string) bool {
	return !slices.ContainsFunc(paths, func(p string) bool {
		return !filepath.IsAbs(p) || len(p) > wire.MaxPathBytes || strings.IndexByte(p, 0) >= 0
	})
}

// confine refuses a working directory that leads out of the folders that the
// command may be started in. What is entered is the name without links: one
// that is turned into a link after this look is followed, by a command that
// could go there by itself.
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

// resolve is the name of a folder without links, which it need not be
// allowed to read.
func resolve(dir string) (string, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
}
