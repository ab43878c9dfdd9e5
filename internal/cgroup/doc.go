// Package cgroup manages the cgroups of a sandbox's commands: one group per command, below the
// sandbox's own caps and beside its guest. They provide the endings "oom" and "pids", usage per
// command, and a kill that misses no process.
//
// The host side ([Detect], [Of], [Delegate]) works on host paths and makes one
// cgroup per hierarchy, named "cmds". The guest side ([OpenTree]) sees only these directories,
// bound into the sandbox, and opens everything relative to them. It needs uid 0 with CAP_KILL and
// nothing else. In a user namespace that does not map uid 0 making a group fails. The same calls
// serve cgroup v1, hybrid (v1 controllers and a cgroup2 tree without them) and v2.
//
// The package never makes or removes a sandbox's own cgroup, which belongs to the runtime. It never
// touches processes outside the sandbox, and never changes a mount. It starts no goroutines and has
// no global state. It does not reap: a killed process stays a zombie until its parent or PID 1 of
// its pid namespace (the guest) waits for it. A zombie counts for pids.max and pids.current but not
// as alive. So on kernels from 5.2 on, [Group.Kill] and [Group.Remove] do not wait for the reaper;
// on older kernels they do, and must not be called from it.
//
// Errors: [ErrNone] if nothing is delegated; [ErrUnsupported] if a cap cannot be enforced here (the
// text names the controller and the fix); otherwise the kernel's error, wrapped with the cgroup and
// the file.
package cgroup

import "errors"

// ErrNone means that no cgroup was delegated. The caller must find and kill processes in another
// way.
var ErrNone = errors.New("no delegated cgroup")

// ErrUnsupported means that this host cannot enforce a requested cap.
var ErrUnsupported = errors.New("cap cannot be enforced on this host")

// Names of the hierarchies in [Paths] and [Delegated].Dirs. v2 has only Unified.
const (
	Memory  = "memory"
	Pids    = "pids"
	CPU     = "cpu"
	Unified = "unified"
)

// Names returns every name that can occur in [Delegated].Dirs, in the order of use.
func Names() []string { return []string{Memory, Pids, CPU, Unified} }

// v1Names returns the hierarchies to look for among cgroup v1 mounts. cpuacct is not delegated, see
// Usage.
func v1Names() []string { return []string{Memory, Pids, CPU} }
