package docker

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

func TestGVisorConfiguration(t *testing.T) {
	s := spec()
	s.Class = runtime.ClassGVisor
	h := configured(t, s, image{id: "sha256:1"}, engine{api: "1.41"}, places{run: "/s/run", slot: "/s/slot"}).HostConfig
	forGVisor(h, s.Limits, "runsc", "seccomp={}")
	if h.Runtime != "runsc" || h.NetworkMode != "none" || !h.ReadonlyRootfs ||
		!slices.Contains(h.SecurityOpt, "no-new-privileges") {
		t.Errorf("runtime %q, network %q, read-only root %v, options %q; want runsc, none, true, no-new-privileges",
			h.Runtime, h.NetworkMode, h.ReadonlyRootfs, h.SecurityOpt)
	}
	if len(h.Mounts) != 1 || h.Mounts[0].Target != wire.RunDir || !h.Mounts[0].ReadOnly {
		t.Errorf("mounts = %+v, want only %s, read only", h.Mounts, wire.RunDir)
	}
	if !strings.Contains(h.Tmpfs[wire.Workspace], "size=") {
		t.Errorf("options of the workspace = %q, want a size", h.Tmpfs[wire.Workspace])
	}
	if h.Memory <= s.Limits.MemoryBytes || h.MemorySwap != h.Memory || *h.PidsLimit <= s.Limits.Pids {
		t.Errorf("memory %d, with swap %d, pids %d; want more than %d, the same with swap, more than %d",
			h.Memory, h.MemorySwap, *h.PidsLimit, s.Limits.MemoryBytes, s.Limits.Pids)
	}
	if u := h.Ulimits[len(h.Ulimits)-1]; u.Name != "nproc" || u.Hard != s.Limits.Pids-runtime.GuestReservePids {
		t.Errorf("last limit = %+v, want nproc of %d", u, s.Limits.Pids-runtime.GuestReservePids)
	}
}

func TestUnfitArgs(t *testing.T) {
	need := []string{"--network=none", "--oci-seccomp"}
	for args, fit := range map[string]bool{
		"--network=none --oci-seccomp":                true,
		"--platform=kvm --oci-seccomp --network=none": true,
		"--network=none":                              false,
		"":                                            false,
		"--network=none --oci-seccomp --network=host":  false,
		"--network=none --oci-seccomp -network=host":   false,
		"--network=none --oci-seccomp=false":           false,
		"--oci-seccomp --network=none -oci-seccomp=no": false,
	} {
		if got := unfitArgs(strings.Fields(args), need); (got == "") != fit {
			t.Errorf("unfitArgs(%q) = %q; want none: %v", args, got, fit)
		}
	}
}

func TestIsLauncher(t *testing.T) {
	d := &Driver{dir: t.TempDir()}
	path := filepath.Join(d.dir, launcherName)
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexec runsc \"$@\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if isLauncher(path) || isLauncher(d.dir) || isLauncher(filepath.Join(d.dir, "none")) {
		t.Error("isLauncher of another file, a directory or a missing file = true, want false")
	}
	for range 2 {
		if err := d.layLauncher(); err != nil {
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 || !isLauncher(path) {
		t.Errorf("launcher = %v, %v; want an executable launcher with mode 0700", info, err)
	}
}

// The launcher does not create a container without known cgroups: nothing would limit it.
func TestLauncherRefusesUnknownContainers(t *testing.T) {
	d := &Driver{dir: t.TempDir()}
	if err := d.layLauncher(); err != nil {
		t.Fatal(err)
	}
	began := filepath.Join(d.dir, "began")
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "runsc"), []byte("#!/bin/sh\necho \"$*\" >"+began+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) error {
		cmd := exec.Command(filepath.Join(d.dir, launcherName), args...)
		cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin"}
		return cmd.Run()
	}
	if err := run("--oci-seccomp", "create", "--bundle", "/none", "nobody-named-it"); err == nil {
		t.Error("create of a container without known cgroups succeeded, want error")
	}
	if _, err := os.Stat(began); err == nil {
		t.Error("runsc was started, want it not started")
	}
	if err := run("--oci-seccomp", "state", "nobody-named-it"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(began); err != nil ||
		string(text) != "--ignore-cgroups --oci-seccomp state nobody-named-it\n" {
		t.Errorf("arguments of runsc = %q, %v; want --ignore-cgroups before the engine's", text, err)
	}
}

func TestGVisorIsNotOfferedOnARemoteEngine(t *testing.T) {
	d := &Driver{mode: ModeStdio, runsc: DefaultGVisor}
	d.search = func() error { return d.findGVisor(t.Context()) }
	if got := d.Classes(); !slices.Equal(got, []runtime.Class{runtime.ClassContainer}) ||
		d.Capabilities(runtime.ClassGVisor) != nil {
		t.Errorf("classes = %q, want only %q, and no capabilities of %s", got, runtime.ClassContainer, runtime.ClassGVisor)
	}
	if err := d.Why(runtime.ClassGVisor); err == nil || !strings.Contains(err.Error(), "on this host") {
		t.Errorf("Why(%s) = %v, want an error with %q", runtime.ClassGVisor, err, "on this host")
	}
	if d.Why(runtime.ClassVM) == nil {
		t.Error("Why of virtual machines = nil, want error")
	}
}

func TestAdviceIsEngineConfiguration(t *testing.T) {
	d := &Driver{dir: "/s/docker", runsc: "mine"}
	flags, missing := ocispec.GVisorFlags("  -network value\n  -host-uds value\n  -oci-seccomp\n")
	if missing != "" {
		t.Fatalf("GVisorFlags misses %q, want nothing missing", missing)
	}
	want := `{"runtimes":{"mine":{"path":"/s/docker/runsc","runtimeArgs":["--network=none","--host-uds=open","--oci-seccomp"]}}}`
	if got := d.advice(flags); !strings.Contains(got, want) {
		t.Errorf("advice = %s, want %s in it", got, want)
	}
}
