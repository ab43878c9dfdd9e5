package runtimetest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// With a user-space kernel, the host sees the kernel's processes and not the sandbox's. The suite
// then asks inside what is alive, as a user that commands cannot influence, and uses the sandbox's
// cgroup to check that nothing is left.

// observerUser is the user that inspects processes; no other command of the suite runs as it.
const observerUser = "65001"

// hidesProcesses reports whether the host cannot see the sandbox's processes.
func (s *suite) hidesProcesses() bool { return s.Class.OrDefault() != runtime.ClassContainer }

// findByPID is findOnHost for classes that hide their processes: it starts from the host process
// that stands for the sandbox.
func (b *box) findByPID(t *testing.T) hostView {
	t.Helper()
	v := hostView{init: b.suite.HostPID(t, b.spec.ID)}
	dirs, err := cgroupsOf(v.init)
	// All of a pod with gVisor runs in the pod's cgroup.
	own := regexp.MustCompile(regexp.QuoteMeta(b.spec.ID) + "|[0-9a-f]{64}|/pod[0-9a-f-]{36}")
	for _, dir := range dirs {
		if own.MatchString(dir) {
			v.cgroups = append(v.cgroups, dir)
		}
	}
	if err != nil || len(v.cgroups) == 0 {
		t.Fatalf("cgroups of process %d = %q, %v; want a separate one and no error", v.init, dirs, err)
	}
	return v
}

// defaultLimits returns the limits of the suite's sandboxes. gVisor assigns memory to processes in
// larger pieces and gets more.
func (s *suite) defaultLimits() runtime.Limits {
	l := baseLimits()
	if s.hidesProcesses() {
		l.MemoryBytes *= 5
	}
	return l
}

// publicDevices returns the device files that every sandbox has. gVisor has two more, which it
// implements itself.
func (s *suite) publicDevices() []string {
	if s.hidesProcesses() {
		return append(containerDevices(), "/dev/fuse", "/dev/net/tun")
	}
	return containerDevices()
}

// isMemoryVolume reports whether a directory has the template's size. gVisor shows memory volumes
// of a pod as its own type of file system, as it shows directories on a disk, but only they are
// bounded.
func (b *box) isMemoryVolume(t *testing.T, at string) bool {
	t.Helper()
	size := map[string]int64{"/tmp": b.spec.Limits.TmpBytes, "/workspace": b.spec.Limits.ScratchBytes}[at]
	if !b.suite.hidesProcesses() || size == 0 {
		return false
	}
	script := fmt.Sprintf("n=0; while ((n < %d)) && printf '%%*s' %d '' >>%[3]s/full; do ((++n)); done; echo $n; : >%[3]s/full",
		2*size>>20, 1<<20, at)
	n, err := strconv.ParseInt(strings.TrimSpace(b.mustOutput(t, script)), 10, 64)
	return err == nil && n <= size>>20
}

// hostCPUTime returns the CPU time of the sandbox's live processes and their reaped children, as
// the host counts it.
func (b *box) hostCPUTime() time.Duration {
	var ticks int64
	for _, pid := range cgroupProcesses(b.host.cgroups) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if len(fields) > 14 {
			user, _ := strconv.ParseInt(fields[11], 10, 64)
			system, _ := strconv.ParseInt(fields[12], 10, 64)
			ticks += user + system
			user, _ = strconv.ParseInt(fields[13], 10, 64) // of reaped children
			system, _ = strconv.ParseInt(fields[14], 10, 64)
			ticks += user + system
		}
	}
	const perSecond = 100 // USER_HZ, the same on all architectures
	return time.Duration(ticks) * time.Second / perSecond
}

// cgroupProcesses returns the host PIDs in the sandbox's cgroups.
func cgroupProcesses(cgroups []string) []int {
	seen := map[int]bool{}
	var found []int
	for _, dir := range cgroups {
		text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil && !seen[pid] {
				seen[pid] = true
				found = append(found, pid)
			}
		}
	}
	return found
}

// commandsSeenInside lists the command processes as a command sees them in /proc.
func (b *box) commandsSeenInside(t *testing.T) []process {
	t.Helper()
	if len(cgroupProcesses(b.host.cgroups)) == 0 {
		return nil // the sandbox has ended
	}
	cmd := bash(`for p in /proc/[0-9]*; do while read -r k v _; do ` +
		`case $k in Name:) n=$v;; State:) s=$v;; Uid:) u=$v;; Threads:) h=$v;; esac; done ` +
		`2>/dev/null <$p/status && echo ${p#/proc/} $u $s $h $n; done; true`)
	cmd.User = observerUser
	o, err := b.tryCommand(t.Context(), cmd, guest.IO{})
	if err != nil || !o.exited(0) {
		t.Fatalf("list processes inside: %v, %v; want exit code 0 and no error", o, err)
	}
	var found []process
	for line := range strings.Lines(o.stdout) {
		var p process
		var state string
		var threads int
		if n, _ := fmt.Sscan(line, &p.pid, &p.uid, &state, &threads, &p.name); n < 4 || p.uid == 0 ||
			strconv.Itoa(p.uid) == observerUser {
			continue
		}
		p.alive = state != "Z" && state != "X" || threads > 1
		found = append(found, p)
	}
	return found
}

// readInitFile returns a file of PID 1 in /proc. The host reads it for containers; otherwise a
// command reads it.
func (b *box) readInitFile(t *testing.T, name string) string {
	t.Helper()
	if !b.suite.hidesProcesses() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", b.host.init, name))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	o := b.runCommand(t, wire.Command{Argv: []string{"bash", "-c",
		`while IFS= read -r -d "" x; do printf '%s\0' "$x"; done </proc/1/` + name}})
	return o.stdout
}
