//go:build unix

package cli

import (
	"os"
	"slices"
	"syscall"
)

// readableByOthers reports whether accounts other than the owner may read the file.
func readableByOthers(info os.FileInfo) bool {
	return info.Mode().Perm()&0o077 != 0 && !sharedByRoot(info)
}

// sharedByRoot reports whether root has given the file to a group of this process, for reading
// only. The files of a secret that Kubernetes mounts are like that. It returns false outside of
// Linux: on macOS, every account is in the group staff.
func sharedByRoot(info os.FileInfo) bool {
	if !onLinux {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || owner.Uid != 0 || owner.Gid == 0 || info.Mode().Perm()&0o037 != 0 {
		return false
	}
	groups, err := os.Getgroups()
	return err == nil && (int(owner.Gid) == os.Getegid() || slices.Contains(groups, int(owner.Gid)))
}
