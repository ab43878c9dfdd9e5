package cli

import "github.com/containerd/errdefs"

// NeedsLinux is the error of what only a program for Linux can do. what begins it, such as "serve"
// or "run without a server".
func NeedsLinux(what string) error {
	return Refuse(
		errdefs.ErrFailedPrecondition,
		"%s needs Linux: start `orchestrator serve` on a Linux host and name it with --address and --token-file",
		what,
	)
}
