// Package docker creates sandboxes with a Docker Engine, 20.10 or newer. It is the only importer of
// the engine's client library.
//
// It has two modes, detected by a probe, not guessed from the engine's address. Local: engine and
// host share kernel, processes and mounts; the host listens on a socket in the sandbox's run
// directory (internal/rundir), and binds cgroups and workspaces late. Stdio: only the engine's API
// can be reached; the guest comes from a volume, and one exec of "guest bridge" with a mux on its
// stdio carries all streams.
//
// The package never pulls an image, never runs one by tag, never starts a container of which the
// engine said that it would ignore a cap, and never touches a container without its labels and its
// name.
//
// Goroutines: one per sandbox that waits for its end (Release and Destroy wait for it), and in
// stdio mode one per bridge. Close does not touch sandboxes.
//
// Errors have a class of containerd/errdefs. Unavailable means that the engine could not be asked,
// so nothing is known about the sandbox; it is never turned into NotFound.
package docker
