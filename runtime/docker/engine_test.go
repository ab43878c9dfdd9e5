//go:build integration

package docker

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestEngineOnThisHostIsFoundToBeLocal(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeAuto)
	if d.Mode() != ModeLocal || d.Name() != "docker" {
		t.Fatalf("mode = %s, name = %q; want %s, %q", d.Mode(), d.Name(), ModeLocal, "docker")
	}
	// The answer is kept: a second driver asks nothing.
	b, err := os.ReadFile(filepath.Join(h.dir, "docker", "locality.json"))
	var kept verdict
	if err = errors.Join(err, json.Unmarshal(b, &kept)); err != nil || !kept.Local {
		t.Fatalf("kept verdict = %+v, %v; want local and no error", kept, err)
	}
	if again := h.open(t, ""); again.Mode() != ModeLocal {
		t.Fatalf("mode the second time = %s, want %s", again.Mode(), ModeLocal)
	}
	// A path that the engine cannot see is reported as missing.
	if seen, err := d.sees(t.Context(), "/proc/1/fd/99999/none"); err != nil || seen {
		t.Fatalf("sees a file that does not exist = %v, %v; want false and no error", seen, err)
	}
	if got := mine(t, d); len(got) != 0 {
		t.Fatalf("helpers left = %q, want none", got)
	}
}

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
	out := make([]string, 0, len(c.Items)+len(i.Items))
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
		Config: &container.Config{Image: img, Entrypoint: []string{"/never"},
			Labels: map[string]string{labelHelper: d.helper}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(mine(t, d)) != 2 {
		t.Fatalf("%d helpers, want 2 to sweep", len(mine(t, d)))
	}
	h.open(t, ModeStdio)
	if got := mine(t, d); len(got) != 0 {
		t.Fatalf("helpers left = %q, want none", got)
	}
}

func TestAnUnknownImageIsNamed(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeStdio)
	img := runtime.Image{Ref: "nowhere", ID: "sha256:" + strings.Repeat("0", 64)}
	if err := d.Prepare(t.Context(), img); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("Prepare of an unknown image: %v, want NotFound that names it", err)
	}
	img.Archive = h.archive
	if err := d.Prepare(t.Context(), img); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Prepare of an archive with another image: %v, want FailedPrecondition", err)
	}
	img.ID = "latest"
	if err := d.Prepare(t.Context(), img); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Prepare of an image by tag: %v, want InvalidArgument", err)
	}
}

func TestHostileImageConfigurationDoesNothing(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeAuto)
	plain := h.image(t)
	if err := d.Prepare(t.Context(), plain); err != nil {
		t.Fatal(err)
	}
	base, err := d.api.ContainerCreate(t.Context(),
		client.ContainerCreateOptions{Config: &container.Config{Image: plain.ID, Entrypoint: []string{"/never"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = d.api.ContainerRemove(context.WithoutCancel(t.Context()), base.ID, client.ContainerRemoveOptions{Force: true})
	})
	hostile, err := d.api.ContainerCommit(t.Context(), base.ID, client.ContainerCommitOptions{Changes: []string{
		"VOLUME /data/", "VOLUME /workspace", "VOLUME /tmp", "VOLUME /var/lib/x", "ENV LD_PRELOAD=/evil.so", "ENV EMPTY=",
		"USER nobody", `ENTRYPOINT ["/bin/false"]`,
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
		t.Errorf("environment = %q, want neither LD_PRELOAD nor EMPTY in it", env)
	}
	mounts := ask(t, box, "/proc/self/mountinfo")
	for _, line := range strings.Split(mounts, "\n") {
		for _, at := range []string{" /data ", " /var/lib/x ", " /tmp ", " /workspace "} {
			if strings.Contains(line, at) && !strings.Contains(line, " - tmpfs ") {
				t.Errorf("the image's volume is mounted: %s; want only tmpfs there", line)
			}
		}
	}
	// The engine creates the volumes anyway, and removes them with the container.
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
			t.Errorf("VolumeInspect of the volume for %s: %v, want NotFound", m.Destination, err)
		}
	}
}

func TestBridgeIsDialledAgain(t *testing.T) {
	h := newHost(t)
	d := h.open(t, ModeStdio)
	s := h.spec(t)
	box := create(t, d, s)
	ask(t, box, "/proc/self/status")
	if !box.bridge.Cut(t.Context()) { // as when the line breaks
		t.Fatal("Cut found no connection")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got := ask(t, box, "/proc/self/status"); !strings.Contains(got, "Pid:") {
				t.Errorf("answer = %q, want it to contain %q", got, "Pid:")
			}
		})
	}
	wg.Wait()
	if err := box.Bind(t.Context(), runtime.Binding{Source: "/tmp"}); !errdefs.IsNotImplemented(err) {
		t.Errorf("Bind: %v, want NotImplemented", err)
	}
	if err := box.Unbind(t.Context()); !errdefs.IsNotImplemented(err) {
		t.Errorf("Unbind: %v, want NotImplemented", err)
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
		t.Fatalf("guestVolume = %s, then %s, %v; want the same twice and no error", name, again, err)
	}
	mounts := []mount.Mount{{Type: mount.TypeVolume, Source: name, Target: "/v"}}
	err = d.withHelper(t.Context(), mounts, func(helper string) error {
		for path, want := range map[string]os.FileMode{"/v": 0o700, "/v/guest": 0o555} {
			got, err := d.api.ContainerStatPath(t.Context(), helper, client.ContainerStatPathOptions{Path: path})
			if err != nil || got.Stat.Mode.Perm() != want {
				t.Errorf("mode of %s = %v, %v; want %v and no error", path, got.Stat.Mode, err, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
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
		t.Errorf("VolumeInspect after Purge: %v, want NotFound", err)
	}
}
