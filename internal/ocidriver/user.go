package ocidriver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// idsName is the symbolic link in a holder's directory whose target is the first id of its
// range.
const idsName = "ids"

// Prlimit is the program of util-linux that sets limits and executes another program.
const Prlimit = "prlimit"

// ClaimUser claims ids for a sandbox, whose directory holder exists, and makes its user
// namespace. The directory names the ids before they are claimed.
func ClaimUser(ids userns.Ranges, holder string) (*userns.Namespace, error) {
	note := func(first uint32) error {
		err := os.Symlink(strconv.FormatUint(uint64(first), 10), filepath.Join(holder, idsName))
		failpoint.Hit("oci.create.ids.noted")
		return err
	}
	first, err := ids.Claim(holder, note)
	if err != nil {
		return nil, err
	}
	failpoint.Hit("oci.create.ids.claimed")
	return userns.New(first)
}

// userOf returns the user namespace that ClaimUser made for a sandbox, or nil if it made none. Only
// the record can tell: runsc starts its sandboxes in namespaces of its own.
func userOf(rec Recorded) (*userns.Namespace, error) {
	_, err := os.Lstat(filepath.Join(rec.Holder, idsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ids of its user namespace: %w", err)
	}
	return userns.Of(rec.Init.Pid)
}

// ReturnIDs gives up the ids of a sandbox, if its directory names any. unmount unmounts its root
// first.
func ReturnIDs(ids userns.Ranges, holder string, unmount func(root string) error) error {
	text, err := os.Readlink(filepath.Join(holder, idsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("return ids: %w", err)
	}
	first, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return fmt.Errorf("return ids: %w", err)
	}
	if !ids.Holds(uint32(first), holder) {
		return nil
	}
	if err := unmount(ids.Root(uint32(first))); err != nil {
		return err
	}
	return ids.Release(uint32(first), holder)
}

// PrlimitArgs returns the arguments with which Prlimit sets the limits.
func PrlimitArgs(limits []specs.POSIXRlimit) []string {
	args := make([]string, 0, len(limits)+1)
	for _, r := range limits {
		name := strings.ToLower(strings.TrimPrefix(r.Type, "RLIMIT_"))
		args = append(args, fmt.Sprintf("--%s=%d:%d", name, r.Soft, r.Hard))
	}
	return append(args, "--")
}

// CheckUserClass refuses a user namespace for a class that cannot have one.
func CheckUserClass(class runtime.Class) error {
	if class.OrDefault() == runtime.ClassContainer {
		return nil
	}
	return fmt.Errorf("a sandbox of class %s has a kernel of its own, which keeps ids apart; use user_namespace host: %w",
		class, errdefs.ErrFailedPrecondition)
}
