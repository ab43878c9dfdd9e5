//go:build unix

package cli

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"github.com/sandbox-orchestrator/orchestrator/client"
)

// ExplainAccess returns why this account may not connect to a server's socket, and how it gets
// access.
func ExplainAccess(e *client.AccessError) (fact, remedy string) {
	const byToken = "use its TCP address with --address and --token-file"
	path := strings.TrimPrefix(e.Address, "unix:")
	fact = "no permission for the server's socket " + path
	info, err := os.Stat(path)
	if err != nil {
		return fact + ": its directory is closed to this account", "ask the server's operator for access, or " + byToken
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fact, "ask the server's operator for access, or " + byToken
	}
	group := groupName(owner.Gid)
	fact += fmt.Sprintf(" (%s:%s, mode %04o)", userName(owner.Uid), group, info.Mode().Perm())
	if info.Mode().Perm()&0o020 != 0 {
		return fact, fmt.Sprintf("join the group %s (`usermod -aG %s USER`, then log in again), or %s", group, group, byToken)
	}
	return fact, "have its operator set socket_group to a group of yours, or " + byToken
}

func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

func groupName(gid uint32) string {
	id := strconv.FormatUint(uint64(gid), 10)
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}
