package containerd

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestVersions(t *testing.T) {
	for version, ok := range map[string]bool{
		"1.6.20~ds1": true, "1.6.0": true, "v1.7.24": true, "v2.0.1": true, "2.1": true, "1.5.18": false, "v1.4.3~ds1": false,
		"0.9": false, "": false, "v": false, "1": false, "new": false,
	} {
		if newEnough(version) != ok {
			t.Errorf("newEnough(%q) = %v, want %v", version, !ok, ok)
		}
	}
}

func good(t *testing.T) Options {
	t.Helper()
	guest := filepath.Join(t.TempDir(), "guest")
	if err := os.WriteFile(guest, nil, 0o700); err != nil {
		t.Fatal(err)
	}
	return Options{StateDir: t.TempDir(), GuestPath: guest}
}

func TestInvalidOptions(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	for what, c := range map[string]struct {
		change func(*Options)
		says   string
	}{
		"relative state":  {func(o *Options) { o.StateDir = "state" }, "state dir"},
		"relative guest":  {func(o *Options) { o.GuestPath = "guest" }, "guest path"},
		"relative socket": {func(o *Options) { o.Address = "containerd.sock" }, "containerd.address"},
		"no guest":        {func(o *Options) { o.GuestPath += "-gone" }, "guest"},
	} {
		o := good(t)
		c.change(&o)
		if _, err := New(t.Context(), o); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("New with %s: %v, want an error with %q", what, err, c.says)
		}
	}
}

// A class that is not offered is refused.
func TestClassesThatAreNotOffered(t *testing.T) {
	d := &Driver{}
	d.search = func() (handler, error) { return d.findGVisor(t.Context(), "/no/such/runsc") }
	if got := d.Classes(); len(got) != 1 || got[0] != runtime.ClassContainer {
		t.Errorf("classes = %v, want only %s", got, runtime.ClassContainer)
	}
	for _, class := range []runtime.Class{runtime.ClassGVisor, runtime.ClassVM} {
		if d.Capabilities(class) != nil {
			t.Errorf("Capabilities(%s) = %v, want nil", class, d.Capabilities(class))
		}
		if _, err := d.handlerOf(class); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("handlerOf(%s): %v, want FailedPrecondition", class, err)
		}
	}
	for _, c := range runtime.AllCapabilities() {
		if d.Capabilities("")[c] == "" {
			t.Errorf("capability %s is empty, want an answer", c)
		}
	}
}

// A search that failed because the daemon was away is repeated. Other results are kept.
func TestSearchIsRepeatedAfterUnavailable(t *testing.T) {
	var s gvisor.Once[handler]
	said := []error{errdefs.ErrUnavailable, errdefs.ErrFailedPrecondition}
	for _, want := range []error{errdefs.ErrUnavailable, errdefs.ErrFailedPrecondition, errdefs.ErrFailedPrecondition} {
		_, err := s.Do(func() (handler, error) {
			if len(said) == 0 {
				t.Fatal("searched again after success, want the kept answer")
			}
			next := said[0]
			said = said[1:]
			return handler{}, next
		})
		if !errors.Is(err, want) {
			t.Errorf("told %v, want %v", err, want)
		}
	}
}

// The launcher joins only the cgroups of its own sandbox, and passes output through unchanged.
func TestLauncher(t *testing.T) {
	d := &Driver{dir: filepath.Join(t.TempDir(), "it's a folder")}
	cg := filepath.Join(d.dir, "cgroup of s")
	for _, dir := range []string{cg, d.runscState("s")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(d.runscState("s"), cgroupsName), []byte(cg+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := d.gvisorHandler(&gvisor.Program{Path: "/bin/echo", Platform: "none", Flags: []string{"--a=$b '"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		ok   bool
		in   bool
	}{
		{[]string{"--root", "/r", "delete", "--force", "s"}, true, false},
		{[]string{"--root", "/r", "create", "--bundle", "/b", "s"}, true, true},
		{[]string{"--root", "/r", "create", "--bundle", "/b", "t"}, false, false},
		{[]string{"--root", "/r", "start", "t"}, true, false},
	} {
		procs := filepath.Join(cg, "cgroup.procs")
		_ = os.Remove(procs)
		out, err := exec.Command(h.binary, c.args...).Output()
		want := "--platform=none --ignore-cgroups --a=$b ' " + strings.Join(c.args, " ") + "\n"
		if (err == nil) != c.ok || c.ok && string(out) != want {
			t.Errorf("output of %q = %q, %v; want %q and no error: %v", c.args, out, err, want, c.ok)
		}
		if ocidriver.Exists(procs) != c.in {
			t.Errorf("%q is in the cgroup = %v, want %v", c.args, !c.in, c.in)
		}
	}
}

func TestMissingDaemonIsUnavailable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, address := range []string{filepath.Join(dir, "none.sock"), dead} {
		o := good(t)
		o.Address = address
		if _, err := New(t.Context(), o); !errdefs.IsUnavailable(err) && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("New with %s: %v, want Unavailable or FailedPrecondition", address, err)
		}
		if _, err := peerOf(t.Context(), address); !errdefs.IsUnavailable(err) {
			t.Errorf("peerOf(%s): %v, want Unavailable", address, err)
		}
	}
}

func TestPeerIsTheListener(t *testing.T) {
	address := filepath.Join(t.TempDir(), "l.sock")
	l, err := net.Listen("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if pid, err := peerOf(t.Context(), address); err != nil || pid != os.Getpid() {
		t.Errorf("peerOf = %d, %v; want %d and no error", pid, err, os.Getpid())
	}
	if err := checkPeer(t.Context(), address); err != nil {
		t.Error(err)
	}
}

func TestImagesWithoutADigestAreRefused(t *testing.T) {
	for _, id := range []string{"", "latest", "sha256:", "sha256:../../x"} {
		err := (&Driver{}).Prepare(t.Context(), runtime.Image{Ref: "x", ID: id})
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("Prepare with the id %q: %v, want InvalidArgument", id, err)
		}
	}
}

func TestTasksThatRun(t *testing.T) {
	for status, want := range map[task.Status]bool{
		task.Status_RUNNING: true, task.Status_PAUSED: true, task.Status_PAUSING: true, task.Status_CREATED: false,
		task.Status_STOPPED: false, task.Status_UNKNOWN: false,
	} {
		if alive(&task.Process{Status: status}) != want {
			t.Errorf("alive with status %s = %v, want %v", status, !want, want)
		}
	}
}

func TestOtherProcessesAreNoShims(t *testing.T) {
	d := &Driver{namespace: DefaultNamespace}
	if got := d.shimsOf("nobody-has-this-id"); len(got) > 0 {
		t.Errorf("shimsOf an unknown id = %v, want none", got)
	}
	if d.isShim(os.Getpid(), "nobody-has-this-id") {
		t.Error("isShim of this process = true, want false")
	}
	if !option([]string{"shim", "-namespace", "a", "-id", "b"}, "-id", "b") || option([]string{"shim", "-id"}, "-id", "") {
		t.Error("option = false for an argument that is there or true for one without value, want the opposite")
	}
}

func TestEndedContextIsReported(t *testing.T) {
	why := errors.New("gave up")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if err := said(ctx, errors.New("rpc error")); !errors.Is(err, why) {
		t.Errorf("said = %v, want %v", err, why)
	}
}
