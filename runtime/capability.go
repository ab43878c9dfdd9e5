package runtime

import (
	"maps"
	"slices"
)

// Capability is a property that a driver enforces or offers. The suite in runtimetest demonstrates
// each one from inside a sandbox.
type Capability string

const (
	CapNetworkNone   Capability = "network-none"   // no interface but loopback; no address family that leaves the sandbox
	CapMemory        Capability = "memory"         // memory cap, no swap
	CapCPU           Capability = "cpu"            // CPU quota
	CapPids          Capability = "pids"           // cap on processes and threads
	CapReadOnlyRoot  Capability = "read-only-root" // nothing outside tmpfs and /workspace can be written
	CapMountFlags    Capability = "mount-flags"    // only the directories of commands are mounted writable, with nosuid and nodev
	CapCapabilities  Capability = "capabilities"   // commands have no capabilities and cannot gain any
	CapNoNewPrivs    Capability = "no-new-privs"   // setuid programs gain nothing
	CapSeccomp       Capability = "seccomp"        // our filter is in force for the guest and the commands
	CapNonRoot       Capability = "non-root"       // commands run as a user that is not 0
	CapTmpfs         Capability = "tmpfs"          // sizes of /tmp, /home/user and scratch /workspace hold
	CapNeutralConfig Capability = "neutral-config" // VOLUME, HEALTHCHECK, USER, ENTRYPOINT and ENV have no effect
	CapKill          Capability = "kill"           // no process of a command outlives its ending
	CapCommandCgroup Capability = "command-cgroup" // the guest is outside the commands' caps
	CapUsage         Capability = "usage"          // CPU time, memory and pids per command
	CapEndingOOM     Capability = "ending-oom"     // exceeding the memory cap is reported as such
	CapEndingPids    Capability = "ending-pids"    // exceeding the pids cap is reported as such
	CapEndingDisk    Capability = "ending-disk"    // running out of disk space is reported as such
	CapLateBind      Capability = "late-bind"      // a workspace can be mounted into a running sandbox
	CapLateBindRO    Capability = "late-bind-ro"   // and can be mounted read-only
	CapQuota         Capability = "quota"          // a workspace quota holds
	CapFiles         Capability = "files"          // files are read and written through the guest
	CapAdopt         Capability = "adopt"          // sandboxes and shells survive a restart of the orchestrator
	CapDeadMan       Capability = "dead-man"       // a sandbox whose host is gone shuts itself down
	CapNothingLeft   Capability = "nothing-left"   // Destroy and Remove leave nothing on the host
)

// AllCapabilities lists every capability in the order of the committed table.
func AllCapabilities() []Capability {
	return []Capability{
		CapNetworkNone, CapMemory, CapCPU, CapPids, CapReadOnlyRoot, CapMountFlags, CapCapabilities, CapNoNewPrivs, CapSeccomp,
		CapNonRoot, CapTmpfs,
		CapNeutralConfig, CapKill, CapCommandCgroup, CapUsage, CapEndingOOM, CapEndingPids, CapEndingDisk, CapLateBind,
		CapLateBindRO, CapQuota,
		CapFiles, CapAdopt, CapDeadMan, CapNothingLeft,
	}
}

// Capabilities maps each capability to "yes" or to the reason why a driver lacks it. The suite
// reports a missing entry as a defect.
type Capabilities map[Capability]string

// Yes is the value of a capability that the driver has.
const Yes = "yes"

// AllYes returns every capability with the value Yes.
func AllYes() Capabilities {
	c := Capabilities{}
	for _, name := range AllCapabilities() {
		c[name] = Yes
	}
	return c
}

// Has reports whether the driver has the capability.
func (c Capabilities) Has(name Capability) bool { return c[name] == Yes }

// Missing returns the capabilities that the driver lacks, sorted.
func (c Capabilities) Missing() []Capability {
	var out []Capability
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if c[name] != Yes {
			out = append(out, name)
		}
	}
	return out
}
