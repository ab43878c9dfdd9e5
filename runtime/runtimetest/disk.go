package runtimetest

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// wantDiskFull checks that a command ended with runtime.Disk, the given exit code, and the full
// file system in its detail.
func wantDiskFull(t *testing.T, o outcome, code int, place string) {
	t.Helper()
	if o.Ending != runtime.Disk || o.ExitCode != code || !strings.Contains(o.Detail, place+" (") {
		t.Errorf("%s full: %v, want ending disk with code %d", place, o, code)
	}
}

// checkEndingDisk checks that a command that fails for lack of space ends with runtime.Disk and
// names the full file system, and that other failures do not.
func checkEndingDisk(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	for _, place := range []string{"/tmp", "/home/user", "/workspace", "/dev/shm"} {
		wantDiskFull(t, b.sh(t, "head -c 1G /dev/zero >"+place+"/x"), 1, place)
		wantDiskFull(t, b.sh(t, "echo more >"+place+"/y || exit 9"), 9, place)
		o := b.sh(t, "exit 7")
		if !o.exited(7) || !strings.Contains(o.Detail, place) {
			t.Errorf("exit 7 while %s was full: %v, want code 7 and %s in the detail", place, o, place)
		}
		if o := b.sh(t, "true"); !o.exited(0) || o.Detail != "" {
			t.Errorf("true while %s was full: %v, want success without detail", place, o)
		}
		if o := b.sh(t, "rm "+place+"/?; echo x >"+place+"/y && cat "+place+"/y && rm "+place+"/y"); !o.exited(0) ||
			o.stdout != "x\n" {
			t.Errorf("after freeing %s: %v, want success", place, o)
		}
	}
	if o := b.sh(t, "echo No space left on device >&2; exit 4"); !o.exited(4) {
		t.Errorf("command that only prints the message: %v, want code 4", o)
	}
	checkMemfd(t, b)
}

// checkMemfd checks that a memfd counts as memory of the command that writes it.
func checkMemfd(t *testing.T, b *box) {
	t.Helper()
	o, err := b.tryCommand(t.Context(), python("room", "memfd"), guest.IO{})
	if err != nil && b.suite.driver.Capabilities(b.suite.Class).Has(runtime.CapCommandCgroup) {
		t.Fatalf("guest lost with the command: %v, want only the command lost", err)
	}
	if err == nil && (o.exited(0) || o.Ending == runtime.Disk) {
		t.Errorf("unlimited memfd: %v, want failure", o)
	}
}

// quotaWorkspace returns a workspace directory on its own quota of the given size, and the
// directory to bind.
func quotaWorkspace(t *testing.T, bytes int64) (dir, data string) {
	t.Helper()
	dir = t.TempDir()
	opt := quotadir.Options{Bytes: bytes, Mechanism: quotadir.Loop, UID: runtime.CommandUID, GID: runtime.CommandGID}
	if err := quotadir.Make(t.Context(), dir, opt); err != nil {
		t.Fatal(err)
	}
	root, err := quotadir.Mount(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Patience)
		defer cancel()
		if err := quotadir.Unmount(ctx, dir); err != nil {
			t.Errorf("unmount workspace: %v", err)
		}
	})
	return dir, root
}

// checkQuota checks that a workspace cannot exceed its quota, whatever way it is filled, and that
// the sandbox and the host keep working.
func checkQuota(t *testing.T, s *suite) {
	t.Helper()
	const size = 24 << 20
	dir, data := quotaWorkspace(t, size)
	b := s.newSandbox(t, nil)
	b.bind(t, data, false)
	wantDiskFull(t, b.sh(t, "head -c 1G /dev/zero >x"), 1, "/workspace")
	if fi, err := os.Stat(filepath.Join(data, "x")); err != nil || fi.Size() > size || fi.Size() < size*9/10 {
		t.Errorf("file in a workspace of %d bytes: %v, %v; want 90%% to 100%% of the workspace", size, fi, err)
	}
	wantDiskFull(t, b.sh(t, "rm x; for i in {1..200}; do head -c 1M /dev/zero >$i || exit 3; done"), 3, "/workspace")
	b.mustOutput(t, "rm [0-9]*; echo room >x; cat x")

	// Fill it with empty files, with a deleted open file, and with sparse and preallocated files.
	o := b.runCommand(t, python("flood", "inodes", "/workspace"))
	wantDiskFull(t, o, 1, "/workspace")
	b.mustOutput(t, "find . -type f -delete")
	var got struct {
		Held   int64  `json:"held"`
		Result string `json:"result"`
		Other  string `json:"other"`
	}
	o = b.runCommand(t, python("room", "nameless", "/workspace"))
	if err := json.Unmarshal([]byte(o.stdout), &got); err != nil || got.Result != "ENOSPC" || got.Other != "ENOSPC" ||
		got.Held > size || got.Held < size*9/10 {
		t.Errorf("deleted open file: %+v, %v; want about %d bytes, then ENOSPC", got, o, size)
	}
	b.mustOutput(t, "truncate -s 1T hole && rm hole && head -c 10M /dev/zero >x")
	if o := b.sh(t, "fallocate -l 1G y"); o.exited(0) {
		t.Errorf("fallocate of 1 GiB: %v, want failure", o)
	}
	if use, err := quotadir.UsageOf(dir); err != nil || use.Bytes > size+size/10 {
		t.Errorf("quotadir.UsageOf = %+v, %v; want at most %d bytes", use, err, size+size/10)
	}
	b.mustPing(t)
	b.unbind(t)
}
