package server

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
)

// A command with wire.Command.Check is decided on by its argument vector. That
// decides nothing if the name stands for another program, or if the environment
// makes the program run one; so both are held to what the image has.

// plainNames are the variables that a caller may set for such a command.
var plainNames = []string{"PATH", "LANG", "LANGUAGE", "TERM", "TZ", "COLUMNS", "LINES", "NO_COLOR"}

// plain leaves out what makes harmless programs do more than their arguments
// say: LD_PRELOAD, GIT_PAGER, HOME with its dot files, RIPGREP_CONFIG_PATH, and
// all that nobody knows of. Nor may one of the others name a file.
func plain(env map[string]string) map[string]string {
	left := make(map[string]string)
	for k, v := range env {
		known := slices.Contains(plainNames, k) || strings.HasPrefix(k, "LC_")
		if known && (k == "PATH" || k == "TZ" || !strings.Contains(v, "/")) {
			left[k] = v
		}
	}
	return left
}

// decide is the guest's own word on a command, right before it is run.
func (s *Server) decide(cmd *wire.Command, p *prefork.Program) *wire.Failure {
	if cmd.Check == nil {
		return nil
	}
	if f := s.checkArgv(cmd, p.Dir); f != nil {
		return f
	}
	p.Paths = slices.DeleteFunc(p.Paths, func(name string) bool { return !s.ofImage(name) })
	if len(p.Paths) == 0 {
		return wire.Failf(wire.PermissionDenied, "argv", "%.200q is no program of the image", cmd.Argv[0])
	}
	return nil
}

// ofImage says whether a program, and the folder that its name is in, are the
// image's: on the same mount as the root, and in no folder that commands write to.
func (s *Server) ofImage(name string) bool {
	return filepath.IsAbs(name) && s.onRoot(filepath.Dir(name)) && s.onRoot(name)
}

// onRoot looks at what a name leads to, without opening it.
func (s *Server) onRoot(name string) bool {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil || !filepath.IsAbs(real) {
		return false
	}
	for _, dir := range []string{s.Workspace, wire.Workspace, wire.Tmp, wire.Home, "/dev", "/proc", "/run", "/var/tmp"} {
		if real == dir || strings.HasPrefix(real, dir+"/") {
			return false
		}
	}
	root, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(root)
	return mountOf(fd) == mountOf(root)
}

// mountOf is the number of the mount that an open file is on; 0 where the kernel
// does not tell, and then the names of the folders have to do.
func mountOf(fd int) int {
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte("mnt_id:")); ok {
			n, err := strconv.Atoi(string(bytes.TrimSpace(value)))
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// checkArgv asks the rules, as the commands' user: what that user cannot get at
// is not judged by what is there.
func (s *Server) checkArgv(cmd *wire.Command, cwd string) *wire.Failure {
	var refusal *argv.Refusal
	check := func() { refusal = cmd.Check.CheckHere(cmd.Argv, cwd) }
	if s.Files == nil {
		check()
	} else if err := s.Files.As(s.ctx, check); err != nil {
		return wire.Failf(wire.Unavailable, "", "decide on the command: %v", err)
	}
	if refusal == nil {
		return nil
	}
	return wire.Failf(wire.PermissionDenied, "argv", "%s", refusal.Message)
}
