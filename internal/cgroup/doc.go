// Package cgroup owns the cgroups that a sandbox's commands run in: below the sandbox's own caps, beside its guest, one group per
// exec. From that one mechanism come the endings "oom" and "pids", usage per exec, and a kill that misses nothing.
//
// The host side ([Detect], [Of], [Delegate], [Find], [Sweep]) works on host paths and makes one cgroup per hierarchy, named "cmds".
// The guest side ([OpenTree]) sees only those directories, bound into the sandbox, and opens everything relative to them; it needs to
// be uid 0 with CAP_KILL and nothing else (a user namespace that maps uid 0 away is not supported: making a group fails there).
// cgroup v1, hybrid (v1 controllers and a cgroup2 tree without them) and v2 are served by the same calls.
//
// It never makes or removes a sandbox's own cgroup (that is the runtime's), never touches a process that is not the sandbox's, and
// never changes a mount. It starts no goroutines and holds no global state. Nothing here reaps: a killed process stays a
// zombie until its parent, or PID 1 of its pid namespace (the guest), waits for it. A zombie counts for pids.max and pids.current
// but not as alive, so [Group.Kill] and [Group.Remove] do not wait for the reaper on kernels from 5.2 on; on older ones they do, and must
// not be called from it.
//
// Errors: [ErrNone] where nothing is delegated, [ErrUnsupported] where a cap is asked for that cannot be enforced here (the text names the
// controller and the fix), else what the kernel said, wrapped with the cgroup and the file.
package cgroup

import "errors"

// ErrNone says that no cgroup was delegated: the caller must fall back to another way to find and end processes.
var ErrNone = errors.New("no delegated cgroup")

// ErrUnsupported says that a cap was asked for that this host cannot enforce.
var ErrUnsupported = errors.New("cap cannot be enforced on this host")

// Names of the hierarchies, as in [Paths] and [Delegated].Dirs. On v2 there is only Unified.
const (
	Memory  = "memory"
	Pids    = "pids"
	CPU     = "cpu"
	Unified = "unified"
)

// Names returns every name that can occur in [Delegated].Dirs, in the order in which they are used.
func Names() []string { return []string{Memory, Pids, CPU, Unified} }

// v1Names are the hierarchies that are looked for among cgroup v1 mounts; cpuacct is not delegated, see Usage.
func v1Names() []string { return []string{Memory, Pids, CPU} }
