package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// only returns rules that allow harmless programs.
func only(names ...string) *argv.Rules {
	r := &argv.Rules{Programs: map[string]argv.Program{}}
	for _, n := range names {
		r.Programs[n] = argv.Program{}
	}
	return r
}

func checked(r *argv.Rules, args ...string) wire.Command {
	return wire.Command{Argv: args, Check: r}
}

func TestRulesDecideOnArguments(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		a, r := run1(t, s, checked(only("echo"), "echo", "a;b"))
		wantEnding(t, r, runtime.Exited, 0)
		if a.stdout.String() != "a;b\n" {
			t.Errorf(`echo "a;b" wrote %q, want "a;b\n"`, a.stdout.String())
		}
		for _, op := range []wire.Op{wire.OpExec, wire.OpStart} {
			for name, cmd := range map[string]wire.Command{
				"not listed": checked(only("echo"), "cat", "/etc/passwd"), "no rules": checked(only(), "echo"),
				"a path of one": checked(only("echo"), "./echo"),
			} {
				cmd.ID = "checked"
				f := dial(t, s, op, cmd).all().failure
				if f == nil || f.Code != wire.PermissionDenied || f.Field != "argv" || f.Message == "" {
					t.Errorf("%s, %s: %s, want permission_denied of field argv and a message", op, name,
						describe(f))
				}
			}
		}
		rules := only("ls")
		rules.Root = workspace
		f := dial(t, s, wire.OpExec, checked(rules, "ls", "../../etc")).all().failure
		if f == nil || f.Code != wire.PermissionDenied || f.Field != "argv" {
			t.Errorf("ls of a path outside the root: %s, want permission_denied of field argv", describe(f))
		}
		if p := ask[wire.Pong](t, s, wire.OpPing, nil); p.Commands != 0 || p.Shells != 0 {
			t.Errorf("after refused commands, ping = %+v, want no commands and no shells", p)
		}
	})
}

func TestCheckedProgramMustBeInImage(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		dir := t.TempDir()
		for p := dir; p != "/tmp" && p != "/"; p = filepath.Dir(p) {
			if err := os.Chmod(p, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "echo"), []byte("#!/bin/sh\necho planted\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := checked(only("echo"), "echo", "real")
		cmd.Env = map[string]string{"PATH": dir + ":.:" + defaultPath}
		a, r := run1(t, s, cmd)
		wantEnding(t, r, runtime.Exited, 0)
		if a.stdout.String() != "real\n" {
			t.Errorf(`echo wrote %q, want "real\n"`, a.stdout.String())
		}
		cmd.Env["PATH"] = dir
		if f := dial(t, s, wire.OpExec, cmd).all().failure; f == nil || f.Code != wire.PermissionDenied || f.Field != "argv" {
			t.Errorf("echo that is only in a planted directory: %s, want permission_denied of field argv",
				describe(f))
		}
		cmd.Check = nil
		if a, _ := run1(t, s, cmd); a.stdout.String() != "planted\n" {
			t.Errorf(`echo without rules wrote %q, want "planted\n"`, a.stdout.String())
		}
	})
}

func TestCheckedCommandEnvironmentIsFiltered(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		cmd := checked(only("env"), "env")
		cmd.Env = map[string]string{
			"LD_PRELOAD": "/workspace/x.so", "HOME": "/workspace", "RIPGREP_CONFIG_PATH": "/workspace/rg", "LC_ALL": "C",
			"TZ": "Europe/Paris", "LANG": "/workspace/x", "MINE": "x",
		}
		a, r := run1(t, s, cmd)
		wantEnding(t, r, runtime.Exited, 0)
		for _, want := range []string{"LC_ALL=C\n", "TZ=Europe/Paris\n", "LANG=C.UTF-8\n", "HOME=/home/user\n"} {
			if !strings.Contains(a.stdout.String(), want) {
				t.Errorf("the environment is %q, want %q in it", a.stdout.String(), want)
			}
		}
		for _, bad := range []string{"LD_PRELOAD", "RIPGREP", "MINE", "/workspace"} {
			if strings.Contains(a.stdout.String(), bad) {
				t.Errorf("the environment is %q, want no %q in it", a.stdout.String(), bad)
			}
		}
	})
}

func TestCommandLimits(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		memory, cpu := sh("head -c 200m /dev/zero | tail"), sh("exit 0")
		memory.MemoryBytes, memory.Timeout, cpu.CPUs = 32<<20, bound, 0.5
		if s == serverTag {
			for field, cmd := range map[string]wire.Command{"memory_bytes": memory, "cpus": cpu} {
				if f := dial(t, s, wire.OpExec, cmd).all().failure; f == nil || f.Code != wire.FailedPrecondition ||
					f.Field != field {
					t.Errorf("command with %s, without cgroups: %s, want failed_precondition of field %[1]s",
						field, describe(f))
				}
			}
			return
		}
		if _, r := run1(t, s, memory); r.Ending != runtime.OOM || r.Unclean || r.Usage.MemoryBytes > memory.MemoryBytes {
			t.Errorf("command over its memory limit ended as %+v, want a clean %s with at most %d bytes", r,
				runtime.OOM, memory.MemoryBytes)
		}
		_, r := run1(t, s, sh("head -c 60m /dev/zero | tail -c 60m >/dev/null"))
		wantEnding(t, r, runtime.Exited, 0)
	})
}
