package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReadTokenChecksMode checks which readers beside the owner a token file may have.
func TestReadTokenChecksMode(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing the owner of a file requires root")
	}
	const group, other = 64_123, 64_124
	old, err := syscall.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setgroups([]int{group}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Setgroups(old); err != nil {
			t.Error(err)
		}
	})
	token := strings.Repeat("0", minToken)
	for _, c := range []struct {
		name     string
		uid, gid int
		mode     os.FileMode
		ok       bool
	}{
		{"owner only", 0, 0, 0o600, true},
		{"a group of the process", 0, group, 0o440, true},
		{"a group of the process, writable for root", 0, group, 0o640, true},
		{"writable for the group", 0, group, 0o660, false},
		{"readable for all", 0, group, 0o444, false},
		{"another group", 0, other, 0o440, false},
		{"another owner's group", 1, group, 0o440, false},
		{"root's own group", 0, 0, 0o640, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chown(path, c.uid, c.gid); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, c.mode); err != nil {
				t.Fatal(err)
			}
			got, err := ReadToken(path)
			if (err == nil && got == token) != c.ok {
				t.Errorf("ReadToken of mode %04o, owner %d:%d = %q, %v; want success %t", c.mode, c.uid, c.gid, got, err, c.ok)
			}
		})
	}
}
