package runtimetest

import (
	"io"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy/argv"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// checkCommandLimits checks that a command's own limits apply to it and not to a command beside it.
func checkCommandLimits(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	small := python("flood", "one")
	small.MemoryBytes = 48 << 20
	if !s.driver.Capabilities(s.Class).Has(runtime.CapCommandCgroup) {
		for field, cmd := range map[string]wire.Command{"memory_bytes": small, "cpus": {Argv: []string{"true"}, CPUs: 0.1}} {
			if o, err := b.Exec(t.Context(), cmd, guest.IO{}); !errdefs.IsFailedPrecondition(err) ||
				!strings.HasPrefix(err.Error(), field) {
				t.Errorf("limit on %s without cgroups: %v, %v; want FailedPrecondition", field, o, err)
			}
		}
		return
	}
	stdin, release := io.Pipe()
	beside := b.startCommand(t, bash("head -c 60M /dev/zero | tail -c 60M >/dev/null; echo ready; read line"),
		guest.IO{Stdin: stdin})
	beside.waitOutput(t, "ready")
	o := b.runCommand(t, small)
	release.Close()
	if o.Ending != runtime.OOM || o.Unclean || o.Usage.MemoryBytes > small.MemoryBytes {
		t.Errorf("command over its limit of %d bytes: %v, %+v; want ending oom", small.MemoryBytes, o, o.Usage)
	}
	if o := beside.waitResult(t); !o.exited(1) {
		t.Errorf("command beside it: %v, want code 1", o)
	}
	enough := bash("head -c 8M /dev/zero | tail -c 8M | wc -c")
	enough.MemoryBytes = 48 << 20
	if o := b.runCommand(t, enough); !o.exited(0) || strings.TrimSpace(o.stdout) != "8388608" {
		t.Errorf("command below its limits: %v, want success", o)
	}
	large := bash("true")
	large.MemoryBytes, large.CPUs = 64<<30, 500
	if o := b.runCommand(t, large); !o.exited(0) {
		t.Errorf("command with limits above the sandbox's: %v, want success", o)
	}
	slow := python("flood", "cpu", "2", "2")
	slow.CPUs = 0.3
	o = b.runCommand(t, slow)
	cores := (o.Usage.CPUUser + o.Usage.CPUSystem).Seconds() / o.Duration.Seconds()
	t.Logf("two busy processes used %.2f cores of 0.30", cores)
	if !o.exited(0) || cores > 0.6 {
		t.Errorf("two busy processes used %.2f cores: %v; want at most 0.6 with the limit 0.3, and exit code 0", cores, o)
	}
	for field, cmd := range map[string]wire.Command{
		"memory_bytes": {Argv: []string{"true"}, MemoryBytes: 1 << 10}, "cpus": {Argv: []string{"true"}, CPUs: 0.001},
	} {
		if o, err := b.Exec(t.Context(), cmd, guest.IO{}); !errdefs.IsInvalidArgument(err) ||
			!strings.HasPrefix(err.Error(), field) {
			t.Errorf("limit on %s too small: %v, %v; want InvalidArgument", field, o, err)
		}
	}
	b.mustPing(t)
}

// checkFileTools checks that text can be edited and searched below the workspace and /tmp, and that
// links are not followed where they must not be.
func checkFileTools(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	b.mustOutput(t,
		`mkdir -p src/deep; echo "func Foo() {}" >src/a.go; printf 'x\nFoo\n' >src/deep/b.txt; echo Foo >/tmp/c.txt; `+
			`ln -s /etc out; ln -s src link; mkfifo fifo`)
	e, err := b.EditFile(t.Context(),
		wire.EditRequest{FileRequest: wire.FileRequest{Path: "src/a.go"}, Old: "Foo", New: "Bar"})
	if err != nil || e.Count != 1 || e.Info.UID != runtime.CommandUID {
		t.Errorf("EditFile = %+v, %v; want one change, user %d and no error", e, err, runtime.CommandUID)
	}
	if got := b.mustOutput(t, "cat src/a.go"); got != "func Bar() {}" {
		t.Errorf("file as seen by a command = %q, want %q", got, "func Bar() {}")
	}
	if _, err := b.EditFile(t.Context(),
		wire.EditRequest{FileRequest: wire.FileRequest{Path: "out/passwd"}, Old: "root",
			New: "toor"}); !errdefs.IsPermissionDenied(err) &&
		s.driver.Capabilities(s.Class).Has(runtime.CapFiles) {
		t.Errorf("edit outside the workspace: %v, want PermissionDenied", err)
	}
	for path, want := range map[string]string{".": "src/deep/b.txt", "/tmp": "/tmp/c.txt"} {
		g, err := b.Glob(t.Context(), wire.GlobRequest{FileRequest: wire.FileRequest{Path: path}, Pattern: "**/*.txt"})
		if err != nil || g.Truncated || len(g.Items) != 1 || g.Items[0].Path != want {
			t.Errorf("Glob in %s = %+v, %v; want only %s and no error", path, g, err, want)
		}
		f, err := b.Search(t.Context(), wire.SearchRequest{FileRequest: wire.FileRequest{Path: path}, Pattern: "^F.o$"})
		if err != nil || f.Truncated || len(f.Matches) != 1 || f.Matches[0].Path != want {
			t.Errorf("Search in %s = %+v, %v; want one match in %s and no error", path, f, err, want)
		}
	}
	if _, err := b.Stat(t.Context(),
		wire.FileRequest{Path: "link/a.go", NoFollow: true}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("stat through a link with NoFollow: %v, want PermissionDenied", err)
	}
	if _, err := b.WriteFile(t.Context(), wire.FileRequest{Path: "/tmp/d"}, strings.NewReader("x")); err != nil {
		t.Error(err)
	}
	if got := b.mustOutput(t, "cat /tmp/d; python3 -c 'import os; print(os.stat(\"/tmp/d\").st_uid)'"); got != "x1000" {
		t.Errorf("file and its user as seen by a command = %q, want %q", got, "x1000")
	}
	if err := b.Remove(t.Context(), wire.FileRequest{Path: "/tmp/d"}); err != nil {
		t.Error(err)
	}
}

// checkWorkspaceAliases checks that the workspace appears under the names in a claim, and that a
// claim with an invalid name fails.
func checkWorkspaceAliases(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	bad := wire.Claim{Lease: "lease", Alias: map[string]string{"/etc/projects": wire.Workspace}}
	if err := b.Claim(t.Context(), bad); !errdefs.IsInvalidArgument(err) {
		t.Errorf("claim with an alias outside home: %v, want InvalidArgument", err)
	}
	good := wire.Claim{Lease: "lease", Alias: map[string]string{"/home/user/work/projects": wire.Workspace}}
	for range 2 {
		if err := b.Claim(t.Context(), good); err != nil {
			t.Fatal(err)
		}
	}
	cmd := bash("echo text >f; cat /workspace/f; python3 -c 'import os; " +
		"print(os.stat(\"/home/user/work/projects\").st_uid)'")
	cmd.Cwd = "/home/user/work/projects"
	if o := b.runCommand(t, cmd); !o.exited(0) || !strings.HasPrefix(o.stdout, "text\n1000\n") {
		t.Errorf("command in the alias directory: %v; want exit code 0, and text and user 1000 in its output", o)
	}
	if got := readFile(t, b, wire.FileRequest{Path: "/home/user/work/projects/f"}); got != "text\n" {
		t.Errorf("file in the alias directory = %q, want %q", got, "text\n")
	}
}

// checkArgvRules checks that the guest enforces argument rules, and that a program planted by a
// command is not run instead of the image's.
func checkArgvRules(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	b.mustOutput(t,
		`mkdir bin; printf '#!/bin/sh\necho planted' >bin/echo; chmod +x bin/echo; ln -s /etc out; cp bin/echo /tmp/echo`)
	rules := &argv.Rules{Root: wire.Workspace, Programs: map[string]argv.Program{"echo": {}, "ls": {}, "cat": {}}}
	for _, path := range []string{"/workspace/bin:/tmp:/usr/bin:/bin", "bin:.:/usr/bin:/bin"} {
		o := b.runCommand(t, wire.Command{Argv: []string{"echo", "real;", "$HOME"}, Env: map[string]string{"PATH": path},
			Check: rules})
		if !o.exited(0) || o.stdout != "real; $HOME\n" {
			t.Errorf("echo with PATH %s: %v, want the image's echo", path, o)
		}
	}
	for _, args := range [][]string{
		{"rm", "-rf", "."}, {"bin/echo"}, {"/workspace/bin/echo"}, {"/tmp/echo"}, {"cat", "/etc/passwd"},
		{"cat", "out/passwd"}, {"ls", "../etc"}, {"sh", "-c", "true"},
	} {
		cmd := wire.Command{ID: "checked", Argv: args, Env: map[string]string{"PATH": "/workspace/bin:/usr/bin:/bin"},
			Check: rules}
		if o, err := b.Exec(t.Context(), cmd, guest.IO{}); !errdefs.IsPermissionDenied(err) ||
			!strings.HasPrefix(err.Error(), "argv") {
			t.Errorf("%q: %v, %v; want PermissionDenied on argv", args, o, err)
		}
		if sh, err := b.Start(t.Context(), cmd); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%q as a shell: %+v, %v; want PermissionDenied", args, sh, err)
		}
	}
	b.mustPing(t)
}
