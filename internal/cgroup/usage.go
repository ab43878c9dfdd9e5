package cgroup

import (
	"fmt"
	"io/fs"
	"time"
)

// Usage is what a group used since it was made. CPUUser and CPUSystem are time on the processors. MemoryPeak (bytes, files in memory file systems
// and cache included) and PidsPeak (processes and threads) are 0 where the kernel does not keep them. OOMKills counts the processes that the kernel killed because a memory
// cap was met. PidsDenied counts forks refused by a pids cap.
type Usage struct {
	CPUUser, CPUSystem   time.Duration
	MemoryPeak, PidsPeak int64
	OOMKills, PidsDenied int64
}

// usage reads the counters of one cgroup from the hierarchies that have them. What is absent stays 0; it fails only if the cgroup is gone.
func usage(dirs []member) (Usage, error) {
	var u Usage
	for _, d := range dirs {
		if !d.has("cgroup.procs") {
			return Usage{}, fmt.Errorf("usage of cgroup %s: %w", d.name, fs.ErrNotExist)
		}
		switch d.kind {
		case Memory:
			u.MemoryPeak, _ = d.number("memory.max_usage_in_bytes")
			// Since 4.13. The victim's own group counts, wherever the cap was that was met.
			u.OOMKills = d.keyed("memory.oom_control")["oom_kill"]
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
	u.PidsPeak, _ = d.number("pids.peak") // since 6.1
	u.PidsDenied = d.keyed("pids.events")["max"]
}

// cpuV1 works where cpu and cpuacct are mounted as one, as they are nearly everywhere.
func (u *Usage) cpuV1(d dir) {
	user, _ := d.number("cpuacct.usage_user")
	sys, _ := d.number("cpuacct.usage_sys")
	u.CPUUser, u.CPUSystem = time.Duration(user), time.Duration(sys)
}

// unified comes last of all hierarchies: on hybrid hosts it has CPU time but neither memory nor pids.
func (u *Usage) unified(d dir) {
	if cpu := d.keyed("cpu.stat"); cpu != nil {
		u.CPUUser = time.Duration(cpu["user_usec"]) * time.Microsecond
		u.CPUSystem = time.Duration(cpu["system_usec"]) * time.Microsecond
	}
	if events := d.keyed("memory.events"); events != nil {
		u.OOMKills = events["oom_kill"]
		u.MemoryPeak, _ = d.number("memory.peak") // since 5.19
	}
	if d.has("pids.max") {
		u.pids(d)
	}
}
