package server

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func exited(code int) *prefork.Exit { return &prefork.Exit{Status: syscall.WaitStatus(code << 8)} }

func signalled(sig int) *prefork.Exit { return &prefork.Exit{Status: syscall.WaitStatus(sig)} }

func TestResolveResult(t *testing.T) {
	no, yes := func() []string { return nil }, func() []string { return []string{"/tmp (no space)"} }
	was := []string{"/tmp (no space)"}
	u := func(oom, pids, peak int64) cgroup.Usage {
		return cgroup.Usage{OOMKills: oom, PidsDenied: pids, PidsPeak: peak}
	}
	cases := map[string]struct {
		endingFacts
		ending runtime.Ending
		code   int
		signal int
	}{
		"exit 0": {endingFacts{exit: exited(0), findFull: yes, used: u(1, 1, 0)}, runtime.Exited, 0, 0},
		"exit 3": {endingFacts{exit: exited(3), findFull: no}, runtime.Exited, 3, 0},
		"signal": {endingFacts{exit: signalled(11), findFull: no}, runtime.Signalled, -1, 11},
		"our cause is first": {endingFacts{exit: signalled(9), cause: runtime.Timeout, used: u(1, 0, 0),
			findFull: yes}, runtime.Timeout, -1, 9},
		"oom":             {endingFacts{exit: signalled(9), used: u(1, 0, 0), findFull: no}, runtime.OOM, -1, 9},
		"oom before pids": {endingFacts{exit: exited(1), used: u(1, 1, 0), findFull: yes}, runtime.OOM, 1, 0},
		"oom of all, alone": {endingFacts{exit: exited(1), after: u(1, 0, 0), alone: true, findFull: no},
			runtime.OOM, 1, 0},
		"oom of all, with others": {endingFacts{exit: exited(1), after: u(1, 0, 0), findFull: no}, runtime.Exited, 1, 0},
		"pids":                    {endingFacts{exit: exited(1), used: u(0, 1, 0), findFull: yes}, runtime.Pids, 1, 0},
		"pids of all, most by it": {endingFacts{exit: exited(1), used: u(0, 0, 60), after: u(0, 1, 100), findFull: no},
			runtime.Pids, 1, 0},
		"pids of all, most by others": {endingFacts{exit: exited(1), used: u(0, 0, 40), after: u(0, 1, 100), findFull: no},
			runtime.Exited, 1, 0},
		"pids of all, met before": {endingFacts{exit: exited(1), before: u(0, 1, 0), after: u(0, 1, 0), alone: true,
			findFull: no}, runtime.Exited, 1, 0},
		"disk, filled":            {endingFacts{exit: exited(1), alone: true, findFull: yes}, runtime.Disk, 1, 0},
		"disk, killed":            {endingFacts{exit: signalled(7), alone: true, findFull: yes}, runtime.Disk, -1, 7},
		"disk, filled by whom":    {endingFacts{exit: exited(1), findFull: yes}, runtime.Exited, 1, 0},
		"disk, told among others": {endingFacts{exit: exited(1), findFull: yes, saidDiskFull: true}, runtime.Disk, 1, 0},
		"disk, full before and told": {endingFacts{exit: exited(1), alone: true, findFull: yes, fullBefore: was,
			saidDiskFull: true}, runtime.Disk, 1, 0},
		"disk, full before": {endingFacts{exit: exited(1), alone: true, findFull: yes, fullBefore: was},
			runtime.Exited, 1, 0},
		"disk, told with room": {endingFacts{exit: exited(1), alone: true, findFull: no, saidDiskFull: true},
			runtime.Exited, 1, 0},
		"not seen to end":              {endingFacts{findFull: no}, runtime.SandboxLost, -1, 0},
		"not seen to end, but ordered": {endingFacts{cause: runtime.Cancelled, findFull: no}, runtime.Cancelled, -1, 0},
	}
	for name, c := range cases {
		if r := resolveResult(c.endingFacts); r.Ending != c.ending || r.ExitCode != c.code || r.Signal != c.signal {
			t.Errorf("%s: result is %+v, want %s with code %d and signal %d", name, r, c.ending, c.code,
				c.signal)
		}
	}
}

// Events during the cleanup of a command that ended on its own are not its ending.
func TestFirstEndingIsKept(t *testing.T) {
	for _, c := range []struct{ before, after, want runtime.Ending }{
		{"", runtime.SandboxLost, ""}, {"", runtime.Timeout, ""}, {"", runtime.OutputLimit, runtime.OutputLimit},
		{runtime.Timeout, runtime.SandboxLost, runtime.Timeout},
		{runtime.SandboxLost, runtime.OutputLimit, runtime.SandboxLost},
	} {
		r := &commandRun{stopped: make(chan struct{})}
		if c.before != "" {
			r.stop(c.before)
		}
		r.markEnded()
		r.stop(c.after)
		if r.cause != c.want {
			t.Errorf("%q, its end, %q: ended by %q, want %q", c.before, c.after, r.cause, c.want)
		}
	}
}

func TestParseUsers(t *testing.T) {
	text := "root:x:0:0::/root:/bin/sh\nuser:x:1000:1001:,,,:/home/u:\nrel:x:7:7::home:\n" +
		"bad\n:x:1:1::/:\nneg:x:-1:1::/:\nlast:x:4294967295:1::/:\nnl:x:8:8::/x:/bin/sh"
	users := parseUsers([]byte(text))
	want := []user{{"root", 0, 0, "/root"}, {"user", 1000, 1001, "/home/u"}, {"rel", 7, 7, ""}, {"nl", 8, 8, "/x"}}
	if len(users) != len(want) {
		t.Fatalf("parseUsers = %v, want %v", users, want)
	}
	for i, u := range users {
		if u != want[i] {
			t.Errorf("parseUsers has %v, want %v", u, want[i])
		}
	}
}

func TestReadUsersHostileImage(t *testing.T) {
	dir := t.TempDir()
	if got := readUsers(dir); got != nil {
		t.Errorf("readUsers without a file = %v, want none", got)
	}
	etc := filepath.Join(dir, "etc")
	if err := os.Mkdir(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(etc, "passwd")
	if err := unix.Mkfifo(name, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := readUsers(dir); got != nil {
		t.Errorf("readUsers of a FIFO = %v, want none", got)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", name); err != nil {
		t.Fatal(err)
	}
	if got := readUsers(dir); got != nil {
		t.Errorf("readUsers of a device = %v, want none", got)
	}
}

func TestLookUp(t *testing.T) {
	s := &Server{Options: Options{UID: 1000, GID: 1000}}
	s.users = func() []user {
		return []user{{"root", 0, 0, "/root"}, {"toor", 0, 5, "/"}, {"me", 1000, 1000, "/x"}, {"app", 33, 44, "/srv"}}
	}
	for name, want := range map[string]user{
		"": {"me", 1000, 1000, defaultHome}, "app": {"app", 33, 44, "/srv"}, "33": {"app", 33, 44, "/srv"},
		"33:7": {"app", 33, 7, "/srv"}, "99": {"user", 99, 99, "/"}, "me": {"me", 1000, 1000, defaultHome},
	} {
		if got, f := s.lookUpUser(name); f != nil || got != want {
			t.Errorf("lookUpUser(%q) = %v, %s; want %v and no failure", name, got, describe(f), want)
		}
	}
	for _, name := range []string{"root", "toor", "0", "0:0", "00", "x", "app:33", ":", "1:", "-1", "1\x00",
		strings.Repeat("x", 300)} {
		if got, f := s.lookUpUser(name); f == nil || f.Field != "user" {
			t.Errorf("lookUpUser(%q) = %v, %s; want a failure of field user", name, got, describe(f))
		}
	}
}

func TestStatusHasTag(t *testing.T) {
	status := "Name:\tx\nState:\t%\nTgid:\t1\nGroups:\t5 77 9 \nVmPeak:\t 1 kB\n"
	for state, want := range map[string]bool{"R (running)": true, "T (stopped)": true, "D (disk sleep)": true,
		"Z (zombie)": false, "X (dead)": false} {
		if got, _ := statusHasGroup([]byte(strings.Replace(status, "%", state, 1)), 77); got != want {
			t.Errorf("statusHasGroup of a process in state %s = %v, want %v", state, got, want)
		}
	}
	dead := strings.Replace(status, "%", "Z (zombie)", 1) + "Threads:\t"
	for threads, want := range map[string]bool{"1\n": false, "2\n": true} {
		if tagged, headless := statusHasGroup([]byte(dead+threads), 77); tagged != want || headless != want {
			t.Errorf("dead with %q threads: tagged %v, headless %v, want %v", threads, tagged, headless, want)
		}
	}
	// A process name cannot imitate other lines: the kernel escapes it.
	for _, status := range []string{"Name:\tGroups:\\n77\nState:\tR\nGroups:\t7 \n", ""} {
		if tagged, headless := statusHasGroup([]byte(status), 77); tagged || headless {
			t.Errorf("statusHasGroup(%q) = %v, %v; want false, false", status, tagged, headless)
		}
	}
}

func TestSearch(t *testing.T) {
	for path, want := range map[string]string{"/a:/b": "/a/x /b/x", "": "./x", "/a::": "/a/x ./x ./x"} {
		if got := strings.Join(search("x", path), " "); got != want {
			t.Errorf(`search("x", %q) = %q, want %q`, path, got, want)
		}
	}
	if got := search("d/x", "/a"); len(got) != 1 || got[0] != "d/x" {
		t.Errorf(`search("d/x", "/a") = %q, want only "d/x"`, got)
	}
	if got := search("x", strings.Repeat("/a:", 1000)); len(got) != maxPaths {
		t.Errorf("search of 1000 directories = %d places, want %d", len(got), maxPaths)
	}
}

func TestSandboxCounters(t *testing.T) {
	v2, v1 := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		filepath.Join(v2, "memory.events"):             "low 0\nhigh 9\noom 4\noom_kill 3\noom_group_kill 0\n",
		filepath.Join(v2, "pids.events"):               "max 7\n",
		filepath.Join(v1, "memory/memory.oom_control"): "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		filepath.Join(v1, "pids/pids.events"):          "max 7\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]cgroup.Usage{v2: {OOMKills: 3, PidsDenied: 7}, v1: {OOMKills: 3, PidsDenied: 7},
		t.TempDir(): {}} {
		if got := findSandboxCounters(dir).read(); got != want {
			t.Errorf("the counters are %+v, want %+v", got, want)
		}
	}
}

func FuzzParseUsers(f *testing.F) {
	f.Add([]byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1001:,,,:/home/u:\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, u := range parseUsers(text) {
			if u.name == "" || u.home != "" && !filepath.IsAbs(u.home) || strings.Contains(u.home+u.name, "\x00") {
				t.Errorf("parseUsers(%q) has %+v, want a name, and no home or an absolute one, without NUL",
					text, u)
			}
		}
	})
}

func FuzzLookUp(f *testing.F) {
	for _, s := range []string{"", "root", "0", "1000:1000", "00:1", "+0"} {
		f.Add(s)
	}
	s := &Server{Options: Options{UID: 1000, GID: 1000}, users: func() []user { return []user{{"root", 0, 0, "/"}} }}
	f.Fuzz(func(t *testing.T, name string) {
		if u, fail := s.lookUpUser(name); fail == nil && (u.uid == 0 || u.uid > maxUserID) {
			t.Errorf("lookUpUser(%q) = %+v, want a uid from 1 to the maximum, or a failure", name, u)
		}
	})
}

func TestClaimIsExclusive(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	s := testServer(t, false)
	s.mu.Lock()
	s.lease = "" // other tests and benchmarks may have claimed it
	s.mu.Unlock()
	t.Cleanup(func() { s.mu.Lock(); s.lease, s.env = "", nil; s.mu.Unlock() })
	if p := ask[wire.Pong](t, s, wire.OpPing, nil); p.Claimed || p.Kill != "tag" || p.Version != wire.Version ||
		p.RSSBytes <= 0 {
		t.Errorf("ping before the claim = %+v, want version %d, kill tag, some memory and no claim", p,
			wire.Version)
	}
	for range 2 {
		ask[struct{}](t, s, wire.OpClaim, wire.Claim{Lease: "one", Env: map[string]string{"CLAIMED": "yes", "LANG": "y"}})
	}
	if f := dial(t, s, wire.OpClaim, wire.Claim{Lease: "two"}).all().failure; f == nil ||
		f.Code != wire.FailedPrecondition {
		t.Errorf("claim for a second lease: %s, want failed_precondition", describe(f))
	}
	a, _ := run1(t, s, wire.Command{Argv: []string{"sh", "-c", "echo $CLAIMED $LANG"},
		Env: map[string]string{"LANG": "x"}})
	if a.stdout.String() != "yes x\n" {
		t.Errorf(`the command printed %q, want "yes x\n"`, a.stdout.String())
	}
	if !ask[wire.Pong](t, s, wire.OpPing, nil).Claimed {
		t.Error("ping after the claim reports no claim, want one")
	}
}

func TestInvalidStreamsAreRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	s := testServer(t, false)
	if f := dial(t, s, "nonsense", nil).all().failure; f == nil || f.Code != wire.InvalidArgument || f.Field != "op" {
		t.Errorf("request with an unknown op: %s, want invalid_argument of field op", describe(f))
	}
	if f := dial(t, s, wire.OpExec, []int{1}).all().failure; f == nil || f.Code != wire.InvalidArgument {
		t.Errorf("exec with a list as its body: %s, want invalid_argument", describe(f))
	}
	if f := dial(t, s, wire.OpRead, wire.FileRequest{Path: "x"}).all().failure; f == nil ||
		f.Code != wire.FailedPrecondition {
		t.Errorf("read of a file: %s, want failed_precondition", describe(f))
	}
}

func TestDeadSparesAreReplaced(t *testing.T) {
	both(t, func(t *testing.T, s *Server) {
		t.Helper()
		eventually(t, "there is a spare", func() bool {
			s.spares.requestRefill()
			s.spares.mu.Lock()
			defer s.spares.mu.Unlock()
			return len(s.spares.free) > 0
		})
		s.spares.mu.Lock()
		for _, sp := range s.spares.free {
			if err := sp.process.Signal(syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
		s.spares.mu.Unlock()
		for range 3 {
			_, r := run1(t, s, wire.Command{Argv: []string{"true"}})
			if r.Ending == runtime.Signalled { // it was killed after it was acquired
				continue
			}
			wantEnding(t, r, runtime.Exited, 0)
		}
	})
}
