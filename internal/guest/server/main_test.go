package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// both runs a test with cgroups, if available, and with group ids.
func both(t *testing.T, f func(*testing.T, *Server)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	if os.Getenv(cgroupEnv) != "" {
		t.Run("cgroup", func(t *testing.T) { f(t, testServer(t, true)) })
	}
	t.Run("tag", func(t *testing.T) { f(t, testServer(t, false)) })
}

// bothAtOnce is like both, for tests that mostly wait. The two runs are concurrent, so each needs
// its own names.
func bothAtOnce(t *testing.T, f func(*testing.T, *Server)) {
	t.Helper()
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		t.Parallel()
		f(t, s)
	})
}

// A process can have only one reaper, so all tests share the two servers that use it.
var (
	serversOnce sync.Once
	serverCG    *Server
	serverTag   *Server
	workspace   string
)

func testServer(tb testing.TB, cg bool) *Server {
	tb.Helper()
	serversOnce.Do(func() {
		workspace = os.Getenv(workspaceEnv)
		serverTag = newTestServer(tb, nil)
		if dir := os.Getenv(cgroupEnv); dir != "" {
			tree, err := cgroup.OpenTree(dir)
			if err != nil {
				tb.Fatal(err)
			}
			serverCG = newTestServer(tb, tree)
		}
	})
	if cg {
		return serverCG
	}
	return serverTag
}

func newTestServer(tb testing.TB, tree *cgroup.Tree) *Server {
	tb.Helper()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := New(Options{Tree: tree, Workspace: workspace, Sessions: filepath.Join(workspace, "sh"),
		Programs: map[string]string{"echo": "/bin/echo", "none": "/none"}, Log: log})
	if err != nil {
		tb.Fatal(err)
	}
	if serverTag != nil { // a process can have only one reaper
		s.spares.forker, s.reaper = serverTag.spares.forker, serverTag.reaper
		go s.spares.keepFull(context.Background())
		go s.watchTracers(context.Background())
		return s
	}
	go s.Run(context.Background())
	return s
}

// call is the host's side of one stream.
type call struct {
	t  testing.TB
	nc net.Conn
	c  *wire.Conn
}

func dial(tb testing.TB, s *Server, op wire.Op, body any) *call {
	tb.Helper()
	return dialAs(tb, s, 0, op, body)
}

// dialAs is dial of a host with an epoch.
func dialAs(tb testing.TB, s *Server, epoch int64, op wire.Op, body any) *call {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "stream")
		if ends[i], err = net.FileConn(f); err != nil {
			tb.Fatal(err)
		}
		f.Close()
	}
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(ends[1]) }()
	if err := ends[0].SetDeadline(time.Now().Add(bound)); err != nil {
		tb.Fatal(err)
	}
	k := &call{t: tb, nc: ends[0], c: wire.NewExactConn(ends[0])}
	tb.Cleanup(func() {
		k.nc.Close()
		select {
		case <-served:
		case <-time.After(bound):
			tb.Errorf("the stream of %s is served %s after the host closed it, want it ended", op, bound)
		}
	})
	raw, err := json.Marshal(body)
	if err != nil {
		tb.Fatal(err)
	}
	if err := k.c.WriteJSON(wire.KindRequest, wire.Request{Version: wire.Version, Op: op, Epoch: epoch,
		Body: raw}); err != nil {
		tb.Fatal(err)
	}
	return k
}

// answer contains everything that a stream received up to its last frame.
type answer struct {
	started bool
	stdout  bytes.Buffer
	stderr  bytes.Buffer
	data    bytes.Buffer
	chunks  []int64
	reply   []byte
	failure *wire.Failure
}

func (k *call) read(a *answer) bool {
	k.t.Helper()
	kind, p, err := k.c.ReadFrame()
	if err != nil {
		k.t.Fatalf("read frame: %v; had %q %q", err, tail(a.stdout.Bytes()), tail(a.stderr.Bytes()))
	}
	switch kind {
	case wire.KindStarted:
		a.started = true
	case wire.KindStdout:
		a.stdout.Write(p)
	case wire.KindStderr:
		a.stderr.Write(p)
	case wire.KindData:
		a.data.Write(p)
	case wire.KindChunk:
		var c wire.Chunk
		if err := json.Unmarshal(p, &c); err != nil {
			k.t.Fatal(err)
		}
		a.chunks = append(a.chunks, c.Offset)
	case wire.KindReply:
		a.reply = bytes.Clone(p)
		return true
	case wire.KindFailure:
		a.failure = &wire.Failure{}
		if err := json.Unmarshal(p, a.failure); err != nil {
			k.t.Fatal(err)
		}
		return true
	default:
		k.t.Fatalf("read a frame of kind %q, want one of an answer", byte(kind))
	}
	return false
}

func tail(b []byte) []byte { return b[max(0, len(b)-200):] }

// describe returns a failure with its code, for the message of a failed test.
func describe(f *wire.Failure) string {
	if f == nil {
		return "no failure"
	}
	return fmt.Sprintf("%s of field %s (%s)", f.Code, f.Field, f.Message)
}

func (k *call) all() *answer {
	k.t.Helper()
	a := &answer{}
	for !k.read(a) {
	}
	return a
}

func (k *call) untilStarted() *answer {
	k.t.Helper()
	a := &answer{}
	for !a.started {
		if k.read(a) {
			k.t.Fatalf("the stream ended with %s, reply %s; want it started first", describe(a.failure),
				a.reply)
		}
	}
	return a
}

func (a *answer) result(tb testing.TB) runtime.Result {
	tb.Helper()
	if a.failure != nil {
		tb.Fatalf("the command failed: %s, want a result", describe(a.failure))
	}
	var r runtime.Result
	if err := json.Unmarshal(a.reply, &r); err != nil {
		tb.Fatal(err)
	}
	return r
}

func ask[Out any](tb testing.TB, s *Server, op wire.Op, body any) Out {
	tb.Helper()
	a := dial(tb, s, op, body).all()
	if a.failure != nil {
		tb.Fatalf("%s: %s, want a reply", op, describe(a.failure))
	}
	var out Out
	if err := json.Unmarshal(a.reply, &out); err != nil {
		tb.Fatal(err)
	}
	return out
}

func sh(script string) wire.Command { return wire.Command{Argv: []string{"sh", "-c", script}} }

func run1(tb testing.TB, s *Server, cmd wire.Command) (*answer, runtime.Result) {
	tb.Helper()
	a := dial(tb, s, wire.OpExec, cmd).all()
	return a, a.result(tb)
}

func wantEnding(tb testing.TB, r runtime.Result, ending runtime.Ending, code int) {
	tb.Helper()
	if r.Ending != ending || r.ExitCode != code || r.Unclean {
		tb.Errorf("ended as %+v, want %s with code %d", r, ending, code)
	}
}

// nothingLeft checks that no process has the marker in its arguments.
func nothingLeft(tb testing.TB, marker string) {
	tb.Helper()
	if pids := withMarker(tb, marker); len(pids) > 0 {
		tb.Errorf("processes %v of %s are alive, want none", pids, marker)
	}
}

func withMarker(tb testing.TB, marker string) []int {
	tb.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		tb.Fatal(err)
	}
	var found []int
	for _, name := range names {
		b, err := os.ReadFile(name)
		pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
		if err == nil && pid != os.Getpid() && slices.ContainsFunc(bytes.Split(b, []byte{0}), func(a []byte) bool {
			// arguments of go test, which spares have too
			return bytes.Contains(a, []byte(marker)) && !bytes.HasPrefix(a, []byte("-test."))
		}) {
			found = append(found, pid)
		}
	}
	return found
}

// metBy runs f with a timeout that the command is expected to exceed. It repeats f with a longer
// one while f reports that the command had not started by then, because a busy machine starts
// programs slowly.
func metBy(timeout time.Duration, f func(time.Duration) (begun bool)) {
	for !f(timeout) && timeout < bound {
		timeout *= 4
	}
}

var eventually = testenv.Eventually
