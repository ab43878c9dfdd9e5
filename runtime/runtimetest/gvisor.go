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

// What differs where the host sees a kernel in user space and not the sandbox's processes: what is alive inside is asked inside, as a user of its
// own, of that kernel, which commands cannot make lie; that nothing is left is seen by the sandbox's cgroup.

// observerUser is the user who looks; no command of the suite has it.
const observerUser = "65001"

// hidesProcesses says whether the host cannot see the sandbox's processes.
func (s *suite) hidesProcesses() bool { return s.Class.OrDefault() != runtime.ClassContainer }

// findByPID is look by the process that stands for the sandbox.
func (b *box) findByPID(t *testing.T) hostView {
	t.Helper()
	v := hostView{init: b.suite.HostPID(t, b.spec.ID)}
	dirs, err := cgroupsOf(v.init)
	own := regexp.MustCompile(regexp.QuoteMeta(b.spec.ID) + "|[0-9a-f]{64}")
	for _, dir := range dirs {
		if own.MatchString(dir) {
			v.cgroups = append(v.cgroups, dir)
		}
	}
	if err != nil || len(v.cgroups) == 0 {
		t.Fatalf("process %d has no cgroup of its own among %q, %v", v.init, dirs, err)
	}
	return v
}

// defaultLimits are those of a sandbox that a check has no other wish for. gVisor gives memory to processes in larger pieces.
func (s *suite) defaultLimits() runtime.Limits {
	l := baseLimits()
	if s.hidesProcesses() {
		l.MemoryBytes *= 5
	}
	return l
}

// publicDevices are device files that every sandbox has; gVisor's are all its own.
func (s *suite) publicDevices() []string {
	if s.hidesProcesses() {
		return append(containerDevices(), "/dev/fuse", "/dev/net/tun")
	}
	return containerDevices()
}

// hostCPUTime is the CPU time that the living processes of the sandbox had, as the host counts it.
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
			user, _ = strconv.ParseInt(fields[13], 10, 64) // of those that it has buried
			system, _ = strconv.ParseInt(fields[14], 10, 64)
			ticks += user + system
		}
	}
	const perSecond = 100 // USER_HZ, of all architectures
	return time.Duration(ticks) * time.Second / perSecond
}

// cgroupProcesses are the processes of the host in the sandbox's cgroups.
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

// commandsSeenInside are commands, as a command sees them: pid, uid, state, name.
func (b *box) commandsSeenInside(t *testing.T) []process {
	t.Helper()
	if len(cgroupProcesses(b.host.cgroups)) == 0 {
		return nil // the sandbox is gone
	}
	cmd := bash(`for p in /proc/[0-9]*; do while read -r k v _; do case $k in Name:) n=$v;; State:) s=$v;; Uid:) u=$v;; Threads:) h=$v;; esac; done 2>/dev/null <$p/status && echo ${p#/proc/} $u $s $h $n; done; true`)
	cmd.User = observerUser
	o, err := b.tryCommand(t.Context(), cmd, guest.IO{})
	if err != nil || !o.exited(0) {
		t.Fatalf("look at what runs inside: %v, %v", o, err)
	}
	var found []process
	for line := range strings.Lines(o.stdout) {
		var p process
		var state string
		var threads int
		if n, _ := fmt.Sscan(line, &p.pid, &p.uid, &state, &threads, &p.name); n < 4 || p.uid == 0 || strconv.Itoa(p.uid) == observerUser {
			continue
		}
		p.alive = state != "Z" && state != "X" || threads > 1
		found = append(found, p)
	}
	return found
}

// readInitFile is a file of PID 1's that the host sees for containers, and that a command asks for where it does not.
func (b *box) readInitFile(t *testing.T, name string) string {
	t.Helper()
	if !b.suite.hidesProcesses() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", b.host.init, name))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	o := b.runCommand(t, wire.Command{Argv: []string{"bash", "-c", `while IFS= read -r -d "" x; do printf '%s\0' "$x"; done </proc/1/` + name}})
	return o.stdout
}
