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
	commands = "cmds"  // holds the groups of the execs
	keeper   = "guest" // v2: holds init and what it forks for itself, as a cgroup with controlled children may hold no process
)

// Share is what all commands of a sandbox may use together. Zero means no cap of its own: what the sandbox's cgroup says holds alone.
// It should be a little under the sandbox's caps (CPU at most 95 %), so that the guest always has the rest.
type Share struct {
	MemoryBytes int64   // memory without swap: swap is off for the commands where the kernel can say so
	Pids        int64   // processes and threads
	CPU         float64 // cores
}

// minCPU is the kernel's smallest quota, 1 ms, of the period used here.
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

// check refuses a share with a cap that the host cannot enforce.
func (h Host) check(s Share) error {
	if err := s.validate(); err != nil {
		return err
	}
	for _, c := range []struct {
		name        string
		asked, have bool
	}{{Memory, s.MemoryBytes > 0, h.Memory}, {Pids, s.Pids > 0, h.Pids}, {CPU, s.CPU > 0, h.CPU}} {
		if c.asked && !c.have {
			return h.lacks(c.name)
		}
	}
	return nil
}

func (h Host) lacks(controller string) error {
	fix := "mount it (mount -t cgroup -o " + controller + " cgroup /sys/fs/cgroup/" + controller + ") or boot without cgroup_disable=" + controller
	m, mounted := h.mounts[controller]
	switch {
	case h.Mode == ModeV2 && !writable(h.Unified):
		fix = "run as root with " + h.Unified + " mounted read-write"
	case h.Mode == ModeV2:
		fix = "boot without cgroup_disable=" + controller + ", and unmount any cgroup v1 file system that holds it"
	case mounted && !writable(m.point):
		fix = "run as root with " + m.point + " mounted read-write"
	}
	return fmt.Errorf("%w: the %s controller of cgroup %s is not available; %s", ErrUnsupported, controller, h.Mode, fix)
}

// Delegated are the cgroups made for a sandbox's commands. Dirs: hierarchy ([Names]) → host directory. Everything else follows from
// the directories, so that a Delegated may be built again from saved ones.
type Delegated struct {
	Dirs map[string]string
}

// Delegate makes the cgroups for the commands of the sandbox whose init has the given pid and sets their caps. They lie below init's own
// cgroups. On v2 all that is in init's cgroup is first moved into a child of it, for the kernel allows no process beside controlled
// children. In a hierarchy where init has no cgroup of its own (it is at the top, or others are in the same one) they lie below a stand-in at the top,
// and nothing of others is touched. Idempotent: called again it completes and sets the caps again. When it fails it removes
// what it made, except on v2, where the layout stays for the next call or the runtime's removal.
//
// Not to be called concurrently for the same sandbox.
func Delegate(initPid int, s Share) (*Delegated, error) {
	h, err := Detect()
	if err != nil {
		return nil, err
	}
	if err := h.check(s); err != nil {
		return nil, err
	}
	init, err := lookUp(initPid)
	if err != nil {
		return nil, fmt.Errorf("delegate cgroups: %w", err)
	}
	paths, err := h.of(initPid)
	if err != nil {
		return nil, fmt.Errorf("delegate cgroups: %w", err)
	}
	d := &Delegated{Dirs: map[string]string{}}
	for _, name := range h.wanted(s) {
		dir, err := h.delegate(name, paths[name], init, s)
		if err != nil {
			d.undo()
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

// wanted lists the hierarchies worth a cgroup: each costs every exec a directory and a move. On v1 that of cpu is needed for a cap of it only, or
// where CPU time is not to be had from the cgroup2 tree.
func (h Host) wanted(s Share) []string {
	var names []string
	for _, name := range Names() {
		m, ok := h.mounts[name]
		if ok && writable(m.point) && (name != CPU || s.CPU > 0 || h.Unified == "") {
			names = append(names, name)
		}
	}
	return names
}

// delegate does one hierarchy; "" where it is better left out.
func (h Host) delegate(name, base string, init process, s Share) (string, error) {
	base = h.above(name, base)
	top := h.mounts[name].point
	parent := path.Join(top, init.standIn())
	own := false
	if !exists(parent) {
		var err error
		if own, err = h.own(name, base, init); err != nil {
			return "", err
		}
	}
	if own {
		parent = base
	} else if name == Unified && h.closed(init) {
		if h.Mode == ModeV2 {
			return "", fmt.Errorf("%w: the sandbox has a cgroup namespace but no cgroup of its own, and nsdelegate forbids it to use another; "+
				"let the runtime make a cgroup per container", ErrUnsupported)
		}
		return "", nil
	}
	dir := path.Join(parent, commands)
	made, err := mkdirs(parent, dir)
	if err == nil {
		err = h.furnish(name, top, parent, own, s)
	}
	if err != nil && !(own && h.Mode == ModeV2) {
		for _, d := range slices.Backward(made) {
			_ = os.Remove(d) // only when empty, so it harms nobody
		}
	}
	if err != nil {
		return "", err
	}
	return dir, nil
}

// furnish sets up the parent and its child for the commands.
func (h Host) furnish(name, top, parent string, own bool, s Share) error {
	dir := path.Join(parent, commands)
	if h.Mode == ModeV2 {
		if err := h.arrange(top, parent, own, s); err != nil {
			return err
		}
		return capV2(dir, s)
	}
	switch name {
	case Memory:
		return capMemoryV1(parent, dir, s.MemoryBytes)
	case Pids:
		return capPids(dir, s.Pids)
	case CPU:
		return capCPUV1(dir, s.CPU)
	}
	return nil
}

// above is the sandbox's cgroup when init was moved into the child of it already.
func (h Host) above(name, base string) string {
	if name == Unified && h.Mode == ModeV2 && path.Base(base) == keeper && exists(path.Join(path.Dir(base), commands)) {
		return path.Dir(base)
	}
	return base
}

// closed says whether a process that init starts may not be moved out of init's own part of the cgroup2 tree: the kernel forbids it to a writer in
// a cgroup namespace of its own where the tree is mounted with nsdelegate.
func (h Host) closed(init process) bool {
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

// mkdirs makes the directories that are not there yet and says which it made.
func mkdirs(dirs ...string) (made []string, err error) {
	for _, d := range dirs {
		switch err := os.Mkdir(d, 0o755); {
		case err == nil:
			made = append(made, d)
		case !errors.Is(err, fs.ErrExist):
			return made, fmt.Errorf("make cgroup %s: %w", d, bare(err))
		}
	}
	return made, nil
}

// undo takes back what a failed Delegate made, without harm to what was there before: only empty cgroups go.
func (d *Delegated) undo() {
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

// Find returns what [Delegate] made for the sandbox whose init has this pid, for a host process that started anew. ErrNone if nothing is there.
// It may be less than all if that Delegate was interrupted; calling Delegate again completes it.
func Find(initPid int) (*Delegated, error) {
	h, err := Detect()
	if err != nil {
		return nil, err
	}
	init, err := lookUp(initPid)
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	paths, err := h.of(initPid)
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	d := &Delegated{Dirs: map[string]string{}}
	for name, m := range h.mounts {
		base := h.above(name, paths[name])
		dir := path.Join(m.point, init.standIn(), commands)
		if !exists(dir) {
			dir = path.Join(base, commands)
			if base == "" || base == m.point || h.inside(name, base) || !exists(dir) {
				continue
			}
		}
		d.Dirs[name] = dir
	}
	if len(d.Dirs) == 0 {
		return nil, fmt.Errorf("find cgroups of process %d: %w", initPid, ErrNone)
	}
	return d, nil
}

// arrange makes room for controlled children on v2: nobody in the parent, controllers on in it and in the child for the commands.
// There memory and pids give every exec its counters; CPU time is counted without its controller.
func (h Host) arrange(top, parent string, own bool, s Share) error {
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
		if err := vacate(parent, path.Join(parent, keeper)); err != nil {
			return err
		}
	} else if err := enable(top, need); err != nil {
		return err
	}
	if err := enable(parent, need); err != nil {
		return err
	}
	return enable(path.Join(parent, commands), slices.DeleteFunc(slices.Clone(need), func(c string) bool { return c == CPU }))
}

// vacate moves every process of a cgroup into a child of it. What is forked meanwhile is seen in the next round; the number of rounds is
// bounded because a hostile sandbox could go on for ever, though none runs commands yet.
func vacate(from, to string) error {
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
		pids, hidden, err := src.procs()
		if err != nil {
			return err
		}
		if len(pids)+hidden == 0 {
			return nil
		}
		for _, pid := range pids {
			err := src.write(keeper+"/cgroup.procs", fmt.Sprint(pid))
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return fmt.Errorf("empty cgroup %s: processes went on appearing in it", from)
}

// enable gives the children of a v2 cgroup these controllers.
func enable(name string, controllers []string) error {
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
			return fmt.Errorf("%w: cgroup %s has no %s controller; write +%s to cgroup.subtree_control of every cgroup above it, or let the runtime "+
				"set a %s cap on the container, which does that", ErrUnsupported, name, c, c, c)
		}
		if err := d.write("cgroup.subtree_control", "+"+c); err != nil {
			return err
		}
	}
	return nil
}
