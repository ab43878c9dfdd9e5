package cgroup

import (
	"fmt"
	"io/fs"
	"time"
)

// Usage is what a group has used since it was made. CPUUser and CPUSystem are CPU times. MemoryPeak
// (bytes, including cache and files in memory file systems) and PidsPeak (processes and threads)
// are 0 if the kernel does not record them. OOMKills counts processes killed at a memory cap, and
// PidsDenied forks rejected at a pids cap.
type Usage struct {
	CPUUser, CPUSystem   time.Duration
	MemoryPeak, PidsPeak int64
	OOMKills, PidsDenied int64
}

// readUsage reads the counters of one cgroup from its hierarchies. Missing counters are 0. It fails
// only if the cgroup is gone.
func readUsage(dirs []hierarchyDir) (Usage, error) {
	var u Usage
	for _, d := range dirs {
		if !d.has("cgroup.procs") {
			return Usage{}, fmt.Errorf("usage of cgroup %s: %w", d.name, fs.ErrNotExist)
		}
		switch d.kind {
		case Memory:
			u.MemoryPeak, _ = d.readNumber("memory.max_usage_in_bytes")
			// Since 4.13. The kernel counts in the victim's own group, wherever the cap was set.
			u.OOMKills = d.readKeyed("memory.oom_control")["oom_kill"]
		case Pids:
			u.pids(d.dir)
		case CPU:
			u.cpuV1(d.dir)
		case Unified:
			u.unified(d.dir)
		}
	}
	return u, nil
}

func (u *Usage) pids(d dir) {
	u.PidsPeak, _ = d.readNumber("pids.peak") // since 6.1
	u.PidsDenied = d.readKeyed("pids.events")["max"]
}

// cpuV1 works if cpu and cpuacct are mounted together, as on nearly all hosts.
func (u *Usage) cpuV1(d dir) {
	user, _ := d.readNumber("cpuacct.usage_user")
	sys, _ := d.readNumber("cpuacct.usage_sys")
	u.CPUUser, u.CPUSystem = time.Duration(user), time.Duration(sys)
}

// unified must come last: on hybrid hosts it has CPU time but neither memory nor pids.
func (u *Usage) unified(d dir) {
	if cpu := d.readKeyed("cpu.stat"); cpu != nil {
		u.CPUUser = time.Duration(cpu["user_usec"]) * time.Microsecond
		u.CPUSystem = time.Duration(cpu["system_usec"]) * time.Microsecond
	}
	if events := d.readKeyed("memory.events"); events != nil {
		u.OOMKills = events["oom_kill"]
		u.MemoryPeak, _ = d.readNumber("memory.peak") // since 5.19
	}
	if d.has("pids.max") {
		u.pids(d)
	}
}
