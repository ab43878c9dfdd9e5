package cgroup

import (
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	hybridMounts = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:5 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
`
	v2Mounts = `29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate,favordynmods
`
	v1Mounts = `32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 31 0:30 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
`
	// A v1 mount of a small controller in addition to v2, as some VPN clients create it.
	v2WithNetCls = v2Mounts + "50 22 0:50 / /mnt/net rw - cgroup none rw,net_cls\n"
)

func TestDetectLayout(t *testing.T) {
	for name, tt := range map[string]struct {
		text   string
		mode   Mode
		points map[string]string
	}{
		"hybrid": {hybridMounts, ModeHybrid, map[string]string{
			Memory: "/sys/fs/cgroup/memory", Pids: "/sys/fs/cgroup/pids", CPU: "/sys/fs/cgroup/cpu,cpuacct",
			Unified: "/sys/fs/cgroup/unified"}},
		"v2": {v2Mounts, ModeV2, map[string]string{Unified: "/sys/fs/cgroup"}},
		"v1": {v1Mounts, ModeV1,
			map[string]string{Memory: "/sys/fs/cgroup/memory", Pids: "/sys/fs/cgroup/pids"}},
		"v2 with net_cls": {v2WithNetCls, ModeV2, map[string]string{Unified: "/sys/fs/cgroup"}},
		"the widest mount wins": {"1 1 0:1 /docker/x /in rw - cgroup2 c rw\n2 1 0:1 / /all rw - cgroup2 c rw\n", ModeV2,
			map[string]string{Unified: "/all"}},
		"blank in a path": {`1 1 0:1 / /my\040cgroups rw - cgroup2 c rw` + "\n", ModeV2,
			map[string]string{Unified: "/my cgroups"}},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := detectLayout(parseMounts(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			points := map[string]string{}
			for n, m := range h.mounts {
				points[n] = m.point
			}
			if diff := cmp.Diff(tt.points, points); diff != "" || h.Mode != tt.mode {
				t.Errorf("mode %s, want %s; mounts (-want +got):\n%s", h.Mode, tt.mode, diff)
			}
			if want := strings.Contains(tt.text, "favordynmods"); h.FastMoves != want {
				t.Errorf("FastMoves = %v, want %v", h.FastMoves, want)
			}
		})
	}
	if _, err := detectLayout(nil); err == nil {
		t.Error("detectLayout without mounts succeeded, want an error")
	}
}

func TestParseProc(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want map[string]string
	}{
		"hybrid": {"9:name=systemd:/\n8:pids:/docker/a\n4:memory:/docker/a:b\n2:cpuacct,cpu:/c\n0::/u\n",
			map[string]string{Pids: "/docker/a", Memory: "/docker/a:b", CPU: "/c", Unified: "/u"}},
		"v2":      {"0::/system.slice/docker-1.scope\n", map[string]string{Unified: "/system.slice/docker-1.scope"}},
		"v1":      {"3:memory:/\n", map[string]string{Memory: "/"}},
		"nothing": {"", map[string]string{}},
		"broken":  {"x\n1\n1:memory\n0::relative\n:::\n", map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, parseProc(tt.text)); diff != "" {
				t.Errorf("parseProc (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCgroupDirBelowMount(t *testing.T) {
	for _, tt := range []struct {
		root, cgroup, want string
		ok                 bool
	}{
		{"/", "/", "/m", true},
		{"/", "/docker/a", "/m/docker/a", true},
		{"/", "/docker/a (deleted)", "/m/docker/a", true},
		{"/docker/a", "/docker/a", "/m", true},
		{"/docker/a", "/docker/a/guest", "/m/guest", true},
		{"/docker/a", "/docker/ab", "", false},
		{"/docker/a", "/", "", false},
		{"/", "/..", "", false},
		{"/", "/../other", "", false},
		{"/", "/..data", "/m/..data", true},
		{"/", "/a/../../etc", "/m/etc", true},
	} {
		got, ok := mount{root: tt.root, point: "/m"}.cgroupDir(tt.cgroup)
		if got != tt.want || ok != tt.ok {
			t.Errorf("root %s, cgroup %s: %q %v, want %q %v", tt.root, tt.cgroup, got, ok, tt.want, tt.ok)
		}
	}
}

func TestParseStatHostileName(t *testing.T) {
	rest := " T 77 " + strings.Repeat("0 ", 17) + "4242 0"
	for _, name := range []string{"(sh)", "(a b)", "(evil) R 1 2 3 (x)", "())"} {
		s, err := parseStat("12 " + name + rest)
		if err != nil || s != (stat{state: 'T', parent: 77, start: 4242}) {
			t.Errorf("parseStat with name %s = %+v, %v; want state T, parent 77 and start 4242", name, s, err)
		}
	}
	for _, bad := range []string{"", "1 (x", "1 (x) S 1", "1 (x) S y " + strings.Repeat("0 ", 30)} {
		if s, err := parseStat(bad); err == nil {
			t.Errorf("parseStat(%q) = %+v, want an error", bad, s)
		}
	}
}

func TestParsePidsHidesSpecialPids(t *testing.T) {
	pids, hidden := parsePids("0\n12\n-1\n1\n99999999999\n7\n\n")
	if diff := cmp.Diff([]int{12, 7}, pids); diff != "" || hidden != 4 {
		t.Errorf("parsePids hides %d, want 4; pids (-want +got):\n%s", hidden, diff)
	}
}

func TestStandInNameRoundTrip(t *testing.T) {
	p := process{space: 4026531836, pid: 17, start: 9}
	if got, ok := parseStandIn(p.standInName()); !ok || got != p {
		t.Errorf("parseStandIn(%q) = %+v, %v; want %+v, true", p.standInName(), got, ok, p)
	}
	for _, bad := range []string{"orchestrator", "orchestrator-1-2", "orchestrator-1-02-3", "orchestrator-1-2-3-4",
		"x-1-2-3", "orchestrator-1-2-99999999999999999999"} {
		if p, ok := parseStandIn(bad); ok {
			t.Errorf("parseStandIn(%q) = %+v, want none", bad, p)
		}
	}
}

func FuzzMounts(f *testing.F) {
	for _, s := range []string{hybridMounts, v2WithNetCls, "1 1 0:1 /\\04 /\\777 rw - cgroup2 c rw", "a - cgroup"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, m := range parseMounts(text) {
			if !path.IsAbs(m.root) || !path.IsAbs(m.point) {
				t.Errorf("mount %+v has a relative path, want absolute ones", m)
			}
		}
		if h, err := detectLayout(parseMounts(text)); err == nil && len(h.mounts) == 0 {
			t.Error("detectLayout returned a layout without mounts, want an error")
		}
	})
}

func FuzzProcCgroup(f *testing.F) {
	for _, s := range []string{"0::/../x\n", "4:memory:/a/../../b\n0::/ (deleted)\n", "1:cpu,cpuacct:/x:y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for name, cgroup := range parseProc(text) {
			dir, ok := mount{root: "/", point: "/m"}.cgroupDir(cgroup)
			if ok && dir != "/m" && !strings.HasPrefix(dir, "/m/") {
				t.Errorf("%s: cgroup %q leads to %q, want a path inside the mount", name, cgroup, dir)
			}
		}
	})
}

func FuzzStat(f *testing.F) {
	f.Add("1 (a) b) S 1 " + strings.Repeat("0 ", 30))
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = parseStat(text)
		_ = parseKeyed(text)
		pids, _ := parsePids(text)
		for _, pid := range pids {
			if pid <= 1 {
				t.Errorf("parsePids(%q) has %d, want pids above 1", text, pid)
			}
		}
	})
}
