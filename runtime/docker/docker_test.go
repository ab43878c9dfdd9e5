package docker

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(standinDir())
		os.Exit(code)
	}))
}

// standinDir is where this run of the tests builds its stand-in for the guest.
func standinDir() string {
	return filepath.Join(os.TempDir(), "orchestrator-standin-"+strconv.Itoa(os.Getpid()))
}

func spec() runtime.Spec {
	return runtime.Spec{
		ID: "sandbox-0001", Owner: "owner-0001", Template: "default", Build: "b1",
		Image: runtime.Image{Ref: "sandbox", ID: "sha256:1"}, Limits: runtime.Limits{}.WithDefaults(),
	}
}

func configured(t *testing.T, s runtime.Spec, img image, e engine, at places) client.ContainerCreateOptions {
	t.Helper()
	got, err := configure(s, img, e, at, "seccomp={}")
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestIsolationIsConfiguredInBothModes(t *testing.T) {
	for name, at := range map[string]places{"local": {run: "/s/run", slot: "/s/slot"}, "stdio": {volume: "v"}} {
		t.Run(name, func(t *testing.T) {
			s := spec()
			got := configured(t, s, image{id: "sha256:1"}, engine{api: "1.41"}, at)
			c, h := got.Config, got.HostConfig
			for what, ok := range map[string]bool{
				"name":            got.Name == "orchestrator-sandbox-0001",
				"network":         h.NetworkMode == "none" && c.NetworkDisabled,
				"read-only root":  h.ReadonlyRootfs,
				"caps dropped":    slices.Equal(h.CapDrop, []string{"ALL"}),
				"caps added":      slices.Equal(h.CapAdd, ocispec.Capabilities()),
				"privileges":      slices.Equal(h.SecurityOpt, []string{"no-new-privileges", "seccomp={}"}) && !h.Privileged,
				"memory, no swap": h.Memory == s.Limits.MemoryBytes && h.MemorySwap == h.Memory,
				"pids":            *h.PidsLimit == s.Limits.Pids,
				"cpu":             h.NanoCPUs == 1e9,
				"no log":          h.LogConfig.Type == "none",
				"no restart":      h.RestartPolicy.Name == "no" && !h.AutoRemove,
				"no init":         h.Init != nil && !*h.Init,
				"ipc":             h.IpcMode == "private" && h.ShmSize > 0 && h.ShmSize <= 16<<20,
				"user":            c.User == "0:0" && c.WorkingDir == "/",
				"guest is PID 1":  c.Entrypoint[0] == wire.GuestPath && c.Cmd[0] == "init",
				"no healthcheck":  slices.Equal(c.Healthcheck.Test, []string{"NONE"}),
				"owner":           c.Labels[labelOwner] == s.Owner && c.Labels[labelID] == s.ID,
				"masked": slices.Contains(h.MaskedPaths, "/proc/kcore") &&
					slices.Contains(h.MaskedPaths, "/sys/fs/cgroup"),
				"stdio flag": slices.Contains(c.Cmd, "--stdio") == (name == "stdio"),
				"mode label": c.Labels[labelMode] == name,
				"/tmp size": strings.Contains(h.Tmpfs["/tmp"], "size=67108864") &&
					strings.Contains(h.Tmpfs["/tmp"], "nosuid"),
				"/run":    h.Tmpfs["/run"] != "",
				"scratch": (h.Tmpfs[wire.Workspace] != "") == (name == "stdio"),
			} {
				if !ok {
					t.Errorf("the configuration lacks %s, want it in\n%+v\n%+v", what, c, h)
				}
			}
			for _, m := range h.Mounts {
				if m.Target == wire.RunDir && !m.ReadOnly {
					t.Error("the guest's directory is mounted writable, want read-only")
				}
				if m.Type == mount.TypeBind && m.BindOptions.Propagation != mount.PropagationRSlave {
					t.Errorf("propagation of %s = %q, want %q", m.Target, m.BindOptions.Propagation, mount.PropagationRSlave)
				}
			}
		})
	}
}

func TestAnEntrypointComesBeforeTheGuest(t *testing.T) {
	s := spec()
	s.Entrypoint = []string{"/entry.sh", "-x"}
	c := configured(t, s, image{}, engine{api: "1.41"}, places{run: "/r", slot: "/s"}).Config
	want := []string{"/entry.sh", "-x", wire.GuestPath}
	if all := append(c.Entrypoint, c.Cmd...); !slices.Equal(all[:3], want) {
		t.Fatalf("command line = %q, want it to start with %q", all, want)
	}
}

func TestConfigurationFitsEngineVersion(t *testing.T) {
	for _, c := range []struct {
		e         engine
		recursive bool
		cgroupns  string
	}{
		{engine{api: "1.41"}, true, ""},
		{engine{api: "1.43", cgroupV2: true}, true, "private"},
		{engine{api: "1.44", cgroupV2: true}, false, "private"},
		{engine{api: "1.50"}, false, ""},
	} {
		h := configured(t, spec(), image{}, c.e, places{run: "/r", slot: "/s"}).HostConfig
		if h.Mounts[0].BindOptions.ReadOnlyNonRecursive == c.recursive || string(h.CgroupnsMode) != c.cgroupns {
			t.Errorf("%+v: read only but not recursively = %v, cgroup namespace %q; want %v, %q",
				c.e, h.Mounts[0].BindOptions.ReadOnlyNonRecursive, h.CgroupnsMode, !c.recursive, c.cgroupns)
		}
	}
}

func TestImageEnvironmentIsRemoved(t *testing.T) {
	env, err := environment([]string{"PATH=/evil", "LD_PRELOAD=/evil.so", "EMPTY=", "LD_PRELOAD=/again", "=odd"})
	if err != nil {
		t.Fatal(err)
	}
	if want := append(ocispec.Env(), "LD_PRELOAD", "EMPTY"); !slices.Equal(env, want) {
		t.Fatalf("environment is %q, want %q", env, want)
	}
	if _, err := environment(make([]string, maxImageEnv+1)); !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("environment with too many variables: %v, want FailedPrecondition", err)
	}
}

func TestImageVolumesAreCoveredOrRefused(t *testing.T) {
	for _, c := range []struct {
		volume, at string // at is where it is covered; "" if it is not
		refused    bool
	}{
		{"/data", "/data", false},
		{"/var/lib/x/", "/var/lib/x", false},
		{"/home", "/home", false},
		{"/tmp", "", false},
		{"/workspace", "", false},
		{"/run/orchestrator", "", false},
		{"/workspace/x", "", true},
		{"/run/orchestrator/cgroup", "", true},
		{"/data/../run/orchestrator/guest", "", true},
		{"/proc", "", true},
		{"/dev/shm", "", true},
		{"/sys/fs/cgroup", "", true},
		{"/", "", true},
		{"", "", true},
		{"data", "", true},
		{"/a:b", "", true},
		{"/a,b", "", true},
		{"/a\nb", "", true},
	} {
		s := spec()
		got, err := configure(s, image{volumes: []string{c.volume}}, engine{api: "1.41"}, places{run: "/r", slot: "/s"}, "")
		if c.refused != errdefs.IsFailedPrecondition(err) {
			t.Errorf("configure with the volume %q: %v; want FailedPrecondition: %v", c.volume, err, c.refused)
			continue
		}
		if err != nil {
			continue
		}
		plain := configured(t, s, image{}, engine{api: "1.41"}, places{run: "/r", slot: "/s"})
		if added := len(got.HostConfig.Tmpfs) - len(plain.HostConfig.Tmpfs); added != len(c.at[:min(1, len(c.at))]) ||
			c.at != "" && got.HostConfig.Tmpfs[c.at] != shadowOptions {
			t.Errorf("tmpfs with the volume %q = %v; want one more, at %q with options %q, or the same if that is empty",
				c.volume, got.HostConfig.Tmpfs, c.at, shadowOptions)
		}
	}
	many := make([]string, maxVolumes+1)
	if _, err := configure(spec(), image{volumes: many}, engine{}, places{}, ""); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("configure with too many volumes: %v, want FailedPrecondition", err)
	}
}

func TestUlimits(t *testing.T) {
	l := runtime.Limits{OpenFiles: 77}.WithDefaults()
	seen := map[string]int64{}
	for _, u := range ulimits(ocispec.Rlimits(l)) {
		if u.Hard < 0 || u.Soft != u.Hard {
			t.Errorf("%s: soft limit %d, hard limit %d; want both equal and not negative", u.Name, u.Soft, u.Hard)
		}
		seen[u.Name] = u.Hard
	}
	if core, ok := seen["core"]; seen["nofile"] != 77 || !ok || core != 0 {
		t.Errorf("limits = %v, want 77 for nofile and 0 for core", seen)
	}
}

func TestOldAndOtherEnginesAreRefused(t *testing.T) {
	for _, c := range []struct {
		v    client.ServerVersionResult
		want string // part of the error, "" for none
	}{
		{client.ServerVersionResult{Version: "20.10.24", APIVersion: "1.41", Os: "linux"}, ""},
		{client.ServerVersionResult{Version: "29.0", APIVersion: "1.52", Os: "linux"}, ""},
		{client.ServerVersionResult{Version: "19.03.15", APIVersion: "1.40", Os: "linux"},
			"found Docker Engine 19.03.15, API 1.40: Docker Engine 20.10 (API 1.41) or newer is needed"},
		{client.ServerVersionResult{Version: "?", APIVersion: "", Os: "linux"}, "or newer is needed"},
		{client.ServerVersionResult{Version: "28", APIVersion: "1.50", Os: "windows"}, "windows"},
		{client.ServerVersionResult{Version: "5", APIVersion: "1.41", Os: "linux",
			Components: []system.ComponentVersion{{Name: "Podman Engine", Version: "5.0"}}}, "Podman Engine 5.0"},
	} {
		err := checkVersion(c.v)
		if (c.want == "") != (err == nil) || err != nil &&
			(!strings.Contains(err.Error(), c.want) || !errdefs.IsFailedPrecondition(err)) {
			t.Errorf("checkVersion(%+v) = %v, want FailedPrecondition with %q, or no error if that is empty",
				c.v, err, c.want)
		}
	}
}

func TestEngineWithoutALimitIsRefused(t *testing.T) {
	good := system.Info{MemoryLimit: true, CPUCfsQuota: true, PidsLimit: true,
		SecurityOptions: []string{"name=seccomp,profile=default"}}
	if err := checkInfo(good); err != nil {
		t.Fatal(err)
	}
	for what, spoil := range map[string]func(*system.Info){
		"memory":  func(i *system.Info) { i.MemoryLimit = false },
		"CPU":     func(i *system.Info) { i.CPUCfsQuota = false },
		"pids":    func(i *system.Info) { i.PidsLimit = false },
		"seccomp": func(i *system.Info) { i.SecurityOptions = []string{"name=apparmor"} },
	} {
		bad := good
		spoil(&bad)
		if err := checkInfo(bad); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), what) {
			t.Errorf("checkInfo without %s: %v, want FailedPrecondition that names it", what, err)
		}
	}
	if checkSwap(engine{swapLimit: true}, ModeStdio) != nil || checkSwap(engine{}, ModeStdio) == nil {
		t.Error("checkSwap of a remote engine: want no error with a swap limit, and an error without")
	}
}

func TestSwapIsOffOnlyWhenTheKernelSaysSo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "swaps")
	for text, want := range map[string]bool{
		"Filename\tType\tSize\tUsed\tPriority\n":                          true,
		"Filename\tType\tSize\tUsed\tPriority\n/swap\tfile\t100\t0\t-2\n": false,
		"": false,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if swapOff(file) != want {
			t.Errorf("swapOff with %q = %v, want %v", text, !want, want)
		}
	}
	if swapOff(file + "-missing") {
		t.Error("swapOff of a missing file = true, want false")
	}
}

func TestAPIVersionsCompareAsNumbers(t *testing.T) {
	for _, c := range []struct {
		have, want string
		ok         bool
	}{{"1.41", "1.41", true}, {"1.9", "1.41", false}, {"v1.100", "1.41", true}, {"2.0", "1.41", true}, {"", "1.41", false},
		{"1.x", "1.41", false}} {
		if apiAtLeast(c.have, c.want) != c.ok {
			t.Errorf("apiAtLeast(%q, %q) = %v, want %v", c.have, c.want, !c.ok, c.ok)
		}
	}
}

func TestWarningAboutALimitIsAnError(t *testing.T) {
	for w, bad := range map[string]bool{
		"Your kernel does not support memory limit capabilities or the cgroup is not mounted. Limitation discarded.": true,
		"PIDs limit discarded":         true,
		"harmless remark on something": false,
	} {
		if (checkWarnings([]string{w}) != nil) != bad {
			t.Errorf("checkWarnings(%q) fails: %v, want %v", w, !bad, bad)
		}
	}
}

func TestEveryCapabilityHasAnAnswerInBothModes(t *testing.T) {
	for _, mode := range []string{ModeLocal, ModeStdio} {
		c := capabilities(mode, runtime.ClassContainer)
		for _, name := range runtime.AllCapabilities() {
			if c[name] == "" {
				t.Errorf("capability %s in mode %s is empty, want an answer", name, mode)
			}
		}
	}
	if len(capabilities(ModeLocal, "").Missing()) != 0 || capabilities(ModeStdio, "").Has(runtime.CapLateBind) {
		t.Error("want no missing capability in mode local, and no late bind in mode stdio")
	}
}

func TestNotesNameTheirOwner(t *testing.T) {
	d := &Driver{dir: t.TempDir()}
	s := spec()
	if err := errors.Join(d.writeNote(s),
		os.WriteFile(filepath.Join(d.notesDir(), "sandbox-0002"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := d.writeNote(s); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second note of the same id: %v, want AlreadyExists", err)
	}
	if got, err := d.notes(s.Owner); err != nil || !slices.Equal(got, []string{"sandbox-0001", "sandbox-0002"}) {
		t.Errorf("notes(%q) = %q, %v; want both sandboxes and no error", s.Owner, got, err)
	}
	if got, err := d.notes("owner-0002"); err != nil || !slices.Equal(got, []string{"sandbox-0002"}) {
		t.Errorf("notes of another owner = %q, %v; want only sandbox-0002 and no error", got, err)
	}
	if err := errors.Join(d.removeNote(s.ID), d.removeNote(s.ID)); err != nil {
		t.Error(err)
	}
}

func TestInvalidOptionsAreNamed(t *testing.T) {
	for field, o := range map[string]Options{
		"state_dir":  {StateDir: "x", GuestPath: "/g"},
		"guest_path": {StateDir: "/x", GuestPath: "g"},
		"mode":       {StateDir: "/x", GuestPath: "/g", Mode: "remote"},
	} {
		if _, err := New(t.Context(), o); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), field) {
			t.Errorf("New with a bad %s: %v, want InvalidArgument that names it", field, err)
		}
	}
}

func TestNewWithDeadEngineIsUnavailable(t *testing.T) {
	dir := t.TempDir()
	_, err := New(t.Context(), Options{Host: "unix://" + filepath.Join(dir, "no.sock"), StateDir: dir, GuestPath: "/g"})
	if !errdefs.IsUnavailable(err) || errdefs.IsNotFound(err) {
		t.Fatalf("New with an engine that does not run: %v; want Unavailable and not NotFound", err)
	}
}
