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
		t.Fatalf("listen on a socket in use = %v, want Unavailable", err)
	}
	old.Close()
	for range 2 {
		l, err := listen(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("socket has mode %v, %v; want 600", info.Mode(), err)
		}
		l.Close()
	}
}
