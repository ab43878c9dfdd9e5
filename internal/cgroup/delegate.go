package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	commands = "cmds"  // parent of the commands' groups
	guestDir = "guest" // v2: for init and its children; a controlled cgroup holds no processes
)

// Share is what all commands of a sandbox may use together. Zero means no separate cap: then only
// the cap of the sandbox's cgroup applies. Each value should be slightly below the sandbox's cap
// (CPU at most 95 %) to leave a reserve for the guest.
type Share struct {
	MemoryBytes int64   // bytes, without swap: swap is disabled for commands where the kernel supports it
	Pids        int64   // processes and threads
	CPU         float64 // cores
}

// cpuPeriod is the quota period, and minCPU the kernel's smallest quota (1 ms) in relation to it.
const (
	cpuPeriod = 100_000 // µs
	minCPU    = 0.01    // cores
)

func (s Share) validate() error {
	switch {
	case s.MemoryBytes < 0:
		return fmt.Errorf("share: memory of %d bytes", s.MemoryBytes)
	case s.Pids < 0:
		return fmt.Errorf("share: %d pids", s.Pids)
	case s.CPU < 0 || math.IsNaN(s.CPU) || s.CPU > 1<<20 || s.CPU > 0 && s.CPU < minCPU:
		return fmt.Errorf("share: %v cores of cpu; it must be 0 (no cap) or at least %v", s.CPU, minCPU)
	}
	return nil
}

// check returns an error for a share that is invalid or that the host cannot enforce.
func (h Host) check(s Share) error {
	if err := s.validate(); err != nil {
		return err
	}
	for _, c := range []struct {
		name        string
		asked, have bool
	}{{Memory, s.MemoryBytes > 0, h.Memory}, {Pids, s.Pids > 0, h.Pids}, {CPU, s.CPU > 0, h.CPU}} {
		if c.asked && !c.have {
			return h.unavailableError(c.name)
		}
	}
	return nil
}

func (h Host) unavailableError(controller string) error {
	return fmt.Errorf("%w: the %s controller of cgroup %s is not available; %s",
		ErrUnsupported, controller, h.Mode, h.Fix(controller))
}

// Fix says how to make a controller available that this host lacks.
func (h Host) Fix(controller string) string {
	fix := "mount it (mount -t cgroup -o " + controller + " cgroup /sys/fs/cgroup/" + controller +
		") or boot without cgroup_disable=" + controller
	m, mounted := h.mounts[controller]
	switch {
	case h.Mode == ModeV2 && !writable(h.Unified):
		fix = "run as root with " + h.Unified + " mounted read-write"
	case h.Confined:
		fix = "this process sees only a cgroup of its own, which grants others no " + controller +
			" controller: run it in the host's cgroup namespace"
	case h.Mode == ModeV2:
		fix = "boot without cgroup_disable=" + controller + ", and unmount any cgroup v1 file system that holds it"
	case mounted && !writable(m.point):
		fix = "run as root with " + m.point + " mounted read-write"
	}
	return fix
}

// Delegated holds the cgroups made for a sandbox's commands. Dirs maps hierarchies ([Names]) to
// host directories. A Delegated can be rebuilt from saved directories.
type Delegated struct {
	Dirs map[string]string
}

// Delegate makes the cgroups for the commands of the sandbox whose init has pid initPid, and sets
// their caps. They are children of init's own cgroups. On v2, all processes in init's cgroup first
// move to a child, because the kernel allows no processes beside controlled children. In a
// hierarchy where init has no cgroup of its own, they are made below a stand-in at the top, and
// other cgroups are not touched.
//
// Delegate is idempotent: another call completes the cgroups and sets the caps again. On failure it
// removes what it made; on v2 the layout stays for the next call or the runtime's removal. It must
// not be called concurrently for the same sandbox.
func Delegate(initPid int, s Share) (*Delegated, error) {
	h, err := Detect()
	if err != nil {
		return nil, err
	}
	if err := h.check(s); err != nil {
		return nil, err
	}
	init, err := lookUpProcess(initPid)
	if err != nil {
		return nil, fmt.Errorf("delegate cgroups: %w", err)
	}
	paths, err := h.pathsOf(initPid)
	if err != nil {
		return nil, fmt.Errorf("delegate cgroups: %w", err)
	}
	d := &Delegated{Dirs: map[string]string{}}
	for _, name := range h.hierarchies(s) {
		dir, err := h.delegate(name, paths[name], init, s)
		if err != nil {
			d.rollBack()
			return nil, fmt.Errorf("delegate cgroups of process %d: %w", initPid, err)
		}
		if dir != "" {
			d.Dirs[name] = dir
		}
	}
	if len(d.Dirs) == 0 {
		return nil, fmt.Errorf("delegate cgroups of process %d: %w on this host", initPid, ErrNone)
	}
	return d, nil
}

// hierarchies lists the hierarchies to use, since each costs every command a directory and a move.
// On v1, cpu is only used for a CPU cap, or without a cgroup2 tree to read the CPU time from.
func (h Host) hierarchies(s Share) []string {
	var names []string
	for _, name := range Names() {
		m, ok := h.mounts[name]
		if ok && writable(m.point) && (name != CPU || s.CPU > 0 || h.Unified == "") {
			names = append(names, name)
		}
	}
	return names
}

// delegate makes the cgroup in one hierarchy. It returns "" if the hierarchy is not used.
func (h Host) delegate(name, base string, init process, s Share) (string, error) {
	base = h.sandboxDir(name, base)
	top := h.mounts[name].point
	parent := path.Join(top, init.standInName())
	own := false
	if !exists(parent) {
		var err error
		if own, err = h.ownsDir(name, base, init); err != nil {
			return "", err
		}
	}
	if own {
		parent = base
	} else if name == Unified && h.movesForbidden(init) {
		if h.Mode == ModeV2 {
			return "", fmt.Errorf("%w: the sandbox has a cgroup namespace but no cgroup of its own, and nsdelegate forbids "+
				"it to use another; "+
				"let the runtime make a cgroup per container", ErrUnsupported)
		}
		return "", nil
	}
	dir := path.Join(parent, commands)
	made, err := mkdirs(parent, dir)
	if err == nil {
		err = h.configure(name, top, parent, own, s)
	}
	if err != nil && !(own && h.Mode == ModeV2) {
		for _, d := range slices.Backward(made) {
			_ = os.Remove(d) // fails unless empty, so it is safe
		}
	}
	if err != nil {
		return "", err
	}
	return dir, nil
}

// configure sets up the parent and its child for the commands.
func (h Host) configure(name, top, parent string, own bool, s Share) error {
	dir := path.Join(parent, commands)
	if h.Mode == ModeV2 {
		if err := h.prepareV2(top, parent, own, s); err != nil {
			return err
		}
		return setCapsV2(dir, s)
	}
	switch name {
	case Memory:
		return setMemoryCapV1(parent, dir, s.MemoryBytes)
	case Pids:
		return setPidsCap(dir, s.Pids)
	case CPU:
		return setCPUCapV1(dir, s.CPU)
	}
	return nil
}

// sandboxDir returns the sandbox's cgroup if init was already moved into its child.
func (h Host) sandboxDir(name, base string) string {
	if name == Unified && h.Mode == ModeV2 && path.Base(base) == guestDir && exists(path.Join(path.Dir(base), commands)) {
		return path.Dir(base)
	}
	return base
}

// movesForbidden reports whether the kernel forbids moving init's children out of its part of the
// cgroup2 tree: with nsdelegate, a process in another cgroup namespace may not do so.
func (h Host) movesForbidden(init process) bool {
	if !h.mounts[Unified].has("nsdelegate") {
		return false
	}
	mine, err1 := os.Readlink("/proc/self/ns/cgroup")
	its, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/cgroup", init.pid))
	return err1 != nil || err2 != nil || mine != its
}

func exists(dir string) bool {
	_, err := os.Lstat(dir)
	return err == nil
}

// mkdirs makes missing directories and returns those that it made.
func mkdirs(dirs ...string) (made []string, err error) {
	for _, d := range dirs {
		switch err := os.Mkdir(d, 0o755); {
		case err == nil:
			made = append(made, d)
		case !errors.Is(err, fs.ErrExist):
			return made, fmt.Errorf("make cgroup %s: %w", d, unwrapPath(err))
		}
	}
	return made, nil
}

// rollBack removes what a failed Delegate made. Only empty cgroups can be removed.
func (d *Delegated) rollBack() {
	for _, dir := range d.Dirs {
		_ = os.Remove(dir)
		if isStandIn(path.Dir(dir)) {
			_ = os.Remove(path.Dir(dir))
		}
	}
}

func isStandIn(dir string) bool {
	_, ok := parseStandIn(path.Base(dir))
	return ok
}

// prepareV2 makes controlled children possible on v2: it moves processes out of the parent and
// enables the controllers in the parent and in the child for the commands. Memory and pids give
// each command its counters; CPU time is counted without a controller.
func (h Host) prepareV2(top, parent string, own bool, s Share) error {
	var need []string
	for _, c := range []struct {
		name string
		want bool
	}{{Memory, h.Memory}, {Pids, h.Pids}, {CPU, h.CPU && s.CPU > 0}} {
		if c.want {
			need = append(need, c.name)
		}
	}
	if own {
		if err := moveProcesses(parent, path.Join(parent, guestDir)); err != nil {
			return err
		}
	} else if err := enableControllers(top, need); err != nil {
		return err
	}
	if err := enableControllers(parent, need); err != nil {
		return err
	}
	return enableControllers(path.Join(parent, commands),
		slices.DeleteFunc(slices.Clone(need), func(c string) bool { return c == CPU }))
}

// moveProcesses moves every process of a cgroup to a child. The next round catches processes forked
// during a round. The number of rounds is bounded because a hostile sandbox could fork
// indefinitely.
func moveProcesses(from, to string) error {
	if _, err := mkdirs(to); err != nil {
		return err
	}
	src, err := openDir(from)
	if err != nil {
		return err
	}
	defer src.Close()
	const rounds = 100
	for range rounds {
		pids, hidden, err := src.readProcs()
		if err != nil {
			return err
		}
		if len(pids)+hidden == 0 {
			return nil
		}
		for _, pid := range pids {
			err := src.write(guestDir+"/cgroup.procs", fmt.Sprint(pid))
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return fmt.Errorf("empty cgroup %s: processes went on appearing in it", from)
}

// enableControllers enables the controllers for the children of a v2 cgroup.
func enableControllers(name string, controllers []string) error {
	d, err := openDir(name)
	if err != nil {
		return err
	}
	defer d.Close()
	have, err := d.read("cgroup.controllers")
	if err != nil {
		return err
	}
	on, err := d.read("cgroup.subtree_control")
	if err != nil {
		return err
	}
	for _, c := range controllers {
		if slices.Contains(strings.Fields(on), c) {
			continue
		}
		if !slices.Contains(strings.Fields(have), c) {
			return fmt.Errorf("%w: cgroup %s has no %s controller; write +%s to cgroup.subtree_control of every cgroup above "+
				"it, or let the runtime "+
				"set a %s cap on the container, which does that", ErrUnsupported, name, c, c, c)
		}
		if err := d.write("cgroup.subtree_control", "+"+c); err != nil {
			return err
		}
	}
	return nil
}
