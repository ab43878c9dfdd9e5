package runtimetest

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// isolationReport is what walls.py reports.
type isolationReport struct {
	Self         map[string]string `json:"self"`
	Init         map[string]string `json:"init"`
	InitCommand  []string          `json:"init_command"`
	IDs          []int             `json:"ids"`
	RootReadOnly bool              `json:"root_read_only"`
	Writable     [][]string        `json:"writable"`
	Made         map[string]string `json:"made"`
	Node         string            `json:"node"`
	Devices      []string          `json:"devices"`
	Read         map[string]string `json:"read"`
	Set          map[string]string `json:"set"`
	Mounts       []struct {
		At      string   `json:"at"`
		Options []string `json:"options"`
		Type    string   `json:"type"`
		Super   []string `json:"super"`
	} `json:"mounts"`
	SetuidFiles []string            `json:"setuid_files"`
	Environment map[string]string   `json:"environment"`
	Pids        []int               `json:"pids"`
	Limits      map[string][2]int64 `json:"limits"`
}

// isCovered reports whether a later mount covers mount i.
func (w *isolationReport) isCovered(i int) bool {
	for _, over := range w.Mounts[i+1:] {
		if isBelow(w.Mounts[i].At, []string{over.At}) {
			return true
		}
	}
	return false
}

// isolationReport returns what the plain sandbox looks like to a command. It asks once and caches
// the answer.
func (s *suite) isolationReport(t *testing.T) *isolationReport {
	t.Helper()
	if s.isolation == nil {
		var w isolationReport
		s.plain.runProgram(t, &w, "walls")
		s.isolation = &w
	}
	return s.isolation
}

// writableTops returns the directories that commands may write. They are in memory and end with the
// sandbox.
func writableTops() []string {
	return []string{"/tmp", "/home/user", wire.Workspace, "/dev/shm", "/dev/mqueue"}
}

func isBelow(path string, tops []string) bool {
	return slices.ContainsFunc(tops, func(top string) bool { return path == top || strings.HasPrefix(path, top+"/") })
}

// containerDevices returns the device files that every container has.
func containerDevices() []string {
	return []string{"/dev/full", "/dev/null", "/dev/ptmx", "/dev/random", "/dev/tty", "/dev/urandom", "/dev/zero",
		"/dev/pts/ptmx"}
}

// checkReadOnlyRoot checks that commands can write only to the in-memory file systems.
func checkReadOnlyRoot(t *testing.T, s *suite) {
	t.Helper()
	w := s.isolationReport(t)
	if !w.RootReadOnly && !s.hidesProcesses() { // gVisor's statvfs reports no flags
		t.Error("/ is mounted writable, want read-only")
	}
	for _, paths := range w.Writable {
		for _, path := range paths {
			if !isBelow(path, writableTops()) && !slices.Contains(s.publicDevices(), path) {
				t.Errorf("%s is writable, want it only below %q and public devices", path, writableTops())
			}
		}
	}
	for path, said := range w.Made {
		if said == "ok" {
			t.Errorf("%s can be created, want an error", path)
		}
	}
	if w.Node == "ok" && !s.hidesProcesses() { // gVisor allows it, but only for devices it implements itself
		t.Error("mknod of a device succeeded, want error")
	}
	for _, d := range w.Devices {
		if !slices.Contains(s.publicDevices(), d) && d != "/dev/console" && !strings.HasPrefix(d, "/dev/pts/") {
			t.Errorf("unexpected device %s", d)
		}
	}
	for path, said := range w.Read {
		// The table records at non-root which files of PID 1 gVisor lets commands read.
		if said == "ok" && !(s.hidesProcesses() && strings.HasPrefix(path, "/proc/1/")) {
			t.Errorf("%s is readable, want an error", path)
		}
	}
	for path, said := range w.Set {
		if said == "ok" {
			t.Errorf("%s is writable, want an error", path)
		}
	}
	for _, line := range []string{"mount -o remount,rw /", "mount -t tmpfs none /tmp", "umount /tmp",
		"umount -l /proc/sys"} {
		if o := s.plain.sh(t, line); o.exited(0) {
			t.Errorf("%s: %v, want failure", line, o)
		}
	}
}

// checkMountFlags checks that only the writable directories are mounted writable, that no writable
// file system honours setuid bits, and no directory of the commands device files.
func checkMountFlags(t *testing.T, s *suite) {
	t.Helper()
	w := s.isolationReport(t)
	for i, m := range w.Mounts {
		if w.isCovered(i) || s.hidesProcesses() { // gVisor has no setuid and no host devices, and does not show the flags
			continue
		}
		if !slices.Contains(m.Options, "ro") && !isBelow(m.At, append(writableTops(), "/proc", "/dev", "/run")) {
			t.Errorf("%s (%s) is mounted writable, want read-only", m.At, m.Type)
		}
		if !slices.Contains(m.Options, "ro") && !slices.Contains(m.Options, "nosuid") && !isDevice(t, s, m.At) {
			t.Errorf("%s is mounted with %v, want nosuid", m.At, m.Options)
		}
		if isBelow(m.At, writableTops()) && !slices.Contains(m.Options, "nodev") {
			t.Errorf("%s is mounted with %v, want nodev", m.At, m.Options)
		}
	}
}

// isDevice reports whether a mount of a sandbox with a user namespace is a single device file.
// Such a sandbox cannot make device files, so those of the host are mounted, with its flags. A
// device file cannot be executed, so set-id bits have no meaning.
func isDevice(t *testing.T, s *suite, path string) bool {
	t.Helper()
	return s.UserNamespace && s.plain.sh(t, "test -c "+path).exited(0)
}

// guestCapabilities are CAP_KILL, CAP_SETGID and CAP_SETUID: the guest needs them to run commands
// as other users and to kill them.
const guestCapabilities = 1<<unix.CAP_KILL | 1<<unix.CAP_SETGID | 1<<unix.CAP_SETUID

func checkCapabilities(t *testing.T, s *suite) {
	t.Helper()
	w := s.isolationReport(t)
	for set, value := range w.Self {
		if !strings.HasPrefix(set, "Cap") {
			continue
		}
		if value == "" && s.hidesProcesses() {
			continue // gVisor does not show all sets
		}
		bits, err := strconv.ParseUint(value, 16, 64)
		if err != nil {
			t.Fatalf("%s = %q, want a hexadecimal number: %v", set, value, err)
		}
		// The bounding set only limits what could be gained, and no_new_privs prevents gaining
		// anything.
		if bits != 0 && (set != "CapBnd" || bits&^guestCapabilities != 0) {
			t.Errorf("%s of a command = %s, want none", set, value)
		}
	}
	for set, value := range w.Init {
		if bits, err := strconv.ParseUint(value, 16, 64); strings.HasPrefix(set, "Cap") &&
			(value != "" || !s.hidesProcesses()) && (err != nil || bits&^guestCapabilities != 0) {
			t.Errorf("%s of PID 1 = %s, want at most %x", set, value, guestCapabilities)
		}
	}
	if len(w.Self) < 5 || len(w.Init) < 5 {
		t.Errorf("status of a command = %v, of PID 1 = %v; want at least 5 values each", w.Self, w.Init)
	}
}

// checkNoNewPrivs checks that the flag is set for all processes and that setuid programs gain
// nothing.
func checkNoNewPrivs(t *testing.T, s *suite) {
	t.Helper()
	w := s.isolationReport(t)
	for who, status := range map[string]map[string]string{"a command": w.Self, "PID 1": w.Init} {
		// gVisor honours the flag but does not show it. That setuid programs gain nothing is
		// checked below.
		if got := status["NoNewPrivs"]; got != "1" && (got != "" || !s.hidesProcesses()) {
			t.Errorf("NoNewPrivs of %s = %q, want 1", who, status["NoNewPrivs"])
		}
	}
	h := s.newHostileSandbox(t)
	if o := h.runCommand(t, bash("[ -u /suid -a -x /suid ]")); !o.exited(0) {
		t.Fatalf("test of /suid: %v, want a setuid program there: the check proves nothing", o)
	}
	for _, line := range []string{`/suid -p -c 'echo $EUID'`, `exec /suid -p -c 'echo $EUID'`} {
		if got := h.mustOutput(t, line); got != strconv.Itoa(runtime.CommandUID) {
			t.Errorf("%s runs as uid %s, want %d", line, got, runtime.CommandUID)
		}
	}
}

func checkSeccomp(t *testing.T, s *suite) {
	t.Helper()
	w := s.isolationReport(t)
	for who, status := range map[string]map[string]string{"a command": w.Self, "PID 1": w.Init} {
		if status["Seccomp"] != "2" {
			t.Errorf("Seccomp of %s = %q, want 2 (a filter)", who, status["Seccomp"])
		}
	}
	var got map[string]any
	s.plain.runProgram(t, &got, "syscalls")
	if len(got) < 50 {
		t.Errorf("tried %d system calls, want at least 50", len(got))
	}
	for call, said := range got {
		text, _ := said.(string)
		switch {
		case text == "EPERM", text == "EACCES", strings.HasPrefix(text, "killed "):
		case text == "ENOSYS":
		default:
			t.Errorf("%s = %v, want it filtered", call, said)
		}
	}
	var failed map[string]string
	s.plain.runProgram(t, &failed, "ordinary")
	if len(failed) > 0 {
		t.Errorf("ordinary calls that fail = %v, want none", failed)
	}
	s.plain.mustPing(t)
}

// checkNonRoot checks that commands run as uid 1000 or the user the caller names, never as root,
// and cannot affect the guest.
func checkNonRoot(t *testing.T, s *suite) {
	t.Helper()
	w := s.isolationReport(t)
	want := []int{runtime.CommandUID, runtime.CommandUID, runtime.CommandUID, runtime.CommandGID, runtime.CommandGID,
		runtime.CommandGID}
	if len(w.IDs) < 6 || !slices.Equal(w.IDs[:6], want) || slices.Contains(w.IDs, 0) {
		t.Errorf("uids, gids and groups of a command = %v, want %v and no 0", w.IDs, want)
	}
	for _, user := range []string{"0", "root", "0:0", "0:1000", "00", "4294967295", "4294967296", "-1", "nobody-knows",
		"1000:", "1000:x", ":0", " 0", "+0"} {
		o, err := s.plain.tryCommand(t.Context(), wire.Command{Argv: []string{"id", "-u"}, User: user}, guest.IO{})
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("command as user %q: %v, %v; want InvalidArgument", user, o, err)
		}
	}
	for user, want := range map[string]string{"": "1000 1000", "1234": "1234 1234", "1234:4321": "1234 4321",
		"nobody": "65534 65534"} {
		o := s.plain.runCommand(t, wire.Command{Argv: []string{"bash", "-c", "echo $(id -u) $(id -g)"}, User: user})
		if got := strings.TrimSpace(o.stdout); got != want {
			t.Errorf("uid and gid of user %q = %q, want %q", user, got, want)
		}
	}
	checkGuestProtected(t, s.newSandbox(t, nil))
	checkSecrets(t, s.newSandbox(t, nil))
}

// checkWithoutNonRoot checks what must hold even where commands can inspect the guest.
func checkWithoutNonRoot(t *testing.T, s *suite) {
	t.Helper()
	for _, user := range []string{"0", "root", "0:0", "00", "4294967296", "-1"} {
		o, err := s.plain.tryCommand(t.Context(), wire.Command{Argv: []string{"true"}, User: user}, guest.IO{})
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("command as user %q: %v, %v; want InvalidArgument", user, o, err)
		}
	}
	if got := s.plain.mustOutput(t, "echo $UID"); got != strconv.Itoa(runtime.CommandUID) {
		t.Errorf("uid of a command = %s, want %d", got, runtime.CommandUID)
	}
	b := s.newSandbox(t, nil)
	for _, line := range []string{"kill -9 1", "kill -TERM -1; kill -KILL -1",
		"for t in /proc/1/task/*; do kill -9 ${t##*/}; done", "echo 1 >/proc/1/oom_score_adj"} {
		b.sh(t, line)
		b.mustPing(t)
	}
	checkSecrets(t, b)
}

// checkGuestProtected checks that a command cannot signal, trace, read or slow down PID 1.
func checkGuestProtected(t *testing.T, b *box) {
	t.Helper()
	before := b.mustPing(t)
	var got map[string]any
	b.runProgram(t, &got, "guest")
	for what, said := range got {
		list, ok := said.([]any)
		if !ok {
			list = []any{said}
		}
		for _, one := range list {
			if text, _ := one.(string); text != "EPERM" && text != "EACCES" && text != "ESRCH" && text != "PermissionError" {
				t.Errorf("%s of PID 1 = %v, want a permission error", what, one)
			}
		}
	}
	if len(got) < 15 {
		t.Errorf("tried %d attacks, want at least 15", len(got))
	}
	// Signal every process that the user may signal. Pre-forked processes must not be among them.
	if o := b.sh(t, "trap '' TERM; kill -TERM -1; kill -KILL -1; true"); o.Ending != runtime.Exited &&
		o.Ending != runtime.Signalled {
		t.Errorf("kill -1: %v, want exited or signalled", o)
	}
	after := b.mustPing(t)
	if after.UptimeMS < before.UptimeMS {
		t.Errorf("guest restarted: uptime %d ms, want at least %d ms", after.UptimeMS, before.UptimeMS)
	}
	if got := b.mustOutput(t, "echo fine"); got != "fine" {
		t.Errorf("output of the next command = %q, want %q", got, "fine")
	}
}

// checkSecrets checks that a lease's secrets are in its commands' environment and nowhere else.
func checkSecrets(t *testing.T, b *box) {
	t.Helper()
	const secret = "s3cret-that-nobody-reads"
	if err := b.Claim(t.Context(), wire.Claim{Lease: "lease", Env: map[string]string{"TOKEN": secret}}); err != nil {
		t.Fatal(err)
	}
	if got := b.mustOutput(t, "echo $TOKEN"); got != secret {
		t.Errorf("TOKEN in a command of the lease = %q, want %q", got, secret)
	}
	if err := b.Claim(t.Context(), wire.Claim{Lease: "other"}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Claim by a second lease: %v, want FailedPrecondition", err)
	}
	for _, name := range []string{"environ", "cmdline", "status"} {
		text := b.readInitFile(t, name)
		// a command may not read the other files in gVisor
		if len(text) == 0 && !(b.suite.hidesProcesses() && name != "cmdline") {
			t.Errorf("/proc/1/%s is empty, want text", name)
		}
		if strings.Contains(text, secret) {
			t.Errorf("/proc/1/%s contains the secret, want it absent", name)
		}
	}
}
