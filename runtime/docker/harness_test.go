//go:build integration

package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// The environment of the tests: a real engine, and the sandbox image as an archive.
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

func newHost(tb testing.TB) host {
	tb.Helper()
	h := host{engine: os.Getenv(envEngine), archive: os.Getenv(envArchive)}
	if h.engine == "" || h.archive == "" {
		tb.Skipf("%s and %s are not set: make test sets them", envEngine, envArchive)
	}
	if os.Getuid() != 0 {
		tb.Skip("needs root")
	}
	var err error
	if h.guest, err = standin(); err != nil {
		tb.Fatal(err)
	}
	// Keep it short: it is part of the path of a Unix socket.
	if h.dir, err = os.MkdirTemp("", "od"); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(h.dir); err != nil {
			tb.Error(err)
		}
	})
	return h
}

func (h host) open(tb testing.TB, mode string) *Driver {
	tb.Helper()
	d, err := New(tb.Context(), Options{Host: h.engine, StateDir: h.dir, GuestPath: h.guest, Mode: mode})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(d.Purge(context.WithoutCancel(tb.Context())), d.Close()); err != nil {
			tb.Error(err)
		}
	})
	return d
}

func (h host) image(tb testing.TB) runtime.Image {
	tb.Helper()
	a, err := readArchive(h.archive)
	if err != nil {
		tb.Fatal(err)
	}
	return runtime.Image{Ref: "sandbox", ID: a.config, Archive: h.archive}
}

func (h host) spec(tb testing.TB) runtime.Spec {
	tb.Helper()
	id := strings.ReplaceAll(uuid.NewString(), "-", "")
	return runtime.Spec{
		ID: "t" + id[:15], Owner: "o" + id[16:], Template: "default", Build: "test",
		Image: h.image(tb), Entrypoint: []string{entrypoint},
	}
}

// create returns a new sandbox, which is destroyed when the test ends.
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

// ask sends a line to the stand-in and returns its answer.
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
		// The bridge may run shortly before the guest does.
		if ctx.Err() != nil {
			t.Fatalf("answer to %q = %q, %v; want one before the deadline", line, answer, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func ended(t *testing.T, box runtime.Sandbox) {
	t.Helper()
	select {
	case <-box.Done():
	case <-time.After(60 * time.Second):
		t.Fatal("Done is open after 60s, want the end of the sandbox")
	}
}

func ids(t *testing.T, d *Driver, owner string) []string {
	t.Helper()
	found, err := d.List(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]string, 0, len(found))
	for _, f := range found {
		out = append(out, f.ID)
	}
	return out
}

// nothingLeft fails the test if the host or the engine still has a part of the sandbox.
func nothingLeft(t *testing.T, d *Driver, s runtime.Spec) {
	t.Helper()
	if got := ids(t, d, s.Owner); len(got) != 0 {
		t.Errorf("listed = %q, want nothing", got)
	}
	_, err := d.api.ContainerInspect(t.Context(), containerName(s.ID), client.ContainerInspectOptions{})
	if !errdefs.IsNotFound(err) {
		t.Errorf("ContainerInspect of %s: %v, want NotFound", s.ID, err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), s.ID) {
		t.Errorf("mounts of %s are left, want none: %v\n%s", s.ID, err, mounts)
	}
	if dirs, err := ocidriver.CgroupsOf(s.ID); err != nil || len(dirs) != 0 {
		t.Errorf("cgroups left = %q, %v; want none and no error", dirs, err)
	}
	hands, err := filepath.Glob(filepath.Join(handDir, "*"))
	if err != nil {
		t.Error(err)
	}
	for _, hand := range hands {
		if text, err := os.ReadFile(hand); err == nil && strings.Contains(string(text), s.ID) {
			t.Errorf("%s still names %s, want it removed", hand, s.ID)
		}
	}
	for _, dir := range []string{filepath.Join(d.cells, s.ID), filepath.Join(d.notesDir(), s.ID)} {
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Lstat(%q): %v, want it removed", dir, err)
		}
	}
}
