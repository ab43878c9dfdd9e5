package ocidriver

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
)

const host = Driver("test")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
		if err := host.checkVersion("runc", text); (err == nil) != ok {
			t.Errorf("checkVersion(%q): %v; want success: %v", text, err, ok)
		}
	}
	if err := host.checkVersion("crun", "crun version 1.8.1\n+SYSTEMD +SECCOMP\n"); err != nil {
		t.Error(err)
	}
}

func TestCheckRuntimeRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		is    func(error) bool
		class string
	}{
		"runsc":                {errdefs.IsNotImplemented, "NotImplemented"},
		"/opt/bin/runsc":       {errdefs.IsNotImplemented, "NotImplemented"},
		"docker":               {errdefs.IsInvalidArgument, "InvalidArgument"},
		"crun":                 {errdefs.IsFailedPrecondition, "FailedPrecondition"}, // on a hybrid host
		"/does/not/exist/runc": {errdefs.IsFailedPrecondition, "FailedPrecondition"},
	} {
		if _, _, err := host.CheckRuntime(t.Context(), name, cgroup.Host{Mode: cgroup.ModeHybrid}); !c.is(err) {
			t.Errorf("CheckRuntime(%s): %v, want %s", name, err, c.class)
		}
	}
}

func TestProcessSurvivesPidReuse(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.Ended() {
		t.Error("Ended of a running process = true, want false")
	}
	ended := make(chan bool, 1)
	var wg sync.WaitGroup
	wg.Go(func() { ended <- p.Block() })
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if !<-ended {
		t.Error("Block = false, want true")
	}
	// It is a child of this process and was not reaped elsewhere.
	if err := p.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := Open(cmd.Process.Pid); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("second Open: %v, want %v", err, os.ErrNotExist)
	}
	if err := p.Kill(); err != nil {
		t.Errorf("second Kill: %v", err)
	}
	_ = cmd.Wait() // the child was reaped; this frees its resources
}

func TestCloseEndsWait(t *testing.T) {
	p, err := Open(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan bool, 1)
	var wg sync.WaitGroup
	wg.Go(func() { ended <- p.Block() })
	p.Close()
	wg.Wait()
	if <-ended {
		t.Error("Block on this process = true, want false")
	}
}

func TestFitRlimitsUnderOwnLimits(t *testing.T) {
	if hasResourceCapability(0) {
		t.Log("this process may raise its limits")
	}
	list := []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 40, Soft: 1 << 40}}
	if err := FitRlimits(list); errdefs.IsFailedPrecondition(err) == hasResourceCapability(0) {
		t.Errorf("FitRlimits of many open files: %v; want FailedPrecondition: %v", err, !hasResourceCapability(0))
	}
	list = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1, Soft: 1}, {Type: "RLIMIT_CORE"},
		{Type: "RLIMIT_SIGPENDING", Hard: 1, Soft: 1}}
	if err := FitRlimits(list); err != nil || list[0].Hard != 1 || list[2].Hard != 1 {
		t.Errorf("FitRlimits of low limits = %+v, %v; want hard limits of 1 and no error", list, err)
	}
}

// An image may have any file at a mount point: links are not followed, and files are replaced by
// directories.
func TestSkeletonFollowsNoLinks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	outside, root := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, "hostname")
	for _, err := range []error{
		os.WriteFile(victim, []byte("host\n"), 0o600),
		os.Symlink(outside, filepath.Join(root, "etc")),
		os.Symlink("/", filepath.Join(root, "home")),
		os.WriteFile(filepath.Join(root, "proc"), nil, 0o600),
		os.MkdirAll(filepath.Join(root, "workspace", "kept"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	var first, second os.FileInfo
	for _, info := range []*os.FileInfo{&first, &second} {
		err := WriteSkeleton(root)
		if err == nil {
			*info, err = os.Lstat(filepath.Join(root, "etc/hosts"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !os.SameFile(first, second) {
		t.Error("the second WriteSkeleton replaced a file, want it kept: sandboxes may use it")
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "host\n" {
		t.Errorf("file outside = %q, %v; want %q and no error", text, err, "host\n")
	}
	for _, name := range []string{"proc", "sys", "dev", "tmp", "run/orchestrator", "workspace/kept", "home/user", "etc"} {
		if info, err := os.Lstat(filepath.Join(root, name)); err != nil || !info.IsDir() {
			t.Errorf("Lstat of %s = %v, %v; want a directory and no error", name, info, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(root, "etc/hostname")); err != nil || string(text) != "sandbox\n" {
		t.Errorf("hostname = %q, %v; want %q and no error", text, err, "sandbox\n")
	}
	other := t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(other, "etc"), 0o700),
		os.Symlink(victim, filepath.Join(other, "etc/hostname")),
		os.MkdirAll(filepath.Join(other, "etc/hosts/folder"), 0o700),
		WriteSkeleton(other),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "host\n" {
		t.Errorf("file outside = %q, %v; want %q and no error", text, err, "host\n")
	}
}
