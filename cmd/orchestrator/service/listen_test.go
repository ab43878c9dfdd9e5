package service

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

func TestListenGivesSocketToGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving a file to another group requires root")
	}
	const gid = 64_123
	path := filepath.Join(t.TempDir(), "sock")
	c := config.Config{Listen: "unix:" + path, SocketGroup: strconv.Itoa(gid)}
	l, err := listen(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || owner.Gid != gid || info.Mode().Perm() != 0o660 {
		t.Errorf("socket has mode %v and owner %+v, want 0660 and group %d", info.Mode(), info.Sys(), gid)
	}
	c = config.Config{Listen: "unix:" + path + "2", SocketGroup: "no-such-group"}
	if _, err := listen(t.Context(), c); !errdefs.IsInvalidArgument(err) {
		t.Errorf("listen for an unknown group = %v, want InvalidArgument", err)
	}
	if _, err := os.Lstat(path + "2"); err == nil {
		t.Error("listen for an unknown group made a socket, want none")
	}
}

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
