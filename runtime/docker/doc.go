// Package docker makes sandboxes with a Docker Engine, 20.10 or newer, and is
// the only importer of the engine's client library.
//
// It works in one of two ways, found out by trying and not guessed from the
// engine's address. Local: engine and host share kernel, processes and mounts;
// the host listens on a socket in the sandbox's cell (internal/cell), and
// cgroups and workspaces are bound late. Stdio: nothing but the engine's API is
// in reach; the guest comes from a volume, and one exec of "guest bridge" with a
// mux on its stdio carries all streams.
//
// The package never pulls an image, never runs one by tag, never starts a
// container whose caps the engine said it would drop, and never touches a
// container that does not carry its labels and its name.
//
// Goroutines: one per sandbox that waits for its end (ended by Release or
// Destroy, which wait for it), and in stdio mode one per bridge. Close does not
// touch sandboxes.
//
// Errors have a class of containerd/errdefs. Unavailable means that the engine
// could not be asked, so nothing is known about the sandbox; it is never turned
// into NotFound.
package docker
