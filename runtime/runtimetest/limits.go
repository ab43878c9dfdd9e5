package runtimetest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// checkMemoryCap checks that a command over the memory limit dies, that nothing is swapped out
// instead, and that the sandbox still works.
func checkMemoryCap(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	o, err := b.tryCommand(t.Context(), python("flood", "one"), guest.IO{})
	switch {
	case err != nil && s.driver.Capabilities(s.Class).Has(runtime.CapCommandCgroup):
		t.Fatalf("guest lost with the command: %v, want only the command lost", err)
	case err != nil:
		t.Logf("sandbox lost with the command: %v", err)
		return
	case o.exited(0):
		t.Errorf("command over the memory limit of %d bytes: %v, want failure", b.spec.Limits.MemoryBytes, o)
	case o.Usage.MemoryBytes > b.spec.Limits.MemoryBytes:
		t.Errorf("memory usage = %d bytes, want at most %d", o.Usage.MemoryBytes, b.spec.Limits.MemoryBytes)
	}
	if o.Ending == runtime.Timeout || o.Unclean {
		t.Errorf("ending: %v; want a clean one, not %s", o, runtime.Timeout)
	}
	if got := b.mustOutput(t, "echo fine"); got != "fine" {
		t.Errorf("output of the next command = %q, want %q", got, "fine")
	}
	checkNoSwap(t, b)
	if s.driver.Capabilities(s.Class).Has(runtime.CapCommandCgroup) {
		checkSocketMemory(t, b)
	}
}

// checkSocketMemory checks that socket buffers count toward the memory limit.
func checkSocketMemory(t *testing.T, b *box) {
	t.Helper()
	cmd := python("flood", "sockets", "4", "900")
	cmd.Timeout = Patience / 2
	o, err := b.tryCommand(t.Context(), cmd, guest.IO{})
	if err != nil {
		t.Fatalf("guest lost with the command: %v", err)
	}
	var held int64
	if json.Unmarshal([]byte(o.stdout), &held) != nil {
		t.Logf("socket buffers ended the command: %v", o) // the kernel counted the buffers as its memory and killed it
		return
	}
	t.Logf("socket buffers held %d MiB", held>>20)
	if held > b.spec.Limits.MemoryBytes {
		t.Errorf("socket buffers held %d bytes, want at most %d", held, b.spec.Limits.MemoryBytes)
	}
}

// checkNoSwap checks the swap limits of the sandbox's cgroups.
func checkNoSwap(t *testing.T, b *box) {
	t.Helper()
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	capped := strings.Count(string(swaps), "\n") <= 1
	for _, dir := range b.host.cgroups {
		for ; len(dir) > len("/sys/fs/cgroup"); dir = filepath.Dir(dir) {
			if value, err := os.ReadFile(filepath.Join(dir, "memory.swap.max")); err == nil &&
				strings.TrimSpace(string(value)) == "0" {
				capped = true
			}
			value, err := os.ReadFile(filepath.Join(dir, "memory.memsw.limit_in_bytes"))
			if n, perr := strconv.ParseInt(strings.TrimSpace(string(value)), 10, 64); err == nil && perr == nil &&
				n <= b.spec.Limits.MemoryBytes {
				capped = true
			}
		}
	}
	if !capped {
		t.Error("host has swap and no cgroup limits the sandbox's use of it, want a limit")
	}
}

// checkCPUCap checks that two busy processes get half a core together.
func checkCPUCap(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, func(spec *runtime.Spec) { spec.Limits.CPUs = 0.5 })
	var cores float64
	before, began := b.hostCPUTime(), time.Now()
	b.runProgram(t, &cores, "flood", "cpu", "2", "2")
	if s.hidesProcesses() {
		// A user-space kernel counts its own time, not what the host gave it.
		cores = (b.hostCPUTime() - before).Seconds() / time.Since(began).Seconds()
	}
	t.Logf("two busy processes used %.2f cores of 0.50", cores)
	if cores > 0.75 {
		t.Errorf("two busy processes used %.2f cores, want at most 0.75 with the limit 0.5", cores)
	}
}

// checkPidsCap checks that processes and threads are limited, and that the sandbox works after they
// end.
func checkPidsCap(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	for _, what := range []string{"pids", "threads"} {
		o := b.runCommand(t, python("flood", what))
		var got struct {
			Count int64 `json:"count"`
		}
		if err := json.Unmarshal([]byte(o.stdout), &got); err != nil {
			t.Fatalf("flood %s: %v, want a count as JSON", what, o)
		}
		t.Logf("%d %s of %d", got.Count, what, b.spec.Limits.Pids)
		if got.Count > b.spec.Limits.Pids || got.Count < 16 {
			t.Errorf("started %d %s, want 16 to %d", got.Count, what, b.spec.Limits.Pids)
		}
		b.checkDead(t, runtime.CommandUID)
		b.mustOutput(t, "true | true | true")
	}
	// Check the other per-process limits as well.
	for name, most := range map[string]int64{"RLIMIT_NOFILE": b.spec.Limits.OpenFiles, "RLIMIT_CORE": 0,
		"RLIMIT_RTPRIO": 0, "RLIMIT_MEMLOCK": 1 << 20} {
		if got, ok := s.isolationReport(t).Limits[name]; !ok || got[1] < 0 || got[1] > most {
			t.Errorf("%s = %v, want at most %d", name, got, most)
		}
	}
}

// checkTmpfs checks that the in-memory file systems have the requested sizes, limit the number of
// files, and are named when full.
func checkTmpfs(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	var got map[string][2]any
	b.runProgram(t, &got, "flood", "tmpfs", "/tmp", "/home/user", "/workspace", "/dev/shm")
	l := b.spec.Limits
	for folder, most := range map[string]int64{"/tmp": l.TmpBytes, "/home/user": l.TmpBytes, "/workspace": l.ScratchBytes,
		"/dev/shm": l.TmpBytes} {
		size, _ := got[folder][0].(float64)
		said := got[folder][1]
		least := most * 3 / 4
		if folder == "/dev/shm" {
			least = 0
		}
		if said != "ENOSPC" || int64(size) > most || int64(size) < least {
			t.Errorf("%s took %d bytes, then %v; want at most %d, then ENOSPC", folder, int64(size), said, most)
		}
	}
	o := b.sh(t, "head -c 1G /dev/zero >/tmp/x")
	if o.Ending != runtime.Disk {
		t.Errorf("command that fills /tmp: %v, want ending disk", o)
	}
	if o := b.sh(t, "rm /tmp/x; echo x >/tmp/y && cat /tmp/y"); !o.exited(0) || o.stdout != "x\n" {
		t.Errorf("command after freeing /tmp: %v, want success", o)
	}
	checkEmptyFiles(t, s)
}

// checkEmptyFiles checks that empty files count toward the sandbox's memory or are limited in
// number.
func checkEmptyFiles(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, func(spec *runtime.Spec) {
		spec.Limits.MemoryBytes = runtime.MinMemoryBytes + 16<<20 // class gvisor adds the memory of its kernel
		spec.Limits.TmpBytes, spec.Limits.ScratchBytes = 4<<20, 4<<20
	})
	o, err := b.tryCommand(t.Context(), python("flood", "inodes", "/tmp"), guest.IO{})
	lines := strings.Fields(o.stdout)
	if !strings.HasPrefix(o.stdout, "begin") {
		t.Fatalf("program: %v, %v; want output that begins with %q", o, err, "begin")
	}
	t.Logf("empty files: %s, then %s, %v", lines[max(0, len(lines)-2):], o.Ending, err)
	if err != nil && s.driver.Capabilities(s.Class).Has(runtime.CapCommandCgroup) {
		t.Errorf("guest lost with the command: %v, want only the command lost", err)
	}
	if err == nil {
		if o.exited(0) || o.Ending == runtime.SandboxLost {
			t.Errorf("unlimited number of files: %v, want failure", o)
		}
		b.mustPing(t)
	}
}

// checkUsage checks that the figures of a command cover it and its children only.
func checkUsage(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	o := b.runCommand(t, python("flood", "use", "48", "5", "0.5"))
	t.Logf("usage: %+v", o.Usage)
	u := o.Usage
	if u.CPUUser+u.CPUSystem < 250*time.Millisecond || u.CPUUser+u.CPUSystem > Patience {
		t.Errorf("CPU time = %s, want about 0.5 s", u.CPUUser+u.CPUSystem)
	}
	if u.MemoryBytes < 48<<20 || u.MemoryBytes > b.spec.Limits.MemoryBytes {
		t.Errorf("memory = %d bytes, want at least 48 MiB and at most the limit", u.MemoryBytes)
	}
	if u.Pids < 6 || u.Pids > b.spec.Limits.Pids {
		t.Errorf("pids = %d, want at least 6 and at most the limit", u.Pids)
	}
	small := b.runCommand(t, bash("true"))
	if small.Usage.MemoryBytes >= 48<<20 || small.Usage.Pids >= 6 {
		t.Errorf("usage of the next command = %+v, want only its own", small.Usage)
	}
}

// checkNoUsage checks that figures that are not measured are zero.
func checkNoUsage(t *testing.T, s *suite) {
	t.Helper()
	if o := s.plain.sh(t, "true"); o.Usage.MemoryBytes != 0 || o.Usage.Pids != 0 {
		t.Errorf("usage = %+v, want zero memory and pids", o.Usage)
	}
}

func checkEndingOOM(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	for _, how := range []string{"one", "child"} {
		if o := b.runCommand(t, python("flood", how)); o.Ending != runtime.OOM {
			t.Errorf("%s over the memory limit: %v, want ending oom", how, o)
		}
	}
	if o := b.sh(t, "exit 7"); !o.exited(7) {
		t.Errorf("exit 7 after that: %v, want code 7", o)
	}
	if o := b.sh(t, "kill -9 $$"); o.Ending != runtime.Signalled || o.Signal != 9 {
		t.Errorf("kill -9 $$ after that: %v, want signal 9", o)
	}
}

// checkNoEndingOOM checks that an OOM ending is not reported where it cannot be observed.
func checkNoEndingOOM(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	o, err := b.tryCommand(t.Context(), python("flood", "one"), guest.IO{})
	if err == nil && (o.Ending == runtime.OOM || o.exited(0)) {
		t.Errorf("ending: %v; want neither %s nor exit code 0", o, runtime.OOM)
	}
}

func checkEndingPids(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	for _, how := range []string{"pids", "threads"} {
		if o := b.runCommand(t, python("flood", how)); o.Ending != runtime.Pids {
			t.Errorf("%s at the PID limit: %v, want ending pids", how, o)
		}
	}
	if o := b.sh(t, "exit 7"); !o.exited(7) {
		t.Errorf("exit 7 after that: %v, want code 7", o)
	}
}

func checkNoEndingPids(t *testing.T, s *suite) {
	t.Helper()
	if o := s.newSandbox(t, nil).runCommand(t, python("flood", "pids")); !o.exited(1) {
		t.Errorf("command at the PID limit: %v, want exit code 1", o)
	}
}
