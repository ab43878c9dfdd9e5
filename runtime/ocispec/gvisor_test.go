package ocispec

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestGVisorConfiguration(t *testing.T) {
	spec, at := example()
	spec.Class = runtime.ClassGVisor
	got, err := New(spec, at)
	if err != nil {
		t.Fatal(err)
	}
	l := spec.Limits.WithDefaults()
	for _, m := range got.Mounts {
		if m.Destination == "/workspace" &&
			(m.Type != "tmpfs" || !slices.Contains(m.Options, "size=67108864") || !slices.Contains(m.Options, "uid=1000")) {
			t.Errorf("/workspace = %+v, want a tmpfs with size=67108864 and uid=1000", m)
		}
	}
	if *got.Linux.Resources.Memory.Limit <= l.MemoryBytes || *got.Linux.Resources.Pids.Limit <= l.Pids {
		t.Errorf("memory %d, pids %d; want room for gVisor over %d and %d",
			*got.Linux.Resources.Memory.Limit, *got.Linux.Resources.Pids.Limit, l.MemoryBytes, l.Pids)
	}
	i := slices.IndexFunc(got.Process.Rlimits, func(r specs.POSIXRlimit) bool { return r.Type == "RLIMIT_NPROC" })
	if i < 0 || got.Process.Rlimits[i].Hard != uint64(l.Pids-runtime.GuestReservePids) {
		t.Errorf("limits inside = %+v, want %d processes", got.Process.Rlimits, l.Pids-runtime.GuestReservePids)
	}
	if got.Linux.Seccomp == nil ||
		slices.ContainsFunc(got.Linux.Namespaces,
			func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace }) {
		t.Errorf("has a filter: %v, namespaces %v; want a filter and no cgroup namespace",
			got.Linux.Seccomp != nil, got.Linux.Namespaces)
	}
	selects := false
	for _, r := range got.Linux.Seccomp.Syscalls {
		selects = selects || slices.Contains(r.Names, "pselect") && r.Action == specs.ActAllow
		if slices.Contains(r.Names, "clone3") && r.Action != specs.ActAllow {
			t.Error("clone3 is refused, want it allowed: no caller falls back from this errno")
		}
	}
	if !selects {
		t.Error("pselect is refused, want it allowed: gVisor of 2022 needs it")
	}
	if plain := made(t); plain.Linux.Sysctl == nil || *plain.Linux.Resources.Pids.Limit != 100 {
		t.Error("class container changed, want its sysctls and 100 processes")
	}
}

func TestGVisorFlags(t *testing.T) {
	const common = "  -network value\n    \tx\n  -oci-seccomp\n    \tx\n"
	for what, c := range map[string]struct {
		text    string
		want    []string
		missing string
	}{
		"2022": {common + "  -host-uds value\n    \tcontrols\n  -fsgofer-host-uds\n    \tDEPRECATED: use " +
			"host-uds=all\n  -overlay2 value\n",
			[]string{"--network=none", "--host-uds=open", "--oci-seccomp", "--overlay2=none"}, ""},
		"older": {common + "  -fsgofer-host-uds\n    \tallow\n",
			[]string{"--network=none", "--fsgofer-host-uds", "--oci-seccomp"}, ""},
		"no socket": {common + "  -not-host-uds value\n    \tmentions host-uds\n", nil, "host-uds"},
		"no filter": {"  -network value\n  -host-uds value\n", nil, "oci-seccomp"},
		"nothing":   {"", nil, "network"},
	} {
		got, missing := GVisorFlags(c.text)
		if diff := cmp.Diff(c.want, got); diff != "" || missing != c.missing {
			t.Errorf("GVisorFlags of %s misses %q, want %q (-want +got):\n%s", what, missing, c.missing, diff)
		}
	}
}

func TestGVisorPlatforms(t *testing.T) {
	for text, want := range map[string][]string{
		"  -platform string\n" +
			"    \tspecifies which platform to use: ptrace (default), kvm. (default \"ptrace\")\n  " +
			"-platform_device_path string\n    \tsystrap\n": {"kvm", "ptrace"},
		"  -platform string\n" +
			"    \tspecifies which platform to use: systrap (default), ptrace, kvm. (default \"systrap\")\n": {"systrap", "kvm", "ptrace"},
		"": nil,
	} {
		if diff := cmp.Diff(want, GVisorPlatforms(text)); diff != "" {
			t.Errorf("GVisorPlatforms(%q) (-want +got):\n%s", text, diff)
		}
	}
}
