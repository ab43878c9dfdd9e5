//go:build integration

package oci

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const owner = "owner-oci-test"

// patience is much longer than any step takes on a busy machine.
var patience = testtime.Scale(time.Minute)

var standin = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "orchestrator-oci-")
	if err != nil {
		return "", err
	}
	atEnd = func() { _ = os.RemoveAll(dir) }
	path := filepath.Join(dir, "guest")
	return path, build(path, "")
})

func build(path, arch string) error {
	cmd := exec.Command("go", "build", "-o", path, "./testdata/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if arch != "" {
		cmd.Env = append(cmd.Env, "GOARCH="+arch)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the stand-in: %w: %s", err, out)
	}
	return nil
}

// bench is a state directory and a driver on it.

type bench struct {
	*Driver
	state string
	guest string
}

func newBench(tb testing.TB) bench {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("not root")
	}
	if os.Getenv("ORCHESTRATOR_TEST_ROOTFS") == "" {
		tb.Skip("ORCHESTRATOR_TEST_ROOTFS is not given")
	}
	guest, err := standin()
	if err != nil {
		tb.Fatal(err)
	}
	b := bench{state: tb.TempDir(), guest: guest}
	b.Driver = b.another(tb)
	tb.Cleanup(func() {
		for _, id := range b.ids(tb) {
			if err := b.Remove(context.Background(), id); err != nil {
				tb.Errorf("clean up: %v", err)
			}
		}
		if err := b.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
		b.wantNothingLeft(tb)
	})
	return b
}

// another returns a second driver on the same state, as after a restart.

func (b bench) another(tb testing.TB) *Driver {
	tb.Helper()
	d, err := New(tb.Context(), Options{
		StateDir: b.state, GuestPath: b.guest, Runtime: os.Getenv("ORCHESTRATOR_TEST_RUNTIME"),
		Log: slog.New(slog.NewTextHandler(tb.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func (b bench) ids(tb testing.TB) []string {
	tb.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		tb.Fatal(err)
	}
	var ids []string
	for _, e := range entries {
		if runtime.ValidID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// wantNothingLeft fails the test if a part of a sandbox is left outside its bundle.
func (b bench) wantNothingLeft(tb testing.TB) {
	tb.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		tb.Fatal(err)
	}
	if strings.Contains(string(mounts), b.state) {
		tb.Errorf("mounts are left below %s, want none:\n%s", b.state, mounts)
	}
	if claims := claimsBelow(tb, b.state); len(claims) > 0 {
		tb.Errorf("claimed ids = %v, want none left", claims)
	}
	for _, dir := range []string{b.RunDirs, b.runtime.Root} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			tb.Fatal(err)
		}
		for _, e := range entries {
			tb.Errorf("%s exists, want nothing left in %s", e.Name(), dir)
		}
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "runc" && e.Name() != ".skeleton" {
			tb.Errorf("%s exists, want nothing left of a sandbox in %s", e.Name(), b.dir)
		}
	}
}

func wantNoCgroup(tb testing.TB, id string) {
	tb.Helper()
	dirs, err := ocidriver.CgroupsOf(id)
	if err != nil {
		tb.Fatal(err)
	}
	if len(dirs) > 0 {
		tb.Errorf("cgroups left = %v, want none", dirs)
	}
}

var count = 0

func specFor(tb testing.TB) runtime.Spec {
	tb.Helper()
	count++
	id := fmt.Sprintf("t%d-%d", os.Getpid(), count)
	for len(id) < 8 {
		id += "x"
	}
	return runtime.Spec{
		ID: id, Owner: owner, Template: "base", Build: "test",
		Image: runtime.Image{Ref: "test", Root: os.Getenv("ORCHESTRATOR_TEST_ROOTFS")},
		Limits: runtime.Limits{MemoryBytes: 128 << 20, TmpBytes: 4 << 20, ScratchBytes: 4 << 20, CPUs: 1.5, Pids: 128,
			OpenFiles: 512},
	}
}

func (b bench) make(tb testing.TB) *ocidriver.Sandbox {
	tb.Helper()
	s, err := b.Create(tb.Context(), specFor(tb))
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

// ask sends one request to the stand-in and returns its answer.

func ask(tb testing.TB, s runtime.Sandbox, request map[string]any) (answer, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	conn, err := s.Open(ctx)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		tb.Fatal(err)
	}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return answer{}, err
	}
	var a answer
	return a, json.NewDecoder(bufio.NewReader(conn)).Decode(&a)
}

// sh runs a shell line inside as uid and returns what it wrote.

func sh(tb testing.TB, s runtime.Sandbox, uid int, line string) answer {
	tb.Helper()
	a, err := ask(tb, s, map[string]any{"argv": []string{"/bin/sh", "-c", line}, "uid": uid})
	if err != nil {
		tb.Fatalf("answer to %q: %v", line, err)
	}
	return a
}

func wantDone(tb testing.TB, s runtime.Sandbox) {
	tb.Helper()
	select {
	case <-s.Done():
	case <-time.After(patience):
		tb.Fatalf("Done is open after %s, want the end of the sandbox", patience)
	}
}

func startStat(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return string(text), err
}

func pidIn(tb testing.TB, file string) int {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		tb.Fatal(err)
	}
	return pid
}

// crun reports whether crun is the runtime under test.
func crun() bool { return filepath.Base(os.Getenv("ORCHESTRATOR_TEST_RUNTIME")) == "crun" }
