package runtime

import (
	"maps"
	"slices"
)

// Capability is one thing that a driver enforces or offers, and that the suite
// in runtimetest shows from inside a sandbox.
type Capability string

const (
	CapNetworkNone   Capability = "network-none"   // no interface but loopback; no address family that leaves the sandbox
	CapMemory        Capability = "memory"         // memory cap, no swap
	CapCPU           Capability = "cpu"            // CPU quota
	CapPids          Capability = "pids"           // cap on processes and threads
	CapReadOnlyRoot  Capability = "read-only-root" // nothing outside tmpfs and /workspace can be written
	CapCapabilities  Capability = "capabilities"   // commands have none, and cannot gain any
	CapNoNewPrivs    Capability = "no-new-privs"   // setuid programs gain nothing
	CapSeccomp       Capability = "seccomp"        // our filter is in force for guest and commands
	CapNonRoot       Capability = "non-root"       // commands run as a user that is not 0
	CapTmpfs         Capability = "tmpfs"          // sizes of /tmp, /home/user and scratch /workspace hold
	CapNeutralConfig Capability = "neutral-config" // the image's VOLUME, HEALTHCHECK, USER, ENTRYPOINT, ENV do nothing
	CapKill          Capability = "kill"           // nothing of a command outlives its ending
	CapCommandCgroup Capability = "command-cgroup" // the guest lives outside the commands' caps
	CapUsage         Capability = "usage"          // CPU, memory and pids figures per command
	CapEndingOOM     Capability = "ending-oom"     // over the memory cap is named
	CapEndingPids    Capability = "ending-pids"    // over the pids cap is named
	CapEndingDisk    Capability = "ending-disk"    // out of room for files is named
	CapLateBind      Capability = "late-bind"      // a workspace appears in a running sandbox
	CapLateBindRO    Capability = "late-bind-ro"   // and can be read-only
	CapQuota         Capability = "quota"          // a workspace with a bound stops there
	CapFiles         Capability = "files"          // files are read and written through the guest
	CapAdopt         Capability = "adopt"          // sandboxes and shells live on over a restart of the orchestrator
	CapDeadMan       Capability = "dead-man"       // a sandbox whose host is gone ends itself
	CapNothingLeft   Capability = "nothing-left"   // Destroy and Remove leave nothing on the host
)

// AllCapabilities lists every capability in the order of the committed table.
func AllCapabilities() []Capability {
	return []Capability{
		CapNetworkNone, CapMemory, CapCPU, CapPids, CapReadOnlyRoot, CapCapabilities, CapNoNewPrivs, CapSeccomp, CapNonRoot, CapTmpfs,
		CapNeutralConfig, CapKill, CapCommandCgroup, CapUsage, CapEndingOOM, CapEndingPids, CapEndingDisk, CapLateBind, CapLateBindRO, CapQuota,
		CapFiles, CapAdopt, CapDeadMan, CapNothingLeft,
	}
}

// Capabilities says of each capability whether a driver has it ("yes") or why
// not. A missing entry is a defect, which the suite reports.
type Capabilities map[Capability]string

// Yes is the value of a capability that holds.
const Yes = "yes"

// Has says whether the capability holds.
func (c Capabilities) Has(name Capability) bool { return c[name] == Yes }

// Missing lists what a driver says it does not have, sorted.
func (c Capabilities) Missing() []Capability {
	var out []Capability
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if c[name] != Yes {
			out = append(out, name)
		}
	}
	return out
}
