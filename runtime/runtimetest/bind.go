package runtimetest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// workspace returns a temporary host directory with one file, both owned by the command user.
func workspace(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	err := errors.Join(os.WriteFile(file, []byte("content\n"), 0o644),
		os.Chown(file, runtime.CommandUID, runtime.CommandGID),
		os.Chown(dir, runtime.CommandUID, runtime.CommandGID), os.Chmod(dir, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func (b *box) bind(t *testing.T, source string, readOnly bool) {
	t.Helper()
	if err := b.Bind(t.Context(), runtime.Binding{Source: source, ReadOnly: readOnly}); err != nil {
		t.Fatalf("bind: %v", err)
	}
}

func (b *box) unbind(t *testing.T) {
	t.Helper()
	if err := b.Unbind(t.Context()); err != nil {
		t.Fatalf("unbind: %v", err)
	}
}

// checkLateBind checks that a bound workspace is visible at once, also to commands that already
// run, with the right owner, and that nothing writes to it after Unbind.
func checkLateBind(t *testing.T, s *suite) {
	t.Helper()
	b, dir := s.newSandbox(t, nil), workspace(t)
	b.mustOutput(t, "echo scratch >/workspace/scratch; mkdir /workspace/file")
	early := b.startCommand(t,
		bash("cd /; until grep -q content /workspace/file 2>/dev/null; do sleep 0.05; done; echo seen"), guest.IO{})
	b.bind(t, dir, false)
	if got := b.mustOutput(t, "cat /workspace/file; pwd; ls"); got != "content\n/workspace\nfile" {
		t.Errorf("file, directory and list right after Bind = %q, want %q", got, "content\n/workspace\nfile")
	}
	if o := early.waitResult(t); !strings.Contains(o.stdout, "seen") {
		t.Errorf("command started before Bind: %v, want it to see the file", o)
	}
	b.mustOutput(t, "echo more >>file; mkdir new; echo x >new/x; ln -s /etc/shadow link; chmod 4755 new/x; mkfifo fifo")
	var st syscall.Stat_t
	if err := syscall.Lstat(filepath.Join(dir, "new", "x"), &st); err != nil || st.Uid != runtime.CommandUID ||
		st.Gid != runtime.CommandGID {
		t.Errorf("new file on the host: uid %d, gid %d, %v; want %d, %d", st.Uid, st.Gid, err, runtime.CommandUID,
			runtime.CommandGID)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "file")); string(text) != "content\nmore\n" {
		t.Errorf("file on the host = %q, %v; want %q", text, err, "content\nmore\n")
	}
	// A workspace must be mounted nosuid and nodev: its files come from outside the image.
	for line := range strings.Lines(b.mustOutput(t, "grep ' /workspace ' /proc/self/mountinfo")) {
		if o := strings.Fields(line)[5]; !strings.Contains(o, "nosuid") || !strings.Contains(o, "nodev") {
			t.Errorf("workspace mount options = %q, want nosuid and nodev", o)
		}
	}
	if err := b.Bind(t.Context(), runtime.Binding{Source: workspace(t)}); err == nil {
		t.Error("second Bind succeeded, want error")
	}
	b.unbind(t)
	if got := b.mustOutput(t, "ls /workspace; cat /workspace/scratch"); got != "file\nscratch\nscratch" {
		t.Errorf("workspace after Unbind: %q, want the scratch directory", got)
	}
	checkUnbindBusy(t, b, dir)
	checkRebind(t, b)
	checkRefusedBinds(t, b)
}

// checkUnbindBusy checks that Unbind fails while a command has a file of the workspace open, and
// that nothing writes to the workspace once Unbind has succeeded.
func checkUnbindBusy(t *testing.T, b *box, dir string) {
	t.Helper()
	b.bind(t, dir, false)
	cmd := bash("cd /workspace; exec 3>>log; (setsid bash -c 'while :; do echo more >&3; sleep 0.01; done' &) ; while " +
		":; do echo more >&3; sleep 0.01; done")
	cmd.ID = "writer"
	if _, err := b.Start(t.Context(), cmd); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	size := func() int64 {
		info, err := os.Stat(log)
		if err != nil {
			return -1
		}
		return info.Size()
	}
	eventually(t, "the writer has written", func() (bool, string) { n := size(); return n > 20, fmt.Sprint(n) })
	if err := b.Unbind(t.Context()); err == nil {
		t.Error("Unbind of a workspace in use succeeded, want error")
	}
	if _, err := b.Kill(t.Context(), wire.Kill{ID: "writer"}); err != nil {
		t.Fatal(err)
	}
	b.unbind(t)
	after := size()
	b.mustOutput(t, "for i in {1..20}; do echo lost >>/workspace/log; echo lost >>log; sleep 0.02; done")
	if n := size(); n != after {
		t.Errorf("log grew from %d to %d bytes after Unbind, want the same size", after, n)
	}
	b.mustOutput(t, "rm /workspace/log")
	for _, left := range []string{"scratch", "lost"} {
		if _, err := os.Lstat(filepath.Join(dir, left)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lstat of %s in the workspace: %v, want that it does not exist", left, err)
		}
	}
}

// checkRebind checks that a newly bound workspace shows nothing of the previous one.
func checkRebind(t *testing.T, b *box) {
	t.Helper()
	other := workspace(t)
	for range 3 {
		b.bind(t, other, false)
		if got := b.mustOutput(t, "ls -A /workspace"); got != "file" {
			t.Errorf("next workspace contains %q, want only %q", got, "file")
		}
		b.unbind(t)
	}
}

func checkRefusedBinds(t *testing.T, b *box) {
	t.Helper()
	dir := workspace(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"", "relative", filepath.Join(dir, "file"), filepath.Join(dir, "none"), link} {
		if err := b.Bind(t.Context(), runtime.Binding{Source: source}); err == nil {
			t.Errorf("Bind(%q) succeeded, want error", source)
			b.unbind(t)
		}
	}
	if got := b.mustOutput(t, "cat /workspace/scratch"); got != "scratch" {
		t.Errorf("after refused binds: scratch = %q, want %q", got, "scratch")
	}
}

// checkLateBindReadOnly checks that no command can change a read-only workspace.
func checkLateBindReadOnly(t *testing.T, s *suite) {
	t.Helper()
	b, dir := s.newSandbox(t, nil), workspace(t)
	b.bind(t, dir, true)
	if got := b.mustOutput(t, "cat file"); got != "content" {
		t.Errorf("file = %q, want %q", got, "content")
	}
	for _, line := range []string{
		"echo x >>file", "echo x >file", "echo x >new", "rm file", "mv file other", "mkdir d", "ln file hard", "ln -s x soft",
		"chmod 777 file", "chmod 777 .",
		"touch file", "touch -d @0 .", "truncate -s 0 file", "mount -o remount,rw,bind /workspace", "umount /workspace",
		"mkfifo fifo",
		"exec 3<>file", "python3 -c 'import os; os.setxattr(\"file\", \"user.x\", b\"x\")'",
		"cd /proc/self/cwd && echo x >new", "echo x >/proc/self/root/workspace/new",
	} {
		o := b.sh(t, line)
		if o.exited(0) {
			t.Errorf("%s: %v, want failure", line, o)
		}
		if strings.HasPrefix(line, "echo") && !strings.Contains(o.stderr, "Read-only file system") {
			t.Errorf("%s: %v, want EROFS", line, o)
		}
	}
	if _, err := b.WriteFile(t.Context(), wire.FileRequest{Path: "new"}, strings.NewReader("x")); err == nil {
		t.Error("WriteFile to a read-only workspace succeeded, want error")
	}
	entries, err := os.ReadDir(dir)
	text, rerr := os.ReadFile(filepath.Join(dir, "file"))
	if err != nil || rerr != nil || len(entries) != 1 || string(text) != "content\n" {
		t.Errorf("workspace on the host = %v, file %q, %v, %v; want it unchanged", entries, text, err, rerr)
	}
	b.unbind(t)
	b.bind(t, dir, false)
	b.mustOutput(t, "echo x >>file")
	b.unbind(t)
}

// checkNoLateBind checks that a driver without late binding returns NotImplemented and that the
// sandbox still works.
func checkNoLateBind(t *testing.T, s *suite) {
	t.Helper()
	for _, readOnly := range []bool{false, true} {
		if err := s.plain.Bind(t.Context(),
			runtime.Binding{Source: workspace(t), ReadOnly: readOnly}); !errdefs.IsNotImplemented(err) {
			t.Errorf("Bind: %v, want NotImplemented", err)
		}
	}
	if err := s.plain.Unbind(t.Context()); !errdefs.IsNotImplemented(err) {
		t.Errorf("Unbind: %v, want NotImplemented", err)
	}
	if got := s.plain.mustOutput(t, "echo x >/workspace/x; cat /workspace/x; rm /workspace/x"); got != "x" {
		t.Errorf("scratch file = %q, want %q", got, "x")
	}
}
