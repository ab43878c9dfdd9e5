package cli

import (
	"runtime"

	"github.com/containerd/errdefs"
)

// onLinux reports whether this program can have sandboxes on its own host.
const onLinux = runtime.GOOS == "linux"

// NeedsLinux is the error of what only a program for Linux can do, and a server instead of it. what
// begins it, such as "serve" or "run without a server".
func NeedsLinux(what string) error {
	return Refuse(
		errdefs.ErrFailedPrecondition,
		"%s needs Linux: start `orchestrator serve` on a Linux host and name it with --address and --token-file",
		what,
	)
}

// NeedsLinuxHost is the error of what only a program for Linux can do, and no server instead of it.
func NeedsLinuxHost(what string) error {
	return Refuse(errdefs.ErrFailedPrecondition, "%s needs Linux: run it on a Linux host", what)
}
