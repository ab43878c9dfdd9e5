package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

func TestFenceEndsRequestsOfOlderHostFirst(t *testing.T) {
	t.Parallel()
	var f fence
	host, conn := net.Pipe()
	defer host.Close()
	_, leave, err := f.enter(t.Context(), wire.Request{Op: wire.OpExec, Epoch: 1}, conn, func() {})
	if err != nil {
		t.Fatal(err)
	}
	left := make(chan struct{})
	go func() { // the request ends when its stream does
		_, _ = conn.Read(make([]byte, 1))
		close(left)
		leave()
	}()
	cuts := 0
	_, newer, err := f.enter(t.Context(), wire.Request{Op: wire.OpPing, Epoch: 2}, conn, func() { cuts++ })
	if err != nil {
		t.Fatalf("enter of a newer host: %v", err)
	}
	defer newer()
	select {
	case <-left:
	default:
		t.Error("the newer host was admitted before the older request ended, want it admitted after that")
	}
	if _, err := host.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("Read of the older host = %v, want EOF", err)
	}
	_, again, err := f.enter(t.Context(), wire.Request{Op: wire.OpClaim, Epoch: 2}, conn, func() { cuts++ })
	if err != nil || cuts != 1 {
		t.Fatalf("second enter of the newer host = %v after %d cuts, want nil and one cut", err, cuts)
	}
	again()
}

func TestFenceRefusesOlderHost(t *testing.T) {
	t.Parallel()
	var f fence
	_, leave, err := f.enter(t.Context(), wire.Request{Op: wire.OpPing, Epoch: 5}, nil, func() {})
	if err != nil {
		t.Fatal(err)
	}
	leave()
	for _, req := range []wire.Request{
		{Op: wire.OpPing, Epoch: 4}, {Op: wire.OpPing}, {Op: wire.OpClaim, Epoch: 4}, {Op: wire.OpExec}, {Op: wire.OpEnd, Epoch: 1},
	} {
		_, _, err := f.enter(t.Context(), req, nil, func() {})
		if e, ok := errors.AsType[*wire.Failure](err); !ok || e.Code != wire.FailedPrecondition || e.Field != wire.FieldEpoch {
			t.Errorf("enter(%s of epoch %d) = %v, want FailedPrecondition of field epoch", req.Op, req.Epoch, err)
		}
	}
}

func TestFenceAdmitsNewerHostDespiteStuckRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := fence{log: slog.New(slog.DiscardHandler)}
		host, conn := net.Pipe()
		defer host.Close()
		stuck, leave, err := f.enter(t.Context(), wire.Request{Op: wire.OpWrite, Epoch: 1}, conn, func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		began := time.Now()
		for _, op := range []wire.Op{wire.OpPing, wire.OpKill, wire.OpClaim, wire.OpEnd} {
			_, newer, err := f.enter(t.Context(), wire.Request{Op: op, Epoch: 2}, nil, func() {})
			if err != nil {
				t.Fatalf("enter(%s) of a newer host: %v", op, err)
			}
			newer()
		}
		if took := time.Since(began); took != fenceTime {
			t.Errorf("all requests of the newer host waited %s, want %s", took, fenceTime)
		}
		if err := context.Cause(stuck); !errors.Is(err, errReplaced) {
			t.Errorf("the context of the stuck request ended with %v, want %v", err, errReplaced)
		}
	})
}

func TestFenceRefusesHostReplacedWhileItWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := fence{log: slog.New(slog.DiscardHandler)}
		enter := func(epoch int64) (leave func(), err error) {
			host, conn := net.Pipe()
			t.Cleanup(func() { host.Close() })
			_, leave, err = f.enter(t.Context(), wire.Request{Op: wire.OpStart, Epoch: epoch}, conn, func() {})
			return leave, err
		}
		leave, err := enter(1)
		if err != nil {
			t.Fatal(err)
		}
		second := make(chan error, 1)
		go func() {
			_, err := enter(2)
			second <- err
		}()
		synctest.Wait()
		go func() {
			defer leave()
			if err := <-second; err == nil {
				t.Error("the second host was admitted after the third had replaced it, want an error")
			}
		}()
		newest, err := enter(3)
		if err != nil {
			t.Fatalf("enter of the newest host: %v", err)
		}
		newest()
	})
}

// openOf counts the requests of hosts with this epoch.
func (f *fence) openOf(epoch int64) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for r := range f.open {
		if r.epoch == epoch {
			n++
		}
	}
	return n
}

// dialAlone is dial. It returns once the server serves this request and no other.
func dialAlone(t *testing.T, s *Server, op wire.Op, body any) *call {
	t.Helper()
	eventually(t, "all earlier requests have ended", func() bool { return s.fence.openOf(0) == 0 })
	k := dial(t, s, op, body)
	eventually(t, "the request is served", func() bool { return s.fence.openOf(0) == 1 })
	return k
}

// replaceHost replaces the host without an epoch, and checks that its requests have then ended. The
// test's cleanup admits that host again.
func replaceHost(t *testing.T, s *Server) {
	t.Helper()
	t.Cleanup(func() {
		s.fence.mu.Lock()
		defer s.fence.mu.Unlock()
		s.fence.epoch = 0
	})
	if a := dialAs(t, s, 1, wire.OpPing, nil).all(); a.failure != nil {
		t.Errorf("ping of the newer host: %s, want no failure", describe(a.failure))
	}
	if n := s.fence.openOf(0); n != 0 {
		t.Errorf("%d requests of the older host are served after the newer one was admitted, want 0", n)
	}
}

// startWaiting starts a shell that reads its input only after SIGUSR1, and ignores SIGTERM.
func startWaiting(t *testing.T, s *Server) wire.Shell {
	t.Helper()
	sh := start(t, s, wire.Command{Stdin: true, Argv: []string{"sh", "-c",
		`trap '' TERM; trap go=1 USR1; echo ready; until [ "$go" ]; do sleep 0.05; done; wc -c`}})
	output(t, s, wire.Output{ID: sh.ID, Wait: maxWait})
	return sh
}

// sendAndLeave sends more input than a pipe holds, and disconnects. It returns once the pipe has
// some of it.
func sendAndLeave(t *testing.T, s *Server, id string) {
	t.Helper()
	k := dialAlone(t, s, wire.OpInput, wire.ShellRef{ID: id})
	err := k.c.WriteFrame(wire.KindStdin, bytes.Repeat([]byte("x"), wire.MaxFrame))
	if err == nil {
		err = k.c.WriteFrame(wire.KindEOF, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	k.nc.Close()
	sh, err := s.findShell(id)
	if err != nil {
		t.Fatal(err)
	}
	in, err := sh.run.spare.in.ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pipe has input", func() bool {
		var n int
		err := in.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		return err == nil && n > 0
	})
}

func TestNewerHostEndsUnreadInput(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		sendAndLeave(t, s, startWaiting(t, s).ID)
		replaceHost(t, s)
	})
}

func TestDisconnectDoesNotEndUnreadInput(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		sh := startWaiting(t, s)
		sendAndLeave(t, s, sh.ID)
		ask[struct{}](t, s, wire.OpSignal, wire.Signal{ID: sh.ID, Number: int(syscall.SIGUSR1)})
		a, _ := output(t, s, wire.Output{ID: sh.ID, Offset: int64(len("ready\n")), Follow: true})
		if got, want := a.data.String(), fmt.Sprintln(wire.MaxFrame); got != want {
			t.Errorf("the shell counted %q bytes of input, want %q", got, want)
		}
	})
}

func TestNewerHostEndsKillInGrace(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		sh := startWaiting(t, s)
		dialAlone(t, s, wire.OpKill, wire.Kill{ID: sh.ID, Grace: maxGrace})
		replaceHost(t, s)
		a := dialAs(t, s, 1, wire.OpKill, wire.Kill{ID: sh.ID}).all()
		if a.failure != nil {
			t.Errorf("kill of the newer host: %s, want no failure", describe(a.failure))
		}
	})
}

func TestNewerHostEndsWaitForSession(t *testing.T) {
	s := testServer(t, false)
	se := &session{s: s, started: make(chan struct{}), done: make(chan struct{}),
		run: &commandRun{over: true, spare: &spare{process: &prefork.Process{}}}}
	close(se.started)
	register := func(f func(map[string]*session)) {
		s.mu.Lock()
		defer s.mu.Unlock()
		f(s.sessions)
	}
	register(func(m map[string]*session) { m["stuck"] = se })
	t.Cleanup(func() { register(func(m map[string]*session) { delete(m, "stuck") }) })
	dialAlone(t, s, wire.OpSessionEnd, wire.ShellRef{ID: "stuck"})
	replaceHost(t, s)
}

func TestNewerHostEndsSessionThatStays(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		se := openSession(t, s, wire.SessionStart{})
		se.dial(wire.SessionExec{Text: "trap '' INT; while :; do :; done"}).untilStarted()
		replaceHost(t, s)
	})
}

func TestNewerHostEndsDial(t *testing.T) {
	s := testServer(t, false)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.Listen(fd, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := name.(*unix.SockaddrInet4).Port
	for { // until the backlog is full
		nc, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
		if err != nil {
			break
		}
		t.Cleanup(func() { nc.Close() })
	}
	dialAlone(t, s, wire.OpDial, wire.Dial{Port: port})
	replaceHost(t, s)
}
