package ocispec

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func example() (runtime.Spec, HostPaths) {
	return runtime.Spec{
			ID: "sandbox-01", Owner: "owner-01", Template: "base", Build: "b1", Image: runtime.Image{Root: "/images/a"},
			Limits: runtime.Limits{CPUs: 1.5, MemoryBytes: 256 << 20, Pids: 100, TmpBytes: 8 << 20, OpenFiles: 1024},
		}, HostPaths{
			Root: "/s/root", RunDir: "/s/run", WorkspaceDir: "/s/slot", CgroupsPath: "/orchestrator/sandbox-01",
		}
}

func made(t *testing.T) *specs.Spec {
	t.Helper()
	spec, at := example()
	got, err := New(spec, at)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestProcess(t *testing.T) {
	p := made(t).Process
	caps := []string{"CAP_KILL", "CAP_SETGID", "CAP_SETUID"}
	if diff := cmp.Diff(&specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Effective: caps},
		p.Capabilities); diff != "" {
		t.Errorf("capabilities (-want +got):\n%s", diff)
	}
	if !p.NoNewPrivileges || p.Terminal || p.Cwd != "/" || p.User.UID != 0 {
		t.Errorf("process = %+v, want no new privileges, no terminal, directory / and user 0", p)
	}
	if diff := cmp.Diff([]string{"/run/orchestrator/guest", "init", "--alone", "10m0s"}, p.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	for _, e := range p.Env {
		if !strings.HasPrefix(e, "PATH=") && !strings.HasPrefix(e, "LANG=") {
			t.Errorf("environment has %s, want only PATH and LANG", e)
		}
	}
	limits := map[string]uint64{}
	for _, r := range p.Rlimits {
		if r.Soft != r.Hard {
			t.Errorf("%s: soft limit %d, hard limit %d; want both equal", r.Type, r.Soft, r.Hard)
		}
		limits[r.Type] = r.Hard
	}
	for name, want := range map[string]uint64{"RLIMIT_NOFILE": 1024, "RLIMIT_CORE": 0, "RLIMIT_RTPRIO": 0,
		"RLIMIT_MSGQUEUE": 0} {
		if got, ok := limits[name]; !ok || got != want {
			t.Errorf("hard limit %s = %d, want %d", name, got, want)
		}
	}
}

func TestEntrypointComesFirst(t *testing.T) {
	spec, at := example()
	spec.Entrypoint, spec.OrphanTimeout = []string{"/bin/enter", "-x"}, time.Minute
	got, err := New(spec, at)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"/bin/enter", "-x", "/run/orchestrator/guest", "init", "--alone", "1m0s"},
		got.Process.Args); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
}

func TestResources(t *testing.T) {
	r := made(t).Linux.Resources
	if *r.Memory.Limit != 256<<20 || *r.Memory.Swap != *r.Memory.Limit {
		t.Errorf("memory %d, with swap %d; want %d for both", *r.Memory.Limit, *r.Memory.Swap, 256<<20)
	}
	if *r.CPU.Quota != 150_000 || *r.CPU.Period != 100_000 || *r.CPU.Shares != 1536 {
		t.Errorf("cpu %d of %d, shares %d; want 150000 of 100000, shares 1536", *r.CPU.Quota, *r.CPU.Period, *r.CPU.Shares)
	}
	if *r.Pids.Limit != 100 {
		t.Errorf("pids = %d, want 100", *r.Pids.Limit)
	}
	if len(r.Devices) != 1 || r.Devices[0].Allow {
		t.Errorf("devices %+v, want all denied", r.Devices)
	}
}

func TestNamespacesAndRoot(t *testing.T) {
	s := made(t)
	types := make([]string, 0, len(s.Linux.Namespaces))
	for _, n := range s.Linux.Namespaces {
		if n.Path != "" {
			t.Errorf("%s namespace has the path %s, want a new namespace", n.Type, n.Path)
		}
		types = append(types, string(n.Type))
	}
	slices.Sort(types)
	if diff := cmp.Diff([]string{"cgroup", "ipc", "mount", "network", "pid", "uts"}, types); diff != "" {
		t.Errorf("namespaces (-want +got):\n%s", diff)
	}
	if !s.Root.Readonly || s.Linux.Seccomp == nil || s.Hooks != nil || s.Linux.RootfsPropagation != "rslave" {
		t.Errorf("root %+v, has a filter: %v, hooks %v, propagation %q; want read only, a filter, no hooks, rslave",
			s.Root, s.Linux.Seccomp != nil, s.Hooks, s.Linux.RootfsPropagation)
	}
}

func TestMounts(t *testing.T) {
	at := map[string]specs.Mount{}
	var order []string
	for _, m := range made(t).Mounts {
		at[m.Destination] = m
		order = append(order, m.Destination)
	}
	for place, want := range map[string][]string{
		"/tmp":              {"nosuid", "nodev", "size=8388608", "mode=1777"},
		"/home/user":        {"nosuid", "nodev", "size=8388608", "uid=1000", "gid=1000"},
		"/run":              {"nosuid", "nodev", "mode=0755", "uid=0"},
		"/dev/shm":          {"nosuid", "nodev", "noexec"},
		"/sys":              {"ro", "nosuid", "nodev", "noexec"},
		"/run/orchestrator": {"rbind", "rslave", "ro", "nosuid", "nodev"},
		"/workspace":        {"rbind", "rslave", "nosuid", "nodev"},
	} {
		m, ok := at[place]
		if !ok {
			t.Errorf("nothing is mounted at %s, want a mount", place)
		}
		for _, o := range want {
			if !slices.Contains(m.Options, o) {
				t.Errorf("options of %s = %v, want %s in them", place, m.Options, o)
			}
		}
	}
	if slices.Index(order, "/run") > slices.Index(order, "/run/orchestrator") {
		t.Error("/run is mounted after /run/orchestrator, want it before")
	}
	for _, place := range []string{"/sys/fs/cgroup", "/dev/mqueue"} {
		if _, ok := at[place]; ok {
			t.Errorf("%s is mounted, want no mount", place)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, change := range map[string]func(*runtime.Spec, *HostPaths){
		"an id that is a path":    func(s *runtime.Spec, _ *HostPaths) { s.ID = "../../etc" },
		"a relative root":         func(_ *runtime.Spec, p *HostPaths) { p.Root = "root" },
		"no run dir":              func(_ *runtime.Spec, p *HostPaths) { p.RunDir = "" },
		"no cgroup":               func(_ *runtime.Spec, p *HostPaths) { p.CgroupsPath = "" },
		"memory below the guests": func(s *runtime.Spec, _ *HostPaths) { s.Limits.MemoryBytes = 1 << 20 },
	} {
		spec, at := example()
		change(&spec, &at)
		if _, err := New(spec, at); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: error is %v, want an invalid argument", name, err)
		}
	}
}
