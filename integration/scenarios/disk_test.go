//go:build integration

package scenarios

import (
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
		if pe := new(os.PathError); !asPath(err, &pe) || pe.Err != syscall.ENOSPC {
			t.Fatal(err)
		}
		err = nil
	}
}

func asPath(err error, to **os.PathError) bool {
	pe, ok := err.(*os.PathError) //nolint:errorlint // of a write, as it is
	*to = pe
	return ok
}

func fullDisk(t *testing.T, name, root string) {
	// The images lie elsewhere: a link is as good as a disk of their own.
	store := filepath.Join(harness.TempDir(t), "images")
	s := harness.New(t, harness.Options{Runtime: name, Config: onDemand, Root: root, Seed: &seed, Images: store})
	s.Start()
	ws := workspace(t, s)
	id := lease(t, s, v1.SandboxRequest{Workspace: ws, WhenEmpty: "cold"}).ID
	ballast := filepath.Join(root, "ballast")
	fill(t, ballast)
	// The caller's file, the caller's command, and a new sandbox.
	_, err := s.Client.WorkspaceFiles(ws).Write(within(t), "big", strings.NewReader(strings.Repeat("x", 1<<20)), client.WriteOptions{})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("a file on a full disk: %v", err)
	}
	if r := exec(t, s, id, v1.Exec{Command: "head -c 1M /dev/zero > big; echo $?; rm -f big"}); r.Ending != "exited" || strings.TrimSpace(r.Stdout) == "0" {
		t.Errorf("%+v", r)
	}
	_, err = s.Client.CreateSandbox(within(t), v1.SandboxRequest{WhenEmpty: "cold"})
	if err == nil {
		t.Error("a sandbox was made on a full disk")
	} else if !errdefs.IsResourceExhausted(err) {
		t.Errorf("a sandbox on a full disk: %v", err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	put(t, s.Client.WorkspaceFiles(ws), "small", "x")
	sh(t, s, id, "test -e small && echo y > another")
	sh(t, s, lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID, "true")
}
