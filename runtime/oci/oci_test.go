package oci

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"

	"orchestrator/internal/cgroup"
	"orchestrator/runtime"
)

// atEnd removes what all tests share.
var atEnd = func() {}

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		atEnd()
		os.Exit(code)
	}))
}

func goodRecord() record {
	return record{
		ID: "sandbox-01", Owner: "owner-0001", Template: "base", Created: time.Unix(1e9, 0).UTC(),
		Limits: runtime.Limits{}.WithDefaults(), BootID: "b", Pid: 42, Started: 7,
	}
}

func TestRecordIsReadAsItWasWritten(t *testing.T) {
	d := &Driver{dir: t.TempDir()}
	want := goodRecord()
	if err := os.Mkdir(d.bundle(want.ID), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.write(want); err != nil {
		t.Fatal(err)
	}
	got, err := d.read(want.ID)
	if err != nil || got != want {
		t.Errorf("read %+v, %v; wrote %+v", got, err, want)
	}
}

func TestRecordIsReadStrictly(t *testing.T) {
	good, err := json.Marshal(goodRecord())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseRecord(good); err != nil {
		t.Fatalf("a good record: %v", err)
	}
	change := func(old, with string) string {
		s := strings.Replace(string(good), old, with, 1)
		if s == string(good) {
			t.Fatalf("%s is not in the record", old)
		}
		return s
	}
	for what, text := range map[string]string{
		"empty":             "",
		"cut short":         string(good[:len(good)/2]),
		"unknown field":     change(`"pid"`, `"surprise":1,"pid"`),
		"two":               string(good) + string(good),
		"process 1":         change(`"pid":42`, `"pid":1`),
		"negative process":  change(`"pid":42`, `"pid":-42`),
		"no start time":     change(`,"started":7`, ``),
		"no boot":           change(`"boot_id":"b"`, `"boot_id":""`),
		"an id like a path": change(`sandbox-01`, `../../etc`),
		"no limits":         change(`"memory_bytes":536870912`, `"memory_bytes":0`),
	} {
		if _, err := parseRecord([]byte(text)); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func FuzzRecord(f *testing.F) {
	good, _ := json.Marshal(goodRecord())
	f.Add(good)
	f.Fuzz(func(t *testing.T, text []byte) {
		rec, err := parseRecord(text)
		if err == nil && (!runtime.ValidID(rec.ID) || rec.Pid < 0 || rec.Pid == 1) {
			t.Errorf("accepted %+v", rec)
		}
	})
}

func TestVersions(t *testing.T) {
	const runc = "runc version 1.1.5+ds1\ncommit: x\nlibseccomp: 2.5.4\n"
	for text, ok := range map[string]bool{
		runc: true,
		strings.Replace(runc, "1.1.5", "1.3.0-rc.1", 1):   true,
		strings.Replace(runc, "1.1.5", "2.0", 1):          true,
		strings.Replace(runc, "1.1.5", "1.0.3", 1):        false,
		strings.Replace(runc, "1.1.5", "new", 1):          false,
		strings.Replace(runc, "libseccomp: 2.5.4", "", 1): false,
		"youki version 1.2\nseccomp":                      false,
		"":                                                false,
	} {
		if err := checkVersion("runc", text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := checkVersion("crun", "crun version 1.8.1\n+SYSTEMD +SECCOMP\n"); err != nil {
		t.Error(err)
	}
}

func TestRuntimesThatAreRefused(t *testing.T) {
	for name, class := range map[string]func(error) bool{
		"runsc":                errdefs.IsNotImplemented,
		"/opt/bin/runsc":       errdefs.IsNotImplemented,
		"docker":               errdefs.IsInvalidArgument,
		"crun":                 errdefs.IsFailedPrecondition, // on a hybrid host
		"/does/not/exist/runc": errdefs.IsFailedPrecondition,
	} {
		if _, _, err := checkRuntime(t.Context(), name, cgroup.Host{Mode: cgroup.ModeHybrid}); !class(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCapabilitiesAreAllTold(t *testing.T) {
	caps := (&Driver{}).Capabilities()
	for _, c := range runtime.AllCapabilities() {
		if caps[c] == "" {
			t.Errorf("nothing is said of %s", c)
		}
	}
}

func TestCgroupPoints(t *testing.T) {
	got := cgroupPoints("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" +
		"35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n" +
		"broken\n - cgroup \n" +
		"41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")
	want := "/sys/fs/cgroup/memory /sys/fs/cgroup/unified"
	if strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestLocksKeepCallsAboutOneSandboxApart(t *testing.T) {
	var l locks
	var inside, most atomic.Int32
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			unlock, err := l.lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			if n := inside.Add(1); n > most.Load() {
				most.Store(n)
			}
			inside.Add(-1)
			unlock()
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		t.Errorf("%d were inside at once", most.Load())
	}
	unlock, err := l.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting ended with %v", err)
	}
	other, err := l.lock(ctx, "b")
	if err != nil {
		t.Fatalf("another sandbox: %v", err)
	}
	other()
	if len(l.held) != 1 {
		t.Errorf("%d locks are kept", len(l.held))
	}
}

// Whoever writes to them is never stopped, whatever it writes, and what comes out can be printed.
func TestWordsAreBoundedAndHarmless(t *testing.T) {
	w, err := newWords()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if got := w.after("ended"); got != "ended" {
		t.Errorf("without words: %q", got)
	}
	cmd := exec.Command("sh", "-c", `printf 'bad \033[2J\377 thing\n' >&2; head -c 1000000 /dev/zero | tr '\0' x >&2; exit 3`)
	w.Set(cmd)
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("the writer ended with %v, want its own code", err)
	}
	got := w.String()
	if !strings.HasPrefix(got, "bad [2J? thing xxx") || len(got) > 1100 {
		t.Errorf("words are %d bytes: %.60q", len(got), got)
	}
	info, err := w.file.Stat()
	if err != nil || info.Size() != wordsBytes {
		t.Errorf("size %v, %v", info, err)
	}
}

func TestProcessIsHeldPastItsPid(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := openProcess(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if p.ended() {
		t.Error("ended at once")
	}
	ended := make(chan bool, 1)
	var wg sync.WaitGroup
	wg.Go(func() { ended <- p.block() })
	if err := p.kill(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if !<-ended {
		t.Error("the wait was broken off")
	}
	// It is our child: nobody else has reaped it.
	if err := p.wait(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := openProcess(cmd.Process.Pid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("opening it again: %v", err)
	}
	if err := p.kill(); err != nil {
		t.Errorf("killing it again: %v", err)
	}
	_ = cmd.Wait() // it has no child any more; frees what it holds
}

func TestClosingEndsTheWait(t *testing.T) {
	p, err := openProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool, 1)
	var wg sync.WaitGroup
	wg.Go(func() { ended <- p.block() })
	p.close()
	wg.Wait()
	if <-ended {
		t.Error("we have not ended")
	}
}

func TestLimitsThatWeDoNotHaveOurselves(t *testing.T) {
	if mayRaise() {
		t.Log("this process may raise its limits, so that it can give any")
	}
	list := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 40, Soft: 1 << 40}}
	if err := fitRlimits(list); errdefs.IsFailedPrecondition(err) == mayRaise() {
		t.Errorf("open files: %v", err)
	}
	list = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1, Soft: 1}, {Type: "RLIMIT_CORE"}, {Type: "RLIMIT_SIGPENDING", Hard: 1, Soft: 1}}
	if err := fitRlimits(list); err != nil || list[0].Hard != 1 || list[2].Hard != 1 {
		t.Errorf("low limits: %+v, %v", list, err)
	}
}

func TestImagesThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for root, class := range map[string]func(error) bool{
		"":                 errdefs.IsInvalidArgument,
		"relative":         errdefs.IsInvalidArgument,
		file:               errdefs.IsInvalidArgument,
		file + ".gone":     errdefs.IsNotFound,
		filepath.Dir(file): func(err error) bool { return err == nil },
	} {
		if err := (&Driver{}).Prepare(t.Context(), runtime.Image{Ref: "x", Root: root}); !class(err) {
			t.Errorf("root %q: %v", root, err)
		}
	}
}
