//go:build integration

package scenarios

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// fill writes a file until its disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		for piece := make([]byte, size); err == nil; {
			_, err = f.Write(piece)
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("write %d bytes to %s: %v, want no space left", size, path, err)
		}
		err = nil
	}
}

// testFullDisk fills the file system of the state directory. The images are stored elsewhere,
// through a symlink.
func testFullDisk(t *testing.T, name, root string) {
	store := filepath.Join(harness.TempDir(t), "images")
	s := harness.New(t, harness.Options{Runtime: name, Config: onDemand, Root: root, Seed: &seed, Images: store})
	s.Start()
	ws := workspace(t, s)
	id := lease(t, s, v1.SandboxRequest{Workspace: ws, WhenEmpty: "cold"}).ID
	ballast := filepath.Join(root, "ballast")
	fill(t, ballast)
	// On the full disk: a file, a command, and a new sandbox.
	content := strings.NewReader(strings.Repeat("x", 1<<20))
	_, err := s.Client.Workspaces.Files(ws).Write(within(t), "big", content, client.WriteOptions{})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("Write on a full disk: %v, want resource exhausted", err)
	}
	r := exec(t, s, id, v1.Exec{Command: "head -c 1M /dev/zero > big; echo $?; rm -f big"})
	if r.Ending != "exited" || strings.TrimSpace(r.Stdout) == "0" {
		t.Errorf("a command that writes on a full disk: %+v, want exited with a failed write", r)
	}
	_, err = s.Client.CreateSandbox(within(t), v1.SandboxRequest{WhenEmpty: "cold"})
	if err == nil {
		t.Error("CreateSandbox on a full disk succeeded, want an error")
	} else if !errdefs.IsResourceExhausted(err) {
		t.Errorf("CreateSandbox on a full disk: %v, want resource exhausted", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	put(t, s.Client.Workspaces.Files(ws), "small", "x")
	sh(t, s, id, "test -e small && echo y > another")
	sh(t, s, lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID, "true")
}
