package server

import (
	"bytes"
	"context"
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

// The guest decides on a command with wire.Command.Check by its argument vector. That decision is
// worthless if the name refers to another program, or if the environment makes the program run one.
// So the program must come from the image, and the environment is filtered.
//
// harmlessEnv lists the variables that a caller may set for such a command.

// harmlessEnv are the variables that a caller may set for such a command.
var harmlessEnv = []string{"PATH", "LANG", "LANGUAGE", "TERM", "TZ", "COLUMNS", "LINES", "NO_COLOR"}

// filterEnv drops all variables that can make a harmless program do more than its arguments say,
// for example LD_PRELOAD, GIT_PAGER, HOME and RIPGREP_CONFIG_PATH. It keeps only known variables,
// and of these only PATH and TZ may name a file.
func filterEnv(env map[string]string) map[string]string {
	left := make(map[string]string)
	for k, v := range env {
		known := slices.Contains(harmlessEnv, k) || strings.HasPrefix(k, "LC_")
		if known && (k == "PATH" || k == "TZ" || !strings.Contains(v, "/")) {
			left[k] = v
		}
	}
	return left
}

// checkRules applies the command's rules right before it runs.
func (s *Server) checkRules(ctx context.Context, cmd *wire.Command, p *prefork.Program) *wire.Failure {
	if cmd.Check == nil {
		return nil
	}
	if f := s.checkArgv(ctx, cmd, p.Dir); f != nil {
		return f
	}
	p.Paths = slices.DeleteFunc(p.Paths, func(name string) bool { return !s.inImage(name) })
	if len(p.Paths) == 0 {
		return wire.Failf(wire.PermissionDenied, "argv", "%.200q is not a program of the image", cmd.Argv[0])
	}
	return nil
}

// inImage reports whether a program and its directory belong to the image: both are on the root
// mount, and not in a directory that commands can write to.
func (s *Server) inImage(name string) bool {
	return filepath.IsAbs(name) && s.onRootMount(filepath.Dir(name)) && s.onRootMount(name)
}

// onRootMount resolves a name without opening the file.
func (s *Server) onRootMount(name string) bool {
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

// mountOf returns the mount id of an open file, or 0 if the kernel does not report it. Then only
// the directory names decide.
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

// checkArgv checks the rules as the commands' user, so that files out of this user's reach do not
// influence the decision.
func (s *Server) checkArgv(ctx context.Context, cmd *wire.Command, cwd string) *wire.Failure {
	var refusal *argv.Refusal
	check := func() { refusal = cmd.Check.CheckHere(cmd.Argv, cwd) }
	if s.Files == nil {
		check()
	} else if err := s.Files.As(ctx, check); err != nil {
		return wire.Failf(wire.Unavailable, "", "decide on the command: %v", err)
	}
	if refusal == nil {
		return nil
	}
	return wire.Failf(wire.PermissionDenied, "argv", "%s", refusal.Message)
}
