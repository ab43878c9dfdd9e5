package runtimetest

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// checkFiles checks the guest's file operations.
func checkFiles(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	const size = 3 << 20
	text := strings.Repeat("0123456789abcdef", size/16)
	info, err := b.WriteFile(t.Context(), wire.FileRequest{Path: "a/b/file", Mode: 0o640}, strings.NewReader(text))
	if err != nil {
		if _, merr := b.Mkdir(t.Context(), wire.FileRequest{Path: "a/b"}); merr != nil {
			t.Fatal(err, merr)
		}
		info, err = b.WriteFile(t.Context(), wire.FileRequest{Path: "a/b/file", Mode: 0o640}, strings.NewReader(text))
	}
	if err != nil || info.Size != size || info.UID != runtime.CommandUID {
		t.Fatalf("WriteFile = %+v, %v; want %d bytes of user %d and no error", info, err, size, runtime.CommandUID)
	}
	if got := b.mustOutput(t,
		"python3 -c 'import os; s = os.stat(\"a/b/file\"); print(s.st_size, s.st_uid, s.st_gid, oct(s.st_mode & "+
			"0o7777)[2:])'; md5sum <a/b/file"); !strings.HasPrefix(got, fmt.Sprintf("%d 1000 1000 640\n", size)) {
		t.Errorf("file as seen by a command = %q, want %d bytes, user and group 1000, mode 640", got, size)
	}
	if got := readFile(t, b, wire.FileRequest{Path: "/workspace/a/b/file", Offset: 16, Limit: 20}); got != text[16:36] {
		t.Errorf("read 20 bytes at 16: %q, want %q", got, text[16:36])
	}
	if got := readFile(t, b, wire.FileRequest{Path: "a/b/file"}); got != text {
		t.Errorf("read all: %d bytes, want the %d written", len(got), len(text))
	}
	if _, err := b.Move(t.Context(), wire.FileRequest{Path: "a/b/file", To: "moved"}); err != nil {
		t.Error(err)
	}
	list, err := b.List(t.Context(), wire.FileRequest{Path: "."})
	if err != nil || len(list.Items) != 2 || list.Items[1].Name != "moved" {
		t.Errorf("List = %+v, %v; want two items, the second %q, and no error", list, err, "moved")
	}
	if err := b.Remove(t.Context(), wire.FileRequest{Path: "a", Recursive: true}); err != nil {
		t.Error(err)
	}
	if s.driver.Capabilities(s.Class).Has(runtime.CapFiles) {
		checkOutsidePaths(t, b)
	}
}

// checkOutsidePaths checks that no path leads out of the workspace and that special files do not
// block the guest.
func checkOutsidePaths(t *testing.T, b *box) {
	t.Helper()
	b.mustOutput(t, "ln -s /etc/passwd link; ln -s / root; ln -s ../../run up; mkfifo fifo; mkdir dir; ln -s /dev/zero "+
		"zero; ln -s moved fine; python3 -c "+
		`'import socket; socket.socket(socket.AF_UNIX).bind("sock")'`)
	for _, path := range []string{
		"../etc/passwd", "/etc/passwd", "link", "root/etc/passwd", "up/orchestrator/guest", "fifo", "dir", "zero", "sock", "",
		"a\x00b", "none",
		"/proc/self/environ", "root/proc/1/environ", "dir/../../etc/passwd", strings.Repeat("x", 5000),
	} {
		began := time.Now()
		r, _, err := b.ReadFile(t.Context(), wire.FileRequest{Path: path})
		if err == nil {
			r.Close()
			t.Errorf("ReadFile(%.80q) succeeded, want error", path)
		}
		if errdefs.IsUnavailable(err) || time.Since(began) > Patience/2 {
			t.Errorf("ReadFile(%.80q) after %s: %v; want an answer of the guest within %s",
				path, time.Since(began), err, Patience/2)
		}
	}
	for _, path := range []string{"../tmp/x", "/tmp/../etc/x", "/var/tmp/x", "root/tmp/x", "up/x", "link", "root"} {
		if _, err := b.WriteFile(t.Context(), wire.FileRequest{Path: path}, strings.NewReader("x")); err == nil &&
			path != "link" && path != "root" {
			t.Errorf("WriteFile(%q) succeeded, want error", path)
		}
		if err := b.Remove(t.Context(), wire.FileRequest{Path: "root/tmp", Recursive: true}); err == nil {
			t.Error("Remove of a directory outside succeeded, want error")
		}
	}
	if got := b.mustOutput(t, "ls -A /tmp; head -c4 /etc/passwd"); got != "root" {
		t.Errorf("files outside = %q, want %q", got, "root")
	}
	if _, err := b.WriteFile(t.Context(), wire.FileRequest{Path: "big"}, endless{}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("WriteFile of endless input: %v, want ResourceExhausted", err)
	}
	b.mustOutput(t, "echo x >small; cat small; ls")
}

func readFile(t *testing.T, b *box, q wire.FileRequest) string {
	t.Helper()
	r, _, err := b.ReadFile(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
