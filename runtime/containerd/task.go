package containerd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
)

const (
	// taskTime is how long the daemon and the shim may take to notice that a process is dead,
	// before the shim is killed.
	taskTime = 3 * time.Second
	// shimPrefix starts the names of shim programs.
	shimPrefix = "containerd-shim-"
)

// deleteTask deletes the task of a sandbox whose processes are dead. The daemon may notice their
// end a moment after we do.
func (d *Driver) deleteTask(ctx context.Context, id string) error {
	patience := time.Now().Add(taskTime)
	for {
		// A shim that hangs makes the daemon wait forever.
		short, cancel := context.WithTimeout(ctx, taskTime)
		_, err := d.api.TaskService().Delete(short, &tasks.DeleteTaskRequest{ContainerID: id})
		cancel()
		if err = said(ctx, err); err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if ctx.Err() != nil || errdefs.IsUnavailable(err) && !d.answers(ctx) {
			return fmt.Errorf("delete task: %w", err)
		}
		if time.Now().After(patience) {
			// The shim hangs, or is gone without the daemon's knowledge. Without a shim the daemon
			// cleans up.
			d.Log.Debug("the task is not deleted, its shim is killed", "sandbox", id, "error", err)
			if err := d.endShims(ctx, id); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("delete task: %w: %w", context.Cause(ctx), err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// answers reports whether the daemon answers: a task's error can come from its shim, which is
// Unavailable too.
func (d *Driver) answers(ctx context.Context) bool {
	_, err := d.api.Version(ctx)
	return err == nil
}

// shimsOf returns the pids of the shims that containerd started for a sandbox. A command inside can
// take the same name, but it is in other namespaces.
func (d *Driver) shimsOf(id string) []int {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, p := range procs {
		if pid, err := strconv.Atoi(p.Name()); err == nil && pid > 1 && d.isShim(pid, id) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (d *Driver) isShim(pid int, id string) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	text, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return false
	}
	args := strings.Split(string(bytes.TrimRight(text, "\x00")), "\x00")
	if !strings.HasPrefix(filepath.Base(args[0]), shimPrefix) || !option(args, "-id", id) ||
		!option(args, "-namespace", d.namespace) {
		return false
	}
	for _, ns := range []string{"mnt", "pid"} {
		own, err1 := os.Readlink("/proc/self/ns/" + ns)
		other, err2 := os.Readlink(filepath.Join(dir, "ns", ns))
		if err1 != nil || err2 != nil || own != other {
			return false
		}
	}
	var st unix.Stat_t
	return unix.Stat(dir, &st) == nil && st.Uid == 0
}

// option reports whether the arguments contain an option with this value.
func option(args []string, name, value string) bool {
	i := slices.Index(args, name)
	return i >= 0 && i+1 < len(args) && args[i+1] == value
}

// endShims kills the shims of a sandbox and waits until they are dead.
func (d *Driver) endShims(ctx context.Context, id string) error {
	for _, pid := range d.shimsOf(id) {
		p, err := ocidriver.Open(pid)
		if err != nil {
			continue // dead by now, or the check for leftovers reports it
		}
		if d.isShim(pid, id) {
			if err = p.Kill(); err == nil {
				err = p.Wait(ctx)
			}
		}
		p.Close()
		if err != nil {
			return fmt.Errorf("shim %d: %w", pid, err)
		}
	}
	return nil
}

// bundleMounts returns the mount points of a sandbox's roots, which shims mounted:
// STATE/…/NAMESPACE/ID/rootfs.
func (d *Driver) bundleMounts(id string) []string {
	suffix := "/" + filepath.Join(d.namespace, id, bundleRoot)
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip,
		stop bool) {
		return !strings.HasSuffix(m.Mountpoint, suffix), false
	})
	if err != nil {
		return nil
	}
	var points []string
	for _, m := range mounts {
		if !slices.Contains(points, m.Mountpoint) {
			points = append(points, m.Mountpoint)
		}
	}
	return points
}
