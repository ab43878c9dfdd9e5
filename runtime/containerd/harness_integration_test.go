//go:build integration

package containerd

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	owner = "owner-containerd-test"
	// patience is much longer than any step takes on a busy machine.
	patience = time.Minute
	// daemonState is the state directory of this package's daemon. No other tests use the daemon,
	// because these tests kill it.
	daemonState  = "/var/lib/orchestrator-crashes"
	daemonSocket = daemonState + "/containerd/containerd.sock"
	daemonTasks  = daemonState + "/containerd/state/io.containerd.runtime.v2.task"
)

// script runs a command of the script that manages the tests' daemon.
func script(verb string) error {
	cmd := exec.Command("../../integration/scripts/containerd.sh", verb)
	cmd.Env = append(os.Environ(), "ORCHESTRATOR_TEST_STATE="+daemonState)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("containerd.sh %s: %w: %s", verb, err, out)
	}
	return nil
}

func daemon(tb testing.TB, verb string) {
	tb.Helper()
	if err := script(verb); err != nil {
		tb.Fatal(err)
	}
}

// prepared starts the daemon and builds the stand-in for the guest, once.
var prepared = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "orchestrator-ctd-")
	if err != nil {
		return "", err
	}
	atEnd = func() error {
		err := script("down")
		if err == nil {
			err = os.RemoveAll(daemonState)
		}
		return errors.Join(err, os.RemoveAll(dir))
	}
	path := filepath.Join(dir, "guest")
	cmd := exec.Command("go", "build", "-o", path, "../oci/testdata/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the stand-in: %w: %s", err, out)
	}
	return path, script("up")
})

// bench is a state directory and a driver on it.
type bench struct {
	*Driver
	state string
	guest string
	image runtime.Image
}

func newBench(tb testing.TB) bench {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("not root")
	}
	archive := os.Getenv("ORCHESTRATOR_TEST_IMAGE_ARCHIVE")
	if archive == "" {
		tb.Skip("ORCHESTRATOR_TEST_IMAGE_ARCHIVE is not given")
	}
	guest, err := prepared()
	if err != nil {
		tb.Fatal(err)
	}
	b := bench{state: tb.TempDir(), guest: guest,
		image: runtime.Image{Ref: "test", Archive: archive, ID: imageID(tb, archive)}}
	b.Driver = b.another(tb)
	tb.Cleanup(func() {
		found, err := b.List(context.Background(), owner)
		if err != nil {
			tb.Error(err)
		}
		for _, f := range found {
			if err := b.Remove(context.Background(), f.ID); err != nil {
				tb.Errorf("clean up: %v", err)
			}
			b.wantNothingLeft(tb, f.ID)
		}
		if err := b.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	if err := b.Prepare(tb.Context(), b.image); err != nil {
		tb.Fatal(err)
	}
	return b
}

// imageID returns the digest of an archive's configuration.
func imageID(tb testing.TB, archive string) string {
	tb.Helper()
	f, err := os.Open(archive)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			tb.Fatalf("%s has no manifest: %v", archive, err)
		}
		if h.Name != "manifest.json" {
			continue
		}
		var manifest []struct {
			Config string `json:"Config"`
		}
		text, err := io.ReadAll(r)
		if err = errors.Join(err, json.Unmarshal(text, &manifest)); err != nil {
			tb.Fatal(err)
		}
		return "sha256:" + strings.TrimSuffix(manifest[0].Config, ".json")
	}
}

// another returns a second driver on the same state, as after a restart.
func (b bench) another(tb testing.TB) *Driver {
	tb.Helper()
	d, err := New(tb.Context(), Options{
		Address: daemonSocket, StateDir: b.state, GuestPath: b.guest, Runtime: os.Getenv("ORCHESTRATOR_TEST_RUNTIME"),
		Snapshotter: os.Getenv("ORCHESTRATOR_TEST_SNAPSHOTTER"),
		Log:         slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// wantNothingLeft fails the test if the driver or the daemon still has a part of the sandbox.
func (b bench) wantNothingLeft(tb testing.TB, id string) {
	tb.Helper()
	if left := b.leftOf(id); len(left) > 0 {
		tb.Errorf("left = %v, want nothing", left)
	}
	if _, err := b.api.ContainerService().Get(context.Background(), id); !errdefs.IsNotFound(err) {
		tb.Errorf("record of %s: %v, want NotFound", id, err)
	}
	if bundle := filepath.Join(daemonTasks, b.namespace, id); ocidriver.Exists(bundle) {
		tb.Errorf("the bundle %s exists, want it removed", bundle)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), id) {
		tb.Errorf("mounts of %s are left, want none: %v\n%s", id, err, mounts)
	}
	if dirs, err := ocidriver.CgroupsOf(id); err != nil || len(dirs) > 0 {
		tb.Errorf("cgroups left = %v, %v; want none and no error", dirs, err)
	}
}

var (
	countLock sync.Mutex
	count     int
)

func (b bench) spec() runtime.Spec {
	countLock.Lock()
	defer countLock.Unlock()
	count++
	return runtime.Spec{
		ID: fmt.Sprintf("test-%d-%d", os.Getpid(), count), Owner: owner, Template: "base", Build: "test", Image: b.image,
		Limits: runtime.Limits{MemoryBytes: 128 << 20, TmpBytes: 4 << 20, ScratchBytes: 4 << 20, CPUs: 1.5, Pids: 128,
			OpenFiles: 512},
	}
}

func (b bench) make(tb testing.TB) *ocidriver.Sandbox {
	tb.Helper()
	s, err := b.Create(tb.Context(), b.spec())
	if err != nil {
		tb.Fatal(err)
	}
	return s.(*ocidriver.Sandbox)
}

type answer struct {
	Output string `json:"output"`
	Error  string `json:"error"`
	Errno  int    `json:"errno"`
}

// sh runs a shell line inside as user 1000 and returns what it wrote.
func sh(tb testing.TB, s runtime.Sandbox, line string) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	conn, err := s.Open(ctx)
	if err != nil {
		tb.Fatalf("Open for %q: %v", line, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	if err := json.NewEncoder(conn).Encode(map[string]any{"argv": []string{"/bin/sh", "-c", line},
		"uid": 1000}); err != nil {
		tb.Fatalf("send %q: %v", line, err)
	}
	var a answer
	if err := json.NewDecoder(bufio.NewReader(conn)).Decode(&a); err != nil || a.Error != "" {
		tb.Fatalf("answer to %q = %+v, %v; want no error", line, a, err)
	}
	return a.Output
}

func wantDone(tb testing.TB, s runtime.Sandbox) {
	tb.Helper()
	select {
	case <-s.Done():
	case <-time.After(patience):
		tb.Fatalf("Done is open after %s, want the end of the sandbox", patience)
	}
}

func wantAlive(tb testing.TB, s runtime.Sandbox) {
	tb.Helper()
	select {
	case <-s.Done():
		tb.Error("Done is closed, want a running sandbox")
	default:
	}
	if got := sh(tb, s, "echo here"); got != "here\n" {
		tb.Errorf("output = %q, want %q", got, "here\n")
	}
}
