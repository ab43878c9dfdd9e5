package server

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestTimeoutKillsEverything(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		marker := "81." + t.Name()[len(t.Name())-3:]
		cmd := wire.Command{Argv: []string{"sh", "-c", "echo before; setsid sleep 8111 & while :; do :; done", marker}}
		var a *answer
		var r runtime.Result
		metBy(300*time.Millisecond, func(timeout time.Duration) bool {
			cmd.Timeout = timeout
			a, r = run1(t, s, cmd)
			return a.stdout.Len() > 0
		})
		if r.Ending != runtime.Timeout || r.ExitCode != -1 || r.Unclean || r.Duration < cmd.Timeout {
			t.Errorf("the command ended as %+v, want a clean timeout with code -1 after %v or more", r,
				cmd.Timeout)
		}
		if a.stdout.String() != "before\n" {
			t.Errorf(`the command wrote %q, want "before\n"`, a.stdout.String())
		}
		nothingLeft(t, marker)
		nothingLeft(t, "8111")
	})
}

func TestTimeoutDuringOutputFlood(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		cmd := wire.Command{Argv: []string{"sh", "-c", "yes >&2 & yes"}}
		var a *answer
		metBy(200*time.Millisecond, func(timeout time.Duration) bool {
			cmd.Timeout = timeout
			k := dial(t, s, wire.OpExec, cmd)
			a = k.untilStarted()
			time.Sleep(timeout) // the host does not read: pipes and socket are full
			eventually(t, "no yes is left", func() bool { return len(withMarker(t, "yes")) == 0 })
			for !k.read(a) {
			}
			return a.stdout.Len() > 0
		})
		r := a.result(t)
		if r.Ending != runtime.Timeout {
			t.Errorf("the command ended as %+v, want a timeout", r)
		}
		if b := a.stdout.Bytes(); len(b) == 0 || len(bytes.Trim(b, "y\n")) > 0 {
			t.Errorf("stdout is %d bytes that end with %q, want some, and only lines of y", len(b), tail(b))
		}
	})
}

// Output that the host does not read uses the guest's memory. Each of many streams may hold only
// little.
func TestUnreadStreamsUseLittleMemory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	s := testServer(t, false)
	const streams = fullStreams + 8
	all := make([]*call, 0, streams)
	for range streams {
		k := dial(t, s, wire.OpExec, sh("exec yes"))
		k.untilStarted()
		all = append(all, k)
	}
	raw, err := all[streams-1].nc.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	before := -1
	eventually(t, "the stream is full", func() bool {
		var held int
		if err := raw.Control(func(fd uintptr) { held, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
			t.Fatal(err)
		}
		full := held > 0 && held == before
		before = held
		return full
	})
	// The kernel doubles the requested size, and accepts a whole piece while any room is left. Each
	// written piece has a frame header.
	if most := 3*writeBuffer + 64*wire.HeaderLen; before > most {
		t.Errorf("the last of %d streams holds %d bytes, want at most %d", streams, before, most)
	}
	for _, k := range all {
		k.nc.Close()
	}
	eventually(t, "all are dead", func() bool { return ask[wire.Pong](t, s, wire.OpPing, nil).Commands == 0 })
}

func TestOutputLimitEndsCommand(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		a, r := run1(t, s, wire.Command{Argv: []string{"yes"}, OutputLimit: 100_001})
		if r.Ending != runtime.OutputLimit || r.Unclean {
			t.Errorf("the command ended as %+v, want a clean %s", r, runtime.OutputLimit)
		}
		if a.stdout.Len() != 100_001 {
			t.Errorf("the command wrote %d bytes, want 100001", a.stdout.Len())
		}
		_, r = run1(t, s, wire.Command{Argv: []string{"head", "-c", "5000", "/dev/zero"}, OutputLimit: 5000})
		wantEnding(t, r, runtime.Exited, 0)
	})
}

func TestLimitDeterminesEnding(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	if os.Getenv(cgroupEnv) == "" {
		return // without delegated cgroups there are no limits to reach
	}
	s := testServer(t, true)
	_, r := run1(t, s, wire.Command{Argv: []string{"sh", "-c", "head -c 600m /dev/zero | tail"}, Timeout: bound})
	if r.Ending != runtime.OOM || r.Unclean {
		t.Errorf("the command over the memory limit ended as %+v, want a clean %s", r, runtime.OOM)
	}
	_, r = run1(t, s, wire.Command{Argv: []string{"sh", "-c",
		"i=0; while [ $i -lt 500 ]; do sleep 8333 & i=$((i+1)); done; exit 0"}, Timeout: bound})
	if r.Ending != runtime.Pids || r.Unclean {
		t.Errorf("the command over the limit of processes ended as %+v, want a clean %s", r, runtime.Pids)
	}
	nothingLeft(t, "8333")
	_, r = run1(t, s, sh("head -c 20m /dev/zero | tail -c 1 >/dev/null; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"))
	wantEnding(t, r, runtime.Exited, 0)
	if r.Usage.MemoryBytes == 0 || r.Usage.CPUUser+r.Usage.CPUSystem == 0 {
		t.Errorf("the usage is %+v, want some memory and CPU time", r.Usage)
	}
}

func TestCwdMustBeInAllowedDirectories(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		top, err := os.MkdirTemp(s.Workspace, "dirs")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(top, 0o755); err != nil {
			t.Fatal(err)
		}
		base := filepath.Base(top)
		for _, dir := range []string{"in/sub", "inner"} {
			if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		for name, target := range map[string]string{"in/out": "/tmp", "in/dots": "../inner", "in/here": "sub",
			"in/round": "round", "into": "in/sub", "in/proc": "/proc/self/cwd"} {
			if err := os.Symlink(target, filepath.Join(top, name)); err != nil {
				t.Fatal(err)
			}
		}
		for cwd, code := range map[string]string{
			"in": "", "in/sub": "", "in/sub/..": "", "in/here": "", "in/here/..": "", "into": "", "in/": "",
			"": wire.PermissionDenied, "inner": wire.PermissionDenied, "in/..": wire.PermissionDenied,
			"in/out": wire.PermissionDenied, "in/dots": wire.PermissionDenied,
			"in/proc": wire.PermissionDenied, "in/here/../..": wire.PermissionDenied, "in/none": wire.NotFound,
			"in/round": wire.InvalidArgument,
		} {
			for _, full := range []string{base + "/" + cwd, top + "/" + cwd} {
				a := dial(t, s, wire.OpExec,
					wire.Command{Argv: []string{"true"}, Cwd: full, Dirs: []string{"/no/such/folder", top + "/in"}}).all()
				switch {
				case code == "":
					wantEnding(t, a.result(t), runtime.Exited, 0)
				case a.failure == nil || a.failure.Code != code || a.failure.Field != "cwd":
					t.Errorf("cwd %q: %s, want %s of field cwd", full, describe(a.failure), code)
				}
			}
		}
	})
}
