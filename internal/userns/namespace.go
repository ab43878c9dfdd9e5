package userns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Size is the number of ids in each namespace. The highest one is invalid as a 16-bit id.
const Size = 1 << 16

// Namespace refers to a user namespace and keeps it alive. A nil Namespace stands for that of
// the host.
type Namespace struct {
	file *os.File
	// First is the host's id of user and group 0 inside.
	First uint32
}

// File returns a descriptor of the namespace, as MOUNT_ATTR_IDMAP takes it, or nil for the
// host's.
func (n *Namespace) File() *os.File {
	if n == nil {
		return nil
	}
	return n.file
}

// Path returns the namespace's path in /proc. It is valid until Close, for every process of the
// host that may see this one's descriptors.
func (n *Namespace) Path() string {
	// From version 1.1.12 on, runc takes "/proc/PID" at the beginning for a process in the
	// namespace.
	return fmt.Sprintf("/proc/./%d/fd/%d", os.Getpid(), n.file.Fd())
}

// Root returns the host's id of user 0 inside: 0 for the host's namespace.
func (n *Namespace) Root() int {
	if n == nil {
		return 0
	}
	return int(n.First)
}

// Close gives up the descriptor, and does nothing the second time. The namespace lives on as
// long as processes or mounts use it.
func (n *Namespace) Close() error {
	if n == nil {
		return nil
	}
	if err := n.file.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// New makes a user namespace that maps its ids to the Size ids from first on.
func New(first uint32) (*Namespace, error) {
	type made struct {
		n   *Namespace
		err error
	}
	done := make(chan made, 1)
	go func() { // waited for below
		// The thread changes its own user. If that cannot be undone it ends with this goroutine.
		runtime.LockOSThread()
		n, restored, err := create(first)
		if restored {
			runtime.UnlockOSThread()
		}
		done <- made{n, err}
	}()
	m := <-done
	if m.err != nil {
		return nil, fmt.Errorf("make user namespace: %w", m.err)
	}
	return m.n, nil
}

// create makes the namespace. restored reports whether the thread has its own user again.
func create(first uint32) (_ *Namespace, restored bool, err error) {
	child, restored, err := startAs(first)
	if err != nil {
		return nil, restored, err
	}
	defer func() {
		_ = child.Kill()
		_, _ = child.Wait()
	}()
	if !restored {
		return nil, false, errors.New("the thread's user cannot be restored")
	}
	mapping := fmt.Appendf(nil, "0 %d %d\n", first, Size)
	proc := "/proc/" + strconv.Itoa(child.Pid)
	for _, name := range []string{"/uid_map", "/gid_map"} {
		if err := os.WriteFile(proc+name, mapping, 0); err != nil {
			return nil, true, err
		}
	}
	file, err := os.Open(proc + "/ns/user")
	if err != nil {
		return nil, true, err
	}
	return &Namespace{file: file, First: first}, true, nil
}

// startAs starts a process in a new user namespace whose owner is the user id. The process
// executes this program, but is traced, so that it stops before its first instruction.
func startAs(id uint32) (child *os.Process, restored bool, err error) {
	const keep = ^uintptr(0) // -1: this id stays
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(id), keep); errno != 0 {
		return nil, true, fmt.Errorf("become user %d: %w", id, errno)
	}
	defer func() {
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, 0, keep)
		restored = errno == 0
	}()
	if err := raiseCapabilities(); err != nil {
		return nil, false, err
	}
	child, err = os.StartProcess("/proc/self/exe", []string{"user-namespace"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, Ptrace: true, Pdeathsig: syscall.SIGKILL,
	}})
	switch {
	case errors.Is(err, unix.ENOSPC):
		return nil, false, fmt.Errorf("the host allows no more of them; raise sysctl user.max_user_namespaces: %w",
			errdefs.ErrFailedPrecondition)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPERM):
		return nil, false, fmt.Errorf("the kernel refuses it (%w); use one with CONFIG_USER_NS, outside of a container: %w", err,
			errdefs.ErrFailedPrecondition)
	}
	return child, false, err
}

// raiseCapabilities makes the thread's permitted capabilities effective again, which a change of
// the user ends: some kernels let only those with CAP_SYS_ADMIN make user namespaces.
func raiseCapabilities() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&head, &sets[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for i := range sets {
		sets[i].Effective = sets[i].Permitted
	}
	if err := unix.Capset(&head, &sets[0]); err != nil {
		return fmt.Errorf("raise capabilities: %w", err)
	}
	return nil
}

// Of returns the user namespace of a process that New made, or nil if it is the host's. The
// caller makes sure that pid is still that process when Of returns.
func Of(pid int) (*Namespace, error) {
	proc := "/proc/" + strconv.Itoa(pid)
	text, err := os.ReadFile(proc + "/uid_map")
	if err != nil {
		return nil, fmt.Errorf("user namespace of process %d: %w", pid, err)
	}
	first, own, err := parseMap(string(text))
	if err != nil {
		return nil, fmt.Errorf("user namespace of process %d: %w", pid, err)
	}
	if !own {
		return nil, nil
	}
	file, err := os.Open(proc + "/ns/user")
	if err != nil {
		return nil, fmt.Errorf("user namespace of process %d: %w", pid, err)
	}
	return &Namespace{file: file, First: first}, nil
}

// parseMap reads a uid_map. own is false for the map of the host's namespace, and otherwise
// first is the host's id of user 0.
func parseMap(text string) (first uint32, own bool, err error) {
	var inside, outside, count uint64
	fields := strings.Fields(text)
	if len(fields) == 3 {
		for i, p := range []*uint64{&inside, &outside, &count} {
			n, perr := strconv.ParseUint(fields[i], 10, 32)
			err = errors.Join(err, perr)
			*p = n
		}
	}
	switch {
	case err == nil && len(fields) == 3 && inside == 0 && outside == 0:
		return 0, false, nil
	case err != nil || len(fields) != 3 || inside != 0 || count != Size:
		return 0, false, fmt.Errorf("its map is %q, want \"0 FIRST %d\"", text, Size)
	}
	return uint32(outside), true, nil
}
