package prefork

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The tests run in a separate process, because a reaper waits for every child of its process,
// including those of package testing.
const inChild = "LEADER_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(inChild) == "" && os.Getuid() == 0 {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), inChild+"=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const bound = 60 * time.Second

var (
	once   sync.Once
	forker *Forker
	reaper *Reaper
)

func testForker(tb testing.TB) *Forker {
	tb.Helper()
	if os.Getuid() != 0 {
		tb.Skip("not root")
	}
	once.Do(func() {
		reaper = NewReaper()
		go reaper.Run(context.Background())
		var err error
		if forker, err = NewForker(reaper); err != nil {
			tb.Fatal(err)
		}
	})
	return forker
}

func park(tb testing.TB) *Process {
	tb.Helper()
	l, err := testForker(tb).Park()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(l.Discard)
	return l
}

func waitExit(tb testing.TB, l *Process) Exit {
	tb.Helper()
	select {
	case e := <-l.Exit:
		return e
	case <-time.After(bound):
		l.Signal(syscall.SIGKILL)
		tb.Fatalf("process %d runs after %s, want it ended", l.Pid, bound)
	}
	return Exit{}
}

// run runs a program and returns what it wrote.
func run(tb testing.TB, p *Program) (string, Exit, error) {
	tb.Helper()
	l := park(tb)
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		tb.Fatal(err)
	}
	defer null.Close()
	err = l.Exec(p, [3]int{int(null.Fd()), int(w.Fd()), int(w.Fd())})
	w.Close()
	if dErr := r.SetReadDeadline(time.Now().Add(bound)); dErr != nil {
		tb.Fatal(dErr)
	}
	out, rErr := io.ReadAll(r)
	if rErr != nil {
		tb.Fatal(rErr)
	}
	return string(out), waitExit(tb, l), err
}

func sh(script string) *Program {
	return &Program{Argv: []string{"sh", "-c", script}, Env: []string{"A=b c", "PATH=/usr/bin:/bin"},
		Paths: []string{"/nowhere/sh", "/dev/null/sh", "/bin/sh"}, Dir: "/tmp", UID: 1000, GID: 1001, Groups: []uint32{4711}}
}

func TestCommandGetsWhatItWasGiven(t *testing.T) {
	t.Parallel()
	out, e, err := run(t, sh(`echo "$0 $A"; pwd; id -u; id -g; id -G; umask; `+
		`ls /proc/self/fd | tr '\n' ' '; env | sort; exit 7`))
	if err != nil || e.Status.ExitStatus() != 7 {
		t.Fatalf("command: %v, %v; want exit code 7 and no error; its output:\n%s", e.Status, err, out)
	}
	// ls has 3 open for the directory itself.
	want := "sh b c\n/tmp\n1000\n1001\n1001 4711\n0022\n0 1 2 3 A=b c\nPATH=/usr/bin:/bin\nPWD=/tmp\n"
	if out != want {
		t.Errorf("output = %q, want %q", out, want)
	}
}

func TestCommandHasNoPrivilegesAndDefaultSignals(t *testing.T) {
	t.Parallel()
	out, _, err := run(t, &Program{Argv: []string{"cat", "/proc/self/status", "/proc/self/stat"},
		Paths: []string{"/bin/cat"}, Dir: "/", UID: 1000, GID: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "NoNewPrivs:\t1",
		"SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000", "SigCgt:\t0000000000000000", "Groups:\t \n",
		"Uid:\t1000\t1000\t1000\t1000"} {
		if !strings.Contains(out, want) {
			t.Errorf("status lacks %q, want it in\n%s", want, out)
		}
	}
}

func TestParkedChildHoldsNothing(t *testing.T) {
	t.Parallel()
	l := park(t)
	dir := filepath.Join("/proc", strconv.Itoa(l.Pid), "fd")
	var names []string
	for deadline := time.Now().Add(bound); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		names = names[:0]
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if strings.Join(names, " ") == "3" {
			return
		}
	}
	t.Errorf("descriptors of the parked child = %v, want only 3", names)
}

func TestFailuresNameStepAndErrno(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*Program)
		want   StepError
	}{
		"no such program": {func(p *Program) { p.Paths = []string{"/nowhere/x", "/dev/null/x"} },
			StepError{StepExec, syscall.ENOENT}},
		"not executable": {func(p *Program) { p.Paths = []string{"/etc/passwd", "/nowhere"} },
			StepError{StepExec, syscall.EACCES}},
		"no directory":    {func(p *Program) { p.Dir = "/nowhere" }, StepError{StepDir, syscall.ENOENT}},
		"not a directory": {func(p *Program) { p.Dir = "/etc/passwd" }, StepError{StepDir, syscall.ENOTDIR}},
		"argument too long": {func(p *Program) { p.Argv = append(p.Argv, strings.Repeat("x", 200<<10)) },
			StepError{StepExec, syscall.E2BIG}},
		"nothing to try": {func(p *Program) { p.Paths = nil }, StepError{StepExec, syscall.ENOENT}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := sh("true")
			c.change(p)
			_, e, err := run(t, p)
			var step *StepError
			if !errors.As(err, &step) || *step != c.want {
				t.Errorf("Exec: %v, want %v", err, &c.want)
			}
			if e.Status.ExitStatus() != 127 {
				t.Errorf("exit code of the child = %d, want 127", e.Status.ExitStatus())
			}
		})
	}
}

func TestLargeArgvArrivesWhole(t *testing.T) {
	t.Parallel()
	p := sh("")
	p.Argv = []string{"sh", "-c", `echo $#; for a in "$@"; do last=$a; done; echo "${#last}"`, "x"}
	for range 4000 {
		p.Argv = append(p.Argv, strings.Repeat("y", 120))
	}
	p.Argv = append(p.Argv, strings.Repeat("z", 100<<10))
	out, _, err := run(t, p)
	if err != nil || out != "4001\n102400\n" {
		t.Errorf("output = %q, %v; want %q and no error", out, err, "4001\n102400\n")
	}
}

func TestTooLargeForTheBufferIsAnError(t *testing.T) {
	t.Parallel()
	p := sh("true")
	p.Env = append(p.Env, "X="+strings.Repeat("x", regionBytes))
	l := park(t)
	if err := l.Exec(p, [3]int{0, 1, 2}); err == nil {
		t.Error("Exec succeeded, want error")
	}
	waitExit(t, l)
}

func TestDiscardedAndKilledChildrenEnd(t *testing.T) {
	t.Parallel()
	l := park(t)
	l.Discard()
	if e := waitExit(t, l); e.Status.ExitStatus() != 127 {
		t.Errorf("exit code of a discarded child = %d, want 127", e.Status.ExitStatus())
	}
	if err := l.Signal(syscall.SIGKILL); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("Signal after the end: %v, want %v", err, syscall.ESRCH)
	}
	killed := park(t)
	if err := killed.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := waitExit(t, killed); e.Status.Signal() != syscall.SIGKILL {
		t.Errorf("killed child: signal %v, want %v", e.Status.Signal(), syscall.SIGKILL)
	}
	if err := killed.Exec(sh("true"), [3]int{0, 1, 2}); err != nil {
		t.Errorf("exec in a dead child: %v", err)
	}
}

func TestInterruptEndsExec(t *testing.T) {
	t.Parallel()
	l := park(t)
	if err := l.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- l.Exec(sh("true"), [3]int{0, 1, 2}) }()
	l.Interrupt()
	select {
	case err := <-done:
		if !errors.Is(err, ErrInterrupted) {
			t.Errorf("Exec: %v, want %v", err, ErrInterrupted)
		}
	case <-time.After(bound):
		t.Errorf("Exec did not return within %s, want %v", bound, ErrInterrupted)
	}
	if err := l.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	waitExit(t, l)
}

func TestManyAtOnceAllEnd(t *testing.T) {
	t.Parallel()
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for range 4 {
				if out, e, err := run(t, sh("echo ok")); err != nil || out != "ok\n" || !e.Status.Exited() {
					t.Errorf("output = %q, %v, %v; want %q, an exit and no error", out, e.Status, err, "ok\n")
				}
			}
		})
	}
	group.Wait()
}

// BenchmarkTrue measures one command without the time to park a process.
func BenchmarkTrue(b *testing.B) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer null.Close()
	fd := int(null.Fd())
	p := &Program{Argv: []string{"true"}, Paths: []string{"/bin/true"}, Dir: "/", UID: 1000, GID: 1000}
	for b.Loop() {
		b.StopTimer()
		l := park(b)
		b.StartTimer()
		if err := l.Exec(p, [3]int{fd, fd, fd}); err != nil {
			b.Fatal(err)
		}
		waitExit(b, l)
	}
}

func TestParkedChildHoldsNoMemoryOfTheGuest(t *testing.T) {
	l := park(t)
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(l.Pid), "status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if kib, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kib), "kB")))
			if err != nil || n > 512 {
				t.Errorf("private memory of the parked child = %d KiB, %v; want at most 512 KiB and no error", n, err)
			}
			t.Logf("%d KiB", n)
		}
	}
}

func TestDeadZygoteIsReplaced(t *testing.T) {
	park(t)
	f := testForker(t)
	f.mu.Lock()
	f.zygote.ctl.Close() // it ends without its control socket
	exit := f.zygote.exit
	f.mu.Unlock()
	select {
	case <-exit:
	case <-time.After(bound):
		t.Fatalf("the zygote runs after %s, want it ended", bound)
	}
	if out, e, err := run(t, sh("echo ok")); err != nil || out != "ok\n" || !e.Status.Exited() {
		t.Errorf("output = %q, %v, %v; want %q, an exit and no error", out, e.Status, err, "ok\n")
	}
}

func TestFileInUnreachableDirectoryIsExecuted(t *testing.T) {
	t.Parallel()
	echo, err := os.ReadFile("/bin/echo")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "echo") // in a directory that only root can enter
	if err := os.WriteFile(name, echo, 0o555); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := os.Chmod(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	p := &Program{Argv: []string{"echo", "a", "b"}, File: file, Dir: "/", UID: 1000, GID: 1000}
	if out, e, err := run(t, p); err != nil || out != "a b\n" || e.Status.ExitStatus() != 0 {
		t.Errorf("output = %q, %v, %v; want %q, exit code 0 and no error", out, e.Status, err, "a b\n")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p.File = null
	if _, _, err := run(t, p); !errors.Is(err, syscall.EACCES) {
		t.Errorf("run of a file that cannot be executed: %v, want %v", err, syscall.EACCES)
	}
}
