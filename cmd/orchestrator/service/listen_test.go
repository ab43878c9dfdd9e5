package service

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

func TestListenMakesPrivateSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false) // as after a killed process
	c := config.Config{Listen: "unix:" + path}
	if _, err := listen(t.Context(), c); !errdefs.IsUnavailable(err) {
		t.Fatalf("a socket in use: got %v", err)
	}
	old.Close()
	for range 2 {
		l, err := listen(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode is %v, %v", info.Mode(), err)
		}
		l.Close()
	}
}
