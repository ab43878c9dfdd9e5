package files

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// workspace returns a new directory of user 1000 that this user can reach.
func workspace(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	dir, err := os.MkdirTemp("/tmp", "files-test-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chown(dir, 1000, 1000))
	must(t, os.Chmod(dir, 0o755))
	return dir
}

func serve(t *testing.T, dir string) *Server {
	t.Helper()
	s := New(Options{Dir: dir, Tmp: filepath.Join(dir, "none"), Home: filepath.Join(dir, "none")})
	t.Cleanup(s.Close)
	return s
}

func pair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	var ends [2]net.Conn
	for i, n := range fds {
		f := os.NewFile(uintptr(n), "pair")
		ends[i], err = net.FileConn(f)
		must(t, err)
		must(t, f.Close())
	}
	t.Cleanup(func() { _ = ends[0].Close(); _ = ends[1].Close() })
	must(t, ends[0].SetDeadline(time.Now().Add(60*time.Second)))
	return ends[0], ends[1]
}

// reply is the answer to an operation.
type reply struct {
	data    []byte
	started wire.FileInfo
	failure *wire.Failure
	last    []byte
}

// ask runs one operation. If body is not nil, it is sent in frames.
func ask(t *testing.T, s *Server, op wire.Op, q wire.FileRequest, body []byte) reply {
	t.Helper()
	host, guest := pair(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer host.Close()
	raw, err := json.Marshal(q)
	must(t, err)
	wg.Go(func() {
		defer guest.Close()
		_ = s.Handle(context.Background(), op, raw, wire.NewConn(guest))
	})
	c := wire.NewConn(host)
	if body != nil {
		wg.Go(func() {
			for len(body) > 0 {
				n := min(len(body), 100_000)
				if c.WriteFrame(wire.KindStdin, body[:n]) != nil {
					return
				}
				body = body[n:]
			}
			_ = c.WriteFrame(wire.KindEOF, nil)
		})
	}
	return answerOf(t, c)
}

func answerOf(t *testing.T, c *wire.Conn) (r reply) {
	t.Helper()
	for {
		kind, payload, err := c.ReadFrame()
		must(t, err)
		switch kind {
		case wire.KindStarted:
			must(t, json.Unmarshal(payload, &r.started))
		case wire.KindData:
			r.data = append(r.data, payload...)
		case wire.KindFailure:
			r.failure = &wire.Failure{}
			must(t, json.Unmarshal(payload, r.failure))
			return r
		case wire.KindReply:
			r.last = bytes.Clone(payload)
			return r
		default:
			t.Fatalf("frame of kind %q, want data, a reply or a failure", kind)
		}
	}
}

func (r reply) info(t *testing.T) (i wire.FileInfo) {
	t.Helper()
	if r.failure != nil {
		t.Fatalf("request refused: %v, want a reply", r.failure)
	}
	must(t, json.Unmarshal(r.last, &i))
	return i
}

func (r reply) code() string {
	if r.failure == nil {
		return ""
	}
	return r.failure.Code
}

func TestFilesBelongToCommandUser(t *testing.T) {
	s := serve(t, workspace(t))
	content := make([]byte, 1<<20)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	info := ask(t, s, wire.OpWrite, wire.FileRequest{Path: "/workspace/a/b", Recursive: true, Size: 1 << 20, Mode: 0o4700},
		content).info(t)
	if info.UID != 1000 || info.GID != 1000 || info.Size != 1<<20 || info.Mode != 0o700 || info.Path != "a/b" {
		t.Errorf("write = %+v; want path a/b, size %d, user and group 1000, mode 0700", info, 1<<20)
	}
	r := ask(t, s, wire.OpRead, wire.FileRequest{Path: "a/b"}, nil)
	if !bytes.Equal(r.data, content) || r.started.Size != 1<<20 || r.info(t).Path != "a/b" {
		t.Errorf("read = %d bytes, %+v; want the %d bytes written, of a/b", len(r.data), r.started, len(content))
	}
	r = ask(t, s, wire.OpRead, wire.FileRequest{Path: "a/b", Offset: 1000, Limit: 10}, nil)
	if !bytes.Equal(r.data, content[1000:1010]) {
		t.Errorf("read at offset 1000 = %x, want %x", r.data, content[1000:1010])
	}
	if i := ask(t, s, wire.OpMkdir, wire.FileRequest{Path: "c/d"}, nil).info(t); i.UID != 1000 || i.Mode != 0o755 {
		t.Errorf("mkdir = %+v, want user 1000 and mode 0755", i)
	}
	if i := ask(t, s, wire.OpMove, wire.FileRequest{Path: "a/b", To: "c/d/e"}, nil).info(t); i.Path != "c/d/e" {
		t.Errorf("move = %+v, want path c/d/e", i)
	}
	if i := ask(t, s, wire.OpStat, wire.FileRequest{Path: "c/d/e"}, nil).info(t); i.Type != "file" {
		t.Errorf("stat = %+v, want type file", i)
	}
	var l wire.Listing
	must(t, json.Unmarshal(ask(t, s, wire.OpList, wire.FileRequest{}, nil).last, &l))
	if len(l.Items) != 2 || l.Truncated {
		t.Errorf("list = %+v, want two items, not truncated", l)
	}
	if r := ask(t, s, wire.OpRemove, wire.FileRequest{Path: "c"}, nil); r.code() != wire.FailedPrecondition {
		t.Errorf("remove of a full directory: %+v, want %s", r.failure, wire.FailedPrecondition)
	}
	if r := ask(t, s, wire.OpRemove, wire.FileRequest{Path: "c", Recursive: true}, nil); r.failure != nil {
		t.Errorf("recursive remove: %+v, want no failure", r.failure)
	}
	if r := ask(t, s, wire.OpStat, wire.FileRequest{Path: "c"}, nil); r.code() != wire.NotFound {
		t.Errorf("stat of a removed path: %+v, want %s", r.failure, wire.NotFound)
	}
}

func TestUserPermissionsApply(t *testing.T) {
	dir := workspace(t)
	s := serve(t, dir)
	must(t, os.WriteFile(filepath.Join(dir, "root-only"), []byte("x"), 0o600))
	must(t, os.MkdirAll(filepath.Join(dir, "root-dir", "sub"), 0o755))
	must(t, os.Symlink("/etc/shadow", filepath.Join(dir, "link")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	for _, c := range []struct {
		op   wire.Op
		q    wire.FileRequest
		code string
	}{
		{wire.OpRead, wire.FileRequest{Path: "root-only"}, wire.PermissionDenied},
		{wire.OpRead, wire.FileRequest{Path: "link"}, wire.PermissionDenied},
		{wire.OpRead, wire.FileRequest{Path: "fifo"}, wire.FailedPrecondition},
		{wire.OpRead, wire.FileRequest{Path: "a\x00b"}, wire.InvalidArgument},
		{wire.OpRead, wire.FileRequest{Path: "x"}, wire.NotFound},
		{wire.OpWrite, wire.FileRequest{Path: "root-dir/x"}, wire.PermissionDenied},
		{wire.OpWrite, wire.FileRequest{Path: "../x"}, wire.PermissionDenied},
		{wire.OpWrite, wire.FileRequest{Path: "x", Size: 3}, wire.InvalidArgument},
		{wire.OpMkdir, wire.FileRequest{Path: "root-dir/x/y"}, wire.PermissionDenied},
		{wire.OpMove, wire.FileRequest{Path: "root-dir/sub", To: "sub"}, wire.PermissionDenied},
		{wire.OpRemove, wire.FileRequest{Path: "root-dir", Recursive: true}, wire.PermissionDenied},
		{wire.OpList, wire.FileRequest{Path: "/etc"}, wire.PermissionDenied},
		{wire.OpPing, wire.FileRequest{}, wire.InvalidArgument},
	} {
		var body []byte
		if c.op == wire.OpWrite {
			body = []byte("four")
		}
		if r := ask(t, s, c.op, c.q, body); r.code() != c.code || r.failure.Message == "" {
			t.Errorf("%s of %+v: %+v, want %s with a message", c.op, c.q, r.failure, c.code)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 4 {
		t.Errorf("entries left = %v, want 4", entries)
	}
}

func TestPartialWriteIsInvisible(t *testing.T) {
	dir := workspace(t)
	s := serve(t, dir)
	ask(t, s, wire.OpWrite, wire.FileRequest{Path: "f"}, []byte("old")).info(t)
	host, guest := pair(t)
	served := make(chan error, 1)
	go func() {
		served <- s.Handle(context.Background(), wire.OpWrite, []byte(`{"path":"f"}`), wire.NewConn(guest))
	}()
	must(t, wire.NewConn(host).WriteFrame(wire.KindStdin, []byte("new")))
	must(t, host.Close())
	if err := <-served; err == nil {
		t.Error("Handle on a broken stream succeeded, want error")
	}
	b, err := os.ReadFile(filepath.Join(dir, "f"))
	if entries, _ := os.ReadDir(dir); string(b) != "old" || err != nil || len(entries) != 1 {
		t.Errorf("file = %q, %v, entries left %v; want %q, no error and one entry", b, err, entries, "old")
	}
}

// A listing whose entries have the longest possible names fits into a reply.
func TestLongestListingFitsReply(t *testing.T) {
	dir := workspace(t)
	s := serve(t, dir)
	for i := range 1200 {
		name := fmt.Sprintf("%04d%s", i, strings.Repeat("\x01", 240))
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	r := ask(t, s, wire.OpList, wire.FileRequest{}, nil)
	var l wire.Listing
	must(t, json.Unmarshal(r.last, &l))
	if !l.Truncated || len(l.Items) < 300 || len(r.last) > wire.MaxHeader {
		t.Errorf("list = %d entries in %d bytes, truncated %v; want at least 300 in at most %d bytes, truncated",
			len(l.Items), len(r.last), l.Truncated, wire.MaxHeader)
	}
}

func TestRemoveStopsWhenHostDisconnects(t *testing.T) {
	dir := workspace(t)
	s := serve(t, dir)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	must(t, os.MkdirAll(filepath.Join(dir, "d", "e"), 0o755))
	host, guest := pair(t)
	must(t, guest.SetDeadline(time.Now().Add(60*time.Second)))
	if err := s.Handle(ctx, wire.OpRemove, []byte(`{"path":"d","recursive":true}`), wire.NewConn(guest)); err != nil {
		t.Fatal(err)
	}
	if r := answerOf(t, wire.NewConn(host)); r.code() != wire.Unavailable {
		t.Errorf("remove with an ended context: %+v, want %s", r.failure, wire.Unavailable)
	}
}

// fsuids returns the file system user of each thread of this process.
func fsuids(t *testing.T) map[string]string {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	must(t, err)
	out := map[string]string{}
	for _, task := range tasks {
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/status")
		if err != nil {
			continue // the thread has ended
		}
		_, line, _ := strings.Cut(string(b), "\nUid:")
		line, _, _ = strings.Cut(line, "\n")
		if f := strings.Fields(line); len(f) == 4 {
			out[task.Name()] = f[3]
		}
	}
	return out
}

func countUser(all map[string]string) (n int) {
	for _, uid := range all {
		if uid == "1000" {
			n++
		}
	}
	return n
}

// While the server's threads run as the user, no other goroutine and no started process does. After
// Close, no such thread is left.
func TestUserIsConfinedToThreads(t *testing.T) {
	dir := workspace(t)
	s := New(Options{Dir: dir})
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			r := ask(t, s, wire.OpWrite, wire.FileRequest{Path: fmt.Sprint("f", i)}, []byte("x"))
			if r.failure != nil {
				t.Errorf("write: %v, want no failure", r.failure)
			}
		})
		wg.Go(func() {
			// The calls block in the kernel long enough to need more threads.
			if out, err := exec.Command("/bin/sh", "-c", "grep Uid: /proc/self/status").Output(); err != nil ||
				strings.Contains(string(out), "1000") {
				t.Errorf("a child process has users %q (%v), want root", out, err)
			}
			uid, _, _ := syscall.RawSyscall(syscall.SYS_SETFSUID, ^uintptr(0), 0, 0)
			if uid != 0 {
				t.Errorf("another goroutine runs as user %d, want root", uid)
			}
		})
	}
	wg.Wait()
	// The first thread of a process does not end. It is parked with its credentials, and may have
	// belonged to another server.
	main := fmt.Sprint(os.Getpid())
	all := fsuids(t)
	if countUser(all) == 0 {
		t.Error("no thread runs as the user, want at least one")
	}
	delete(all, main)
	if n := countUser(all); n > maxThreads {
		t.Errorf("%d threads run as the user, want at most %d", n, maxThreads)
	}
	s.Close()
	s.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		all := fsuids(t)
		delete(all, main)
		if countUser(all) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("threads that run as the user = %v, want none", all)
		}
	}
	host, guest := pair(t)
	_ = host
	must(t, s.Handle(context.Background(), wire.OpStat, []byte(`{"path":"f1"}`), wire.NewConn(guest)))
	if r := answerOf(t, wire.NewConn(host)); r.code() != wire.Unavailable {
		t.Errorf("stat after Close: %+v, want %s", r.failure, wire.Unavailable)
	}
}

func TestNoOperationStartsAfterContext(t *testing.T) {
	dir := workspace(t)
	s := New(Options{Dir: dir})
	defer s.Close()
	if r := ask(t, s, wire.OpWrite, wire.FileRequest{Path: "a"}, []byte("x")); r.failure != nil { // a thread is idle
		t.Fatalf("write: %v, want no failure", r.failure)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	host, guest := pair(t)
	must(t, s.Handle(ctx, wire.OpMove, []byte(`{"path":"a","to":"b"}`), wire.NewConn(guest)))
	if r := answerOf(t, wire.NewConn(host)); r.code() != wire.Unavailable {
		t.Errorf("move after the end of its context: %+v, want %s", r.failure, wire.Unavailable)
	}
	if _, err := os.Lstat(filepath.Join(dir, "a")); err != nil {
		t.Errorf("the file was moved: %v", err)
	}
}

func FuzzRequest(f *testing.F) {
	f.Add("read", `{"path":"a"}`)
	f.Add("move", `{"path":"a","to":"../x"}`)
	f.Add("write", `{"path":"a","size":-1}`)
	if os.Getuid() != 0 {
		f.Skip("not root")
	}
	dir, err := os.MkdirTemp("/tmp", "files-fuzz-")
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = os.RemoveAll(dir) })
	o := Options{Dir: dir + "/workspace", Tmp: dir + "/tmp", Home: dir + "/home"}
	for _, d := range []string{dir, o.Dir, o.Tmp, o.Home} {
		if err := errors.Join(ignoreExist(os.Mkdir(d, 0o755)), os.Chmod(d, 0o755), os.Chown(d, 1000, 1000)); err != nil {
			f.Fatal(err)
		}
	}
	f.Add("edit", `{"path":"/tmp/a","old":"a","new":"b"}`)
	f.Add("glob", `{"pattern":"**/[a-z]*","max":3}`)
	f.Add("search", `{"pattern":"(a|b)+","glob":"*.go","before":2}`)
	s := New(o)
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, op, body string) {
		host, guest := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() {
			c := wire.NewConn(host)
			wg.Go(func() { _ = c.WriteFrame(wire.KindEOF, nil) })
			for {
				if _, _, err := c.ReadFrame(); err != nil {
					return
				}
			}
		})
		_ = s.Handle(context.Background(), wire.Op(op), json.RawMessage(body), wire.NewConn(guest))
		_ = guest.Close()
		_ = host.Close()
		wg.Wait()
	})
}
