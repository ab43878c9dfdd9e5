package server

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

const (
	maxID = 128
	// maxPaths is the maximum number of PATH directories that are searched.
	maxPaths    = 64
	maxCPUs     = 1024
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	defaultHome = wire.Home
)

func validID(id string) bool {
	if id == "" || len(id) > maxID {
		return false
	}
	for _, c := range []byte(id) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}

// check returns a Failure for the first invalid field of a command, or nil.
func check(cmd *wire.Command) *wire.Failure {
	bad := func(field, format string, args ...any) *wire.Failure {
		return wire.Failf(wire.InvalidArgument, field, format, args...)
	}
	size := 0
	for _, a := range cmd.Argv {
		size += len(a) + 1
		if strings.IndexByte(a, 0) >= 0 {
			return bad("argv", "contains a NUL byte")
		}
	}
	if f := checkEnv(cmd.Env); f != nil {
		return f
	}
	for k, v := range cmd.Env {
		size += len(k) + len(v) + 2
	}
	switch {
	case cmd.ID != "" && !validID(cmd.ID):
		return bad("id", "must be 1 to %d of a-z, A-Z, 0-9, '-', '_' and '.'", maxID)
	case cmd.Program != "" && cmd.Check != nil:
		return bad("check", "is not supported for the guest's own programs")
	case cmd.Program == "" && (len(cmd.Argv) == 0 || cmd.Argv[0] == ""):
		return bad("argv", "names no program")
	case len(cmd.Argv) > wire.MaxArgs:
		return bad("argv", "has %d elements: the maximum is %d", len(cmd.Argv), wire.MaxArgs)
	case size > wire.MaxArgBytes:
		return bad("argv", "has %d bytes together with env: the maximum is %d", size, wire.MaxArgBytes)
	case strings.IndexByte(cmd.Cwd, 0) >= 0 || len(cmd.Cwd) > wire.MaxPathBytes:
		return bad("cwd", "must have at most %d bytes and no NUL byte", wire.MaxPathBytes)
	case len(cmd.Dirs) > maxDirs || !absolute(cmd.Dirs):
		return bad("dirs", "must be at most %d absolute paths of at most %d bytes, without a NUL byte", maxDirs,
			wire.MaxPathBytes)
	case cmd.Timeout < 0:
		return bad("timeout_ns", "is negative")
	case cmd.OutputLimit < 0:
		return bad("output_limit", "is negative")
	case cmd.MemoryBytes < 0 || cmd.MemoryBytes > 0 && cmd.MemoryBytes < wire.MinCommandMemory:
		return bad("memory_bytes", "must be 0 (unlimited) or at least %d", wire.MinCommandMemory)
	case !(cmd.CPUs == 0 || cmd.CPUs >= wire.MinCommandCPUs && cmd.CPUs <= maxCPUs):
		return bad("cpus", "must be 0 (unlimited) or from %v to %d", wire.MinCommandCPUs, maxCPUs)
	case cmd.Spool < 0 || cmd.Spool > wire.SpoolTotal:
		return bad("spool", "must be from 0 to %d", wire.SpoolTotal)
	}
	if cmd.TTY != nil {
		return cmd.TTY.Check()
	}
	return nil
}

func checkEnv(env map[string]string) *wire.Failure {
	size := 0
	for k, v := range env {
		size += len(k) + len(v) + 2
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00"):
			return wire.Failf(wire.InvalidArgument, "env", "invalid name %.80q: it must not be empty or contain '=' or NUL", k)
		case strings.IndexByte(v, 0) >= 0:
			return wire.Failf(wire.InvalidArgument, "env", "the value of %.80q contains a NUL byte", k)
		}
	}
	if len(env) > wire.MaxArgs || size > wire.MaxArgBytes {
		return wire.Failf(wire.InvalidArgument, "env", "has %d variables with %d bytes: the maximum is %d with %d", len(env),
			size, wire.MaxArgs, wire.MaxArgBytes)
	}
	return nil
}

// program resolves a checked command.
func (s *Server) program(cmd *wire.Command) (*prefork.Program, *wire.Failure) {
	s.mu.Lock()
	lease, base := s.env, s.base // these maps are replaced, never changed
	s.mu.Unlock()
	u, f := s.lookUpUser(cmp.Or(cmd.User, base.User))
	if f != nil {
		return nil, f
	}
	env := map[string]string{"PATH": defaultPath, "HOME": u.home, "USER": u.name, "LOGNAME": u.name, "LANG": "C.UTF-8",
		"TERM": "dumb"}
	own, template := cmd.Env, base.Env
	if cmd.Check != nil {
		template, lease, own = filterEnv(template), filterEnv(lease), filterEnv(own)
	}
	maps.Copy(env, template)
	maps.Copy(env, lease)
	if cmd.Check == nil {
		maps.Copy(env, s.proxy.environment())
	}
	if cmd.TTY != nil {
		env["TERM"] = cmd.TTY.Term
	}
	maps.Copy(env, own)
	p := &prefork.Program{Argv: cmd.Argv, UID: u.uid, GID: u.gid, Dir: s.Workspace}
	if cmd.Program == "" {
		p.Paths = search(cmd.Argv[0], env["PATH"])
	} else {
		p.Argv = append([]string{cmd.Program}, cmd.Argv...)
	}
	if filepath.IsAbs(cmd.Cwd) {
		p.Dir = cmd.Cwd
	} else if cmd.Cwd != "" {
		p.Dir = s.Workspace + "/" + cmd.Cwd
	}
	if f := confine(cmd, p); f != nil {
		return nil, f
	}
	p.Env = make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		p.Env = append(p.Env, k+"="+env[k])
	}
	return p, nil
}

// search lists the paths to try for a program, in the order of execvp.
func search(name, path string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var found []string
	for dir := range strings.SplitSeq(path, ":") {
		if len(found) == maxPaths {
			break
		}
		if dir == "" {
			dir = "."
		}
		if len(dir)+1+len(name) < wire.MaxPathBytes {
			found = append(found, dir+"/"+name)
		}
	}
	return found
}

// stepFailure converts a failed step into an error for the caller.
func stepFailure(e *prefork.StepError, cmd *wire.Command) *wire.Failure {
	code := wire.FailedPrecondition
	switch e.Errno {
	case syscall.ENOENT:
		code = wire.NotFound
	case syscall.EACCES, syscall.EPERM:
		code = wire.PermissionDenied
	case syscall.E2BIG, syscall.ENOTDIR, syscall.ENAMETOOLONG, syscall.ELOOP, syscall.ENOEXEC:
		code = wire.InvalidArgument
	case syscall.EAGAIN, syscall.ENOMEM, syscall.ENFILE, syscall.EMFILE:
		code = wire.ResourceExhausted
	default:
	}
	switch e.Step {
	case prefork.StepTerminal:
		return wire.Failf(wire.Internal, "tty", "%v", e)
	case prefork.StepDir:
		return wire.Failf(code, "cwd", "enter %.200q: %v", cmd.Cwd, e.Errno)
	case prefork.StepExec:
		if cmd.Program != "" {
			return programFailure(cmd, e.Errno)
		}
		if e.Errno == syscall.ENOENT && !strings.Contains(cmd.Argv[0], "/") {
			return wire.Failf(code, "argv", "command not found: %.200q", cmd.Argv[0])
		}
		return wire.Failf(code, "argv", "execute %.200q: %v", cmd.Argv[0], e.Errno)
	default:
		return wire.Failf(code, "user", "switch to the command's user: %v", e.Errno)
	}
}

// openProgram makes the command one of the guest's own programs. It passes the open file, because
// the command's user cannot enter its directory.
func (s *Server) openProgram(cmd *wire.Command, p *prefork.Program) *wire.Failure {
	path, known := s.Programs[cmd.Program]
	if !known {
		return wire.Failf(wire.InvalidArgument, "program", "program %.64q not found", cmd.Program)
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return wire.Failf(wire.FailedPrecondition, "program", "this guest was installed without the program %q", cmd.Program)
	}
	if err != nil {
		return wire.Failf(wire.Internal, "program", "open %q: %v", cmd.Program, err)
	}
	p.File = file
	return nil
}

// programFailure reports why such a program could not be executed.
func programFailure(cmd *wire.Command, errno syscall.Errno) *wire.Failure {
	return wire.Failf(wire.FailedPrecondition, "program", "execute %q: %v", cmd.Program, errno)
}
