// Package userns makes user namespaces for sandboxes, and hands out the ranges of ids that they
// map.
//
// Each namespace maps the ids from 0 to [Size]-1 to a range that no other sandbox of the host
// has. It is created as the range's first id, not as root. The kernel counts inotify instances
// and watches, pending signals and the like for the user in the namespace and also for the user
// who created it, so with root as the creator all sandboxes would share root's share.
//
// The package mounts nothing and keeps no state in memory. Its functions may be called
// concurrently. Errors are of class FailedPrecondition if the host cannot do it,
// ResourceExhausted if no range is left, or what the kernel returned.
package userns
