//go:build integration

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"orchestrator/internal/guest/wire"
	"orchestrator/runtime"
)

// What the tests are given: a real engine, and the sandbox image as an archive.
const (
	envEngine  = "ORCHESTRATOR_TEST_DOCKER"
	envArchive = "ORCHESTRATOR_TEST_IMAGE_ARCHIVE"
	entrypoint = "/usr/local/lib/orchestrator/entrypoint.sh"
)

var modes = []string{ModeLocal, ModeStdio}

// standin is the guest of the tests, built once.
var standin = sync.OnceValues(func() (string, error) {
	out := filepath.Join(standinDir(), "guest")
	cmd := exec.Command("go", "build", "-o", out, "./testdata/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, text)
	}
	return out, nil
})

// host is a state directory on the engine of the tests.
type host struct {
	dir, engine, archive, guest string
}

func newHost(t *testing.T) host {
	t.Helper()
	h := host{engine: os.Getenv(envEngine), archive: os.Getenv(envArchive)}
	if h.engine == "" || h.archive == "" {
		t.Skipf("%s and %s are not set: make test sets them", envEngine, envArchive)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	var err error
	if h.guest, err = standin(); err != nil {
		t.Fatal(err)
	}
	// Short: the path of a unix socket is made from it.
	if h.dir, err = os.MkdirTemp("", "od"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(h.dir); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h host) open(t *testing.T, mode string) *Driver {
	t.Helper()
	d, err := New(t.Context(), Options{Host: h.engine, StateDir: h.dir, GuestPath: h.guest, Mode: mode})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Purge(context.WithoutCancel(t.Context())), d.Close()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func (h host) image(t *testing.T) runtime.Image {
	t.Helper()
	a, err := readArchive(h.archive)
	if err != nil {
		t.Fatal(err)
	}
	return runtime.Image{Ref: "sandbox", ID: a.config, Archive: h.archive}
}

func (h host) spec(t *testing.T) runtime.Spec {
	t.Helper()
	id := strings.ReplaceAll(uuid.NewString(), "-", "")
	return runtime.Spec{
		ID: "t" + id[:15], Owner: "o" + id[16:], Template: "default", Build: "test",
		Image: h.image(t), Entrypoint: []string{entrypoint},
	}
}

// create makes a sandbox that is gone when the test ends.
func create(t *testing.T, d *Driver, s runtime.Spec) *Sandbox {
	t.Helper()
	if err := d.Prepare(t.Context(), s.Image); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.WithoutCancel(t.Context()), s.ID); err != nil {
			t.Error(err)
		}
	})
	box, err := d.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return box.(*Sandbox)
}

// ask says a line to the stand-in and gives its answer.
func ask(t *testing.T, box runtime.Sandbox, line string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	for {
		conn, err := box.Open(ctx)
		if err != nil {
			t.Fatalf("open a stream: %v", err)
		}
		_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
		_, err = io.WriteString(conn, line+"\n")
		var answer []byte
		if err == nil {
			answer, err = io.ReadAll(conn)
		}
		_ = conn.Close()
		if err == nil && len(answer) > 0 {
			return string(answer)
		}
		// The bridge may be there a little before the guest is.
		if ctx.Err() != nil {
			t.Fatalf("no answer to %q: %v", line, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func ended(t *testing.T, box runtime.Sandbox) {
	t.Helper()
	select {
	case <-box.Done():
	case <-time.After(60 * time.Second):
		t.Fatal("the end of the sandbox was not seen")
	}
}

func ids(t *testing.T, d *Driver, owner string) []string {
	t.Helper()
	found, err := d.List(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range found {
		out = append(out, f.ID)
	}
	return out
}

// nothingLeft looks on the host and in the engine for anything of the sandbox.
func nothingLeft(t *testing.T, d *Driver, s runtime.Spec) {
	t.Helper()
	if got := ids(t, d, s.Owner); len(got) != 0 {
		t.Errorf("listed: %q", got)
	}
	_, err := d.api.ContainerInspect(t.Context(), containerName(s.ID), client.ContainerInspectOptions{})
	if !errdefs.IsNotFound(err) {
		t.Errorf("the container is left: %v", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), s.ID) {
		t.Errorf("mounts are left: %v\n%s", err, mounts)
	}
	for _, dir := range []string{filepath.Join(d.cells, s.ID), filepath.Join(d.notesDir(), s.ID)} {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", dir, err)
		}
	}
}

func TestEngineOnThisHostIsFoundToBeLocal(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeAuto)
	if d.Mode() != ModeLocal || d.Name() != "docker" {
		t.Fatalf("mode is %s", d.Mode())
	}
	// The answer is kept: a second driver asks nothing.
	b, err := os.ReadFile(filepath.Join(h.dir, "docker", "locality.json"))
	var kept verdict
	if err = errors.Join(err, json.Unmarshal(b, &kept)); err != nil || !kept.Local {
		t.Fatalf("%+v, %v", kept, err)
	}
	if again := h.open(t, ""); again.Mode() != ModeLocal {
		t.Fatalf("mode is %s the second time", again.Mode())
	}
	// What the engine cannot see is no cell.
	if seen, err := d.sees(t.Context(), "/proc/1/fd/99999/none"); err != nil || seen {
		t.Fatalf("a file that does not exist is seen: %v, %v", seen, err)
	}
	if got := mine(t, d); len(got) != 0 {
		t.Fatalf("helpers are left: %q", got)
	}
}

// mine lists the helpers of this state directory.
func mine(t *testing.T, d *Driver) []string {
	t.Helper()
	f := client.Filters{}.Add("label", labelHelper+"="+d.helper)
	c, err := d.api.ContainerList(t.Context(), client.ContainerListOptions{All: true, Filters: f})
	if err != nil {
		t.Fatal(err)
	}
	i, err := d.api.ImageList(t.Context(), client.ImageListOptions{Filters: f})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, x := range c.Items {
		out = append(out, x.ID)
	}
	for _, x := range i.Items {
		out = append(out, x.ID)
	}
	return out
}

func TestHelpersOfAKilledProcessAreSwept(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeStdio)
	img, err := d.importEmpty(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, err = d.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{
		Config: &container.Config{Image: img, Entrypoint: []string{"/never"}, Labels: map[string]string{labelHelper: d.helper}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(mine(t, d)) != 2 {
		t.Fatal("no helpers to sweep")
	}
	h.open(t, ModeStdio)
	if got := mine(t, d); len(got) != 0 {
		t.Fatalf("helpers are left: %q", got)
	}
}

func TestSandboxLivesAndLeavesNothing(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			h := newHost(t)
			d := h.open(t, mode)
			s := h.spec(t)
			box := create(t, d, s)
			if box.ID() != s.ID {
				t.Errorf("id is %s", box.ID())
			}
			found, err := d.List(t.Context(), s.Owner)
			if want := (runtime.Found{ID: s.ID, Template: "default", Build: "test", Running: true}); err != nil || !slices.Equal(found, []runtime.Found{want}) {
				t.Errorf("listed: %+v, %v", found, err)
			}
			if got := ids(t, d, "someone-else"); len(got) != 0 {
				t.Errorf("another owner sees %q", got)
			}
			walls(t, box, s)
			if _, err := d.Create(t.Context(), s); !errdefs.IsAlreadyExists(err) {
				t.Errorf("a second sandbox of the same id: %v", err)
			}
			if _, err := d.Adopt(t.Context(), s.ID); !errdefs.IsAlreadyExists(err) {
				t.Errorf("a sandbox in hand is adopted: %v", err)
			}
			ask(t, box, "/proc/self/status") // and it was not touched by that
			for range 2 {
				if err := box.Destroy(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			ended(t, box)
			if _, err := box.Open(t.Context()); !errdefs.IsUnavailable(err) {
				t.Errorf("a stream to a sandbox that is gone: %v", err)
			}
			nothingLeft(t, d, s)
			for range 2 {
				if err := d.Remove(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := d.Adopt(t.Context(), s.ID); !errdefs.IsNotFound(err) {
				t.Errorf("a sandbox that is gone is adopted: %v", err)
			}
		})
	}
}

// walls looks from inside at what the engine was asked for.
func walls(t *testing.T, box *Sandbox, s runtime.Spec) {
	t.Helper()
	status := ask(t, box, "/proc/self/status")
	for _, line := range []string{"CapBnd:\t00000000000000e0", "CapEff:\t00000000000000e0", "CapInh:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, line+"\n") {
			t.Errorf("no %q in\n%s", line, status)
		}
	}
	if env := strings.Split(strings.Trim(ask(t, box, "/proc/1/environ"), "\x00"), "\x00"); len(env) > 5 { // PATH and LANG, the engine's HOSTNAME and HOME, the shell's PWD
		t.Errorf("environment of PID 1 is %q", env)
	}
	if dev := ask(t, box, "/proc/net/dev"); strings.Count(dev, ":") != 1 || !strings.Contains(dev, "lo:") {
		t.Errorf("interfaces:\n%s", dev)
	}
	for _, path := range []string{"/x", "/etc/x", wire.RunDir + "/x", "/proc/sys/kernel/msgmni"} {
		if got := ask(t, box, "write "+path); got == "write: <nil>" {
			t.Errorf("%s can be written", path)
		}
	}
	for _, path := range []string{"/tmp/x", wire.Workspace + "/x", "/run/x"} {
		got := ask(t, box, "write "+path)
		// The stand-in is root without CAP_DAC_OVERRIDE: /workspace is not its.
		if path != wire.Workspace+"/x" && got != "write: <nil>" {
			t.Errorf("%s: %s", path, got)
		}
	}
	mounts := ask(t, box, "/proc/self/mountinfo")
	for _, at := range []string{"/tmp", "/home/user", "/run", wire.RunDir, wire.Workspace, "/dev/shm"} {
		if !strings.Contains(mounts, " "+at+" ") {
			t.Errorf("%s is not a mount in\n%s", at, mounts)
		}
	}
	if !strings.Contains(mounts, "size=65536k") || s.Limits.TmpBytes != 0 {
		t.Errorf("no file system of 64 MiB in\n%s", mounts)
	}
	if got := ask(t, box, "/proc/self/limits"); !strings.Contains(got, "Max open files            4096                 4096") {
		t.Errorf("limits:\n%s", got)
	}
}

func TestKilledPIDOneIsSeenAndRemoved(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			h := newHost(t)
			d := h.open(t, mode)
			s := h.spec(t)
			box := create(t, d, s)
			got, err := d.api.ContainerInspect(t.Context(), containerName(s.ID), client.ContainerInspectOptions{})
			if err != nil {
				t.Fatal(err)
			}
			p, err := openProcess(got.Container.State.Pid, got.Container.ID)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(p.kill(), p.close()); err != nil {
				t.Fatal(err)
			}
			ended(t, box)
			if got := ids(t, d, s.Owner); !slices.Equal(got, []string{s.ID}) {
				t.Errorf("a dead sandbox is listed as %q", got)
			}
			if err := box.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
			nothingLeft(t, d, s)
		})
	}
}

func TestADeadSandboxIsNotAdoptedButRemoved(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeLocal)
	s := h.spec(t)
	box := create(t, d, s)
	if err := box.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.api.ContainerKill(t.Context(), containerName(s.ID), client.ContainerKillOptions{}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(60 * time.Second)
	for {
		again, err := d.Adopt(t.Context(), s.ID)
		if errdefs.IsNotFound(err) {
			break
		}
		// The engine may be a little behind the kernel.
		if err == nil {
			err = again.Release()
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("a dead sandbox is adopted: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := d.Remove(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, d, s)
}

func TestNextProcessAdopts(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			h := newHost(t)
			first := h.open(t, mode)
			s := h.spec(t)
			box := create(t, first, s)
			ask(t, box, "write /tmp/kept")
			if err := errors.Join(box.Release(), first.Close()); err != nil {
				t.Fatal(err)
			}
			next := h.open(t, ModeAuto)
			adopted, err := next.Adopt(t.Context(), s.ID)
			if err != nil {
				t.Fatal(err)
			}
			if got := ask(t, adopted, "/tmp/kept"); got != "x" {
				t.Errorf("kept file: %q", got)
			}
			if err := adopted.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
			ended(t, adopted)
			nothingLeft(t, next, s)
		})
	}
}

func TestRemoveWorksFromEveryState(t *testing.T) {
	h := newHost(t)
	for _, mode := range modes {
		d := h.open(t, mode)
		img := h.image(t)
		if err := d.Prepare(t.Context(), img); err != nil {
			t.Fatal(err)
		}
		known, err := d.prepared(t.Context(), img)
		if err != nil {
			t.Fatal(err)
		}
		for state, until := range map[string]int{"noted": 0, "created": 1, "running": 2, "released": 3} {
			t.Run(mode+" "+state, func(t *testing.T) {
				s := h.spec(t)
				s.Limits = s.Limits.WithDefaults()
				if err := d.writeNote(s); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = d.Remove(context.WithoutCancel(t.Context()), s.ID) })
				box := newSandbox(d, s.ID, mode)
				steps := []func() error{
					func() error { return box.make(t.Context(), s, known) },
					func() error { return box.start(t.Context()) },
					func() error { return box.attach(t.Context(), share(s.Limits)) },
				}
				for _, step := range steps[:until] {
					if err := step(); err != nil {
						t.Fatal(err)
					}
				}
				// As after a crash: nothing of this process is left.
				if err := box.Release(); err != nil {
					t.Fatal(err)
				}
				if got := ids(t, d, s.Owner); !slices.Equal(got, []string{s.ID}) {
					t.Errorf("listed: %q", got)
				}
				if err := d.Remove(t.Context(), s.ID); err != nil {
					t.Fatal(err)
				}
				nothingLeft(t, d, s)
			})
		}
	}
}

func TestACreateThatFailsLeavesNothing(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			h := newHost(t)
			d := h.open(t, mode)
			s := h.spec(t)
			if err := d.Prepare(t.Context(), s.Image); err != nil {
				t.Fatal(err)
			}
			s.Entrypoint = []string{"/no/such/entrypoint"}
			if _, err := d.Create(t.Context(), s); err == nil {
				t.Error("an entrypoint that does not exist was started")
			}
			nothingLeft(t, d, s)
			s.Entrypoint = nil
			cut, cancel := context.WithTimeoutCause(t.Context(), 15*time.Millisecond, errors.New("cut short"))
			defer cancel()
			if _, err := d.Create(cut, s); err == nil {
				t.Error("a create that was cut short succeeded")
			}
			nothingLeft(t, d, s)
		})
	}
}

func TestAnUnknownImageIsNamed(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeStdio)
	img := runtime.Image{Ref: "nowhere", ID: "sha256:" + strings.Repeat("0", 64)}
	if err := d.Prepare(t.Context(), img); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("an image nobody has: %v", err)
	}
	img.Archive = h.archive
	if err := d.Prepare(t.Context(), img); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("an archive with another image: %v", err)
	}
	img.ID = "latest"
	if err := d.Prepare(t.Context(), img); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an image by tag: %v", err)
	}
}

func TestHostileImageConfigurationDoesNothing(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeAuto)
	plain := h.image(t)
	if err := d.Prepare(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	base, err := d.api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Config: &container.Config{Image: plain.ID, Entrypoint: []string{"/never"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = d.api.ContainerRemove(context.WithoutCancel(t.Context()), base.ID, client.ContainerRemoveOptions{Force: true})
	})
	hostile, err := d.api.ContainerCommit(t.Context(), base.ID, client.ContainerCommitOptions{Changes: []string{
		"VOLUME /data/", "VOLUME /workspace", "VOLUME /tmp", "VOLUME /var/lib/x", "ENV LD_PRELOAD=/evil.so", "ENV EMPTY=", "USER nobody", `ENTRYPOINT ["/bin/false"]`,
		`CMD ["x"]`, "WORKDIR /nowhere", "HEALTHCHECK CMD /bin/false", "LABEL orchestrator.owner=evil", "EXPOSE 80",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = d.api.ImageRemove(context.WithoutCancel(t.Context()), hostile.ID, client.ImageRemoveOptions{Force: true})
	})
	s := h.spec(t)
	s.Image = runtime.Image{Ref: "hostile", ID: hostile.ID}
	box := create(t, d, s)
	if env := ask(t, box, "/proc/1/environ"); strings.Contains(env, "LD_PRELOAD") || strings.Contains(env, "EMPTY") {
		t.Errorf("environment: %q", env)
	}
	mounts := ask(t, box, "/proc/self/mountinfo")
	for _, line := range strings.Split(mounts, "\n") {
		for _, at := range []string{" /data ", " /var/lib/x ", " /tmp ", " /workspace "} {
			if strings.Contains(line, at) && !strings.Contains(line, " - tmpfs ") {
				t.Errorf("a volume is there: %s", line)
			}
		}
	}
	// The engine makes the volumes all the same; they go with the container.
	got, err := d.api.ContainerInspect(t.Context(), containerName(s.ID), client.ContainerInspectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	nothingLeft(t, d, s)
	for _, m := range got.Container.Mounts {
		if m.Name == "" {
			continue
		}
		if _, err := d.api.VolumeInspect(t.Context(), m.Name, client.VolumeInspectOptions{}); !errdefs.IsNotFound(err) {
			t.Errorf("a volume for %s is left: %v", m.Destination, err)
		}
	}
}

func TestBridgeIsDialledAgain(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeStdio)
	s := h.spec(t)
	box := create(t, d, s)
	ask(t, box, "/proc/self/status")
	if err := box.bridge.mux.Close(); err != nil { // as when the line breaks
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got := ask(t, box, "/proc/self/status"); !strings.Contains(got, "Pid:") {
				t.Errorf("answer: %q", got)
			}
		})
	}
	wg.Wait()
	if err := box.Bind(t.Context(), runtime.Binding{Source: "/tmp"}); !errdefs.IsNotImplemented(err) {
		t.Errorf("bind: %v", err)
	}
	if err := box.Unbind(t.Context()); !errdefs.IsNotImplemented(err) {
		t.Errorf("unbind: %v", err)
	}
}

func TestWorkspaceAppearsInARunningSandbox(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeAuto)
	box := create(t, d, h.spec(t))
	source := filepath.Join(h.dir, "workspace")
	if err := errors.Join(os.Mkdir(source, 0o755), os.WriteFile(filepath.Join(source, "f"), []byte("hello"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := box.Bind(t.Context(), runtime.Binding{Source: source, ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, box, wire.Workspace+"/f"); got != "hello" {
		t.Errorf("file of the workspace: %q", got)
	}
	if got := ask(t, box, "write "+wire.Workspace+"/g"); !strings.Contains(got, "read-only") {
		t.Errorf("write to a read-only workspace: %q", got)
	}
	if err := box.Unbind(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, box, wire.Workspace+"/f"); !strings.Contains(got, "no such file") {
		t.Errorf("file of the workspace after its release: %q", got)
	}
	if mounts := ask(t, box, "/proc/self/mountinfo"); !strings.Contains(mounts, wire.CgroupDir+"/") {
		t.Errorf("no cgroup is bound in\n%s", mounts)
	}
}

func TestGuestVolumeIsFilledOnceAndPurged(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeStdio)
	name, err := d.guestVolume(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	again, err := h.open(t, ModeStdio).guestVolume(t.Context())
	if err != nil || again != name {
		t.Fatalf("%s, then %s, %v", name, again, err)
	}
	s := h.spec(t)
	box := create(t, d, s)
	if err := d.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.api.VolumeInspect(t.Context(), name, client.VolumeInspectOptions{}); err != nil {
		t.Errorf("a volume in use was removed: %v", err)
	}
	if err := errors.Join(box.Destroy(t.Context()), d.Purge(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := d.api.VolumeInspect(t.Context(), name, client.VolumeInspectOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("the volume is left: %v", err)
	}
}
