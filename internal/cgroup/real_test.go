package cgroup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestDelegateIsIdempotentAndRemovable(t *testing.T) {
	init := box(t, everywhere)
	pid := init.Process.Pid
	before, err := Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, dir := range before {
		if exists(filepath.Join(dir, commands)) {
			t.Fatalf("%s: %s exists before Delegate, want it absent", name, filepath.Join(dir, commands))
		}
	}
	share := Share{MemoryBytes: 64 << 20, Pids: 50, CPU: 0.5}
	d, err := Delegate(pid, share)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Delegate(pid, share)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, again); diff != "" {
		t.Errorf("second Delegate differs (-first +second):\n%s", diff)
	}
	own, err := Of(pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, dir := range d.Dirs {
		if !strings.HasPrefix(dir, strings.TrimSuffix(own[name], "/"+guestDir)+"/") || filepath.Base(dir) != commands {
			t.Errorf("%s: commands are in %s, want %s below the sandbox's %s", name, dir, commands, own[name])
		}
	}
	capsAre(t, d, share)
	larger := Share{MemoryBytes: 96 << 20, Pids: 60, CPU: 1}
	if _, err := Delegate(pid, larger); err != nil {
		t.Fatal(err)
	}
	capsAre(t, d, larger)

	g := group(t, treeOf(t, d), "left-behind")
	command(t, g, "sleep")
	saved := &Delegated{Dirs: maps.Clone(d.Dirs)} // as a restarted host has it
	for range 2 {
		if err := saved.Remove(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
	for name, dir := range d.Dirs {
		if exists(dir) {
			t.Errorf("%s: %s exists after Remove, want it absent", name, dir)
		}
	}
	if err := unix.Kill(pid, 0); err != nil {
		t.Errorf("signal to the sandbox's init after Remove = %v, want it alive", err)
	}
}

func capsAre(t *testing.T, d *Delegated, s Share) {
	t.Helper()
	tree := treeOf(t, d)
	for _, x := range tree.dirs {
		want := map[string]string{
			"memory.limit_in_bytes": fmt.Sprint(s.MemoryBytes), "memory.memsw.limit_in_bytes": fmt.Sprint(s.MemoryBytes),
			"memory.max":                     fmt.Sprint(s.MemoryBytes),
			"memory.kmem.tcp.limit_in_bytes": fmt.Sprint(s.MemoryBytes / socketDivisor), "memory.swap.max": "0",
			"pids.max": fmt.Sprint(s.Pids), "cpu.cfs_quota_us": fmt.Sprint(quota(s.CPU)),
			"cpu.max": fmt.Sprintf("%d %d", quota(s.CPU), cpuPeriod),
		}
		for file, value := range want {
			if got, err := x.read(file); err == nil && strings.TrimSpace(got) != value {
				t.Errorf("%s of %s is %q, want %q", file, x.kind, got, value)
			}
		}
	}
}

func TestSandboxWithoutCgroupGetsStandIn(t *testing.T) {
	init := box(t, func(name string) bool { return name != Unified })
	pid := init.Process.Pid
	d, err := Delegate(pid, Share{MemoryBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(bounded(t)); err != nil {
			t.Error(err)
		}
	})
	h, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	if h.Unified == "" {
		t.Logf("this host has no cgroup2 tree, so no stand-in")
		return
	}
	top := filepath.Dir(d.Dirs[Unified])
	if filepath.Dir(top) != h.Unified || !isStandIn(top) {
		t.Fatalf("commands are in %s, want them in a stand-in of %s", d.Dirs[Unified], h.Unified)
	}
	g := group(t, treeOf(t, d), "x")
	left := command(t, g, "sleep")

	_ = init.Process.Kill()
	_ = init.Wait()
	saved := &Delegated{Dirs: maps.Clone(d.Dirs)} // as a restarted host has it
	if err := saved.Remove(bounded(t)); err != nil || exists(top) {
		t.Errorf("Remove after the sandbox's end = %v; %s exists: %v; want no error and it absent", err, top,
			exists(top))
	}
	if err := left.Wait(); err == nil {
		t.Error("the process in the stand-in ended well, want it killed")
	}
}

func TestCgroupWithStrangersIsNotOwned(t *testing.T) {
	init := box(t, everywhere)
	stranger := start(t, nil, "sleep")
	h, err := Detect()
	if err != nil {
		t.Fatal(err)
	}
	p, err := lookUpProcess(init.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	paths, err := h.pathsOf(p.pid)
	if err != nil {
		t.Fatal(err)
	}
	for name, dir := range paths {
		if own, err := h.ownsDir(name, dir, p); !own || err != nil {
			t.Errorf("ownsDir of %s alone = %v, %v; want true", name, own, err)
		}
		if own, err := h.ownsDir(name, h.mounts[name].point, p); own || err != nil {
			t.Errorf("ownsDir of the top of %s = %v, %v; want false", name, own, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, stranger.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
		if own, err := h.ownsDir(name, dir, p); own || err != nil {
			t.Errorf("ownsDir of %s with a stranger = %v, %v; want false", name, own, err)
		}
	}
}

func TestKillEndsForkingProcesses(t *testing.T) {
	tree, _ := delegated(t, Share{Pids: 2000})
	for name, blind := range map[string]bool{"as the host can": false, "without cgroup.kill": true} {
		t.Run(name, func(t *testing.T) {
			g := group(t, tree, fmt.Sprintf("runners-%v", blind))
			command(t, g, "runners", "40").line(t, "done")
			eventually(t, "the runners are there", func() bool {
				n, err := g.Alive()
				return n > 1 && err == nil
			})
			began := time.Now()
			if blind {
				p := g.killSet()
				p.tree = nil
				if err := p.kill(bounded(t)); err != nil {
					t.Fatal(err)
				}
			} else if err := g.Kill(bounded(t)); err != nil {
				t.Fatal(err)
			}
			t.Logf("killed in %v", time.Since(began))
			dead(t, g)
		})
	}
}

func TestKillEndsStoppedTracedAndFrozenProcesses(t *testing.T) {
	tree, d := delegated(t, Share{Pids: 500})
	for _, blind := range []bool{false, true} {
		t.Run(fmt.Sprintf("blind %v", blind), func(t *testing.T) {
			runtime.LockOSThread() // a tracer is a thread
			defer runtime.UnlockOSThread()
			g := group(t, tree, fmt.Sprintf("odd-%v", blind))
			command(t, g, "sleep").line(t, "done")
			if err := g.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			traced := start(t, nil, "sleep")
			if err := g.Add(traced.Process.Pid); err != nil {
				t.Fatal(err)
			}
			if err := unix.PtraceSeize(traced.Process.Pid); err != nil {
				t.Fatal(err)
			}
			if err := unix.PtraceInterrupt(traced.Process.Pid); err != nil {
				t.Fatal(err)
			}
			freeze := filepath.Join(d.Dirs[Unified], g.Name(), "cgroup.freeze")
			if exists(freeze) {
				if err := os.WriteFile(freeze, []byte("1"), 0); err != nil {
					t.Fatal(err)
				}
			}
			p := g.killSet()
			if blind {
				p.tree = nil
			}
			if err := p.kill(bounded(t)); err != nil {
				t.Fatal(err)
			}
			dead(t, g)
		})
	}
}

func TestZombieDoesNotDelayKillOrRemove(t *testing.T) {
	tree, _ := delegated(t, Share{Pids: 500})
	g := group(t, tree, "zombie")
	h := command(t, g, "parent")
	pid := h.line(t, "")
	h.line(t, "done")
	eventually(t, "the child is a zombie", func() bool {
		text, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
		s, pErr := parseStat(string(text))
		return err == nil && pErr == nil && s.state == 'Z'
	})
	if err := g.Kill(bounded(t)); err != nil { // h itself is a zombie until the cleanup waits for it
		t.Fatal(err)
	}
	dead(t, g)
}

func TestSignalReachesOnlyGroup(t *testing.T) {
	tree, _ := delegated(t, Share{})
	g, other := group(t, tree, "a"), group(t, tree, "b")
	in := []*helper{command(t, g, "sleep"), command(t, g, "sleep")}
	out := command(t, other, "sleep")
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for _, h := range in {
		_ = h.Wait()
		if s := h.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGTERM {
			t.Errorf("a process of the group ended with %v, want %v", h.ProcessState, syscall.SIGTERM)
		}
	}
	if n, err := other.Alive(); n != 1 || err != nil {
		t.Errorf("Alive of the other group = %d, %v; want 1", n, err)
	}
	if err := errors.Join(other.Kill(bounded(t)), out.Cmd.Process.Release()); err != nil {
		t.Errorf("end of the other group: %v", err)
	}
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("Signal to an empty group = %v, want no error", err)
	}
}

func TestMemoryCapKillsAndCounts(t *testing.T) {
	tree, _ := delegated(t, Share{MemoryBytes: 96 << 20})
	quiet, greedy := group(t, tree, "quiet"), group(t, tree, "greedy")
	command(t, quiet, "sleep").line(t, "done")
	h := command(t, greedy, "hog", "1024")
	_ = h.Wait()
	if s := h.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
		t.Errorf("the hog ended with %v, want %v", h.ProcessState, syscall.SIGKILL)
	}
	eventually(t, "the kill is counted", func() bool {
		u, err := greedy.Usage()
		return err == nil && u.OOMKills >= 1 && u.MemoryPeak > 16<<20
	})
	u, err := quiet.Usage()
	if n, _ := quiet.Alive(); n != 1 || u.OOMKills != 0 || err != nil {
		t.Errorf("the quiet group has %d alive and usage %+v, %v; want 1 and no OOM kills", n, u, err)
	}
}

// The sockets hold datagrams that are not read: without a cap, many times the limit.
func TestSocketMemoryIsLimited(t *testing.T) {
	const most = 64 << 20
	tree, _ := delegated(t, Share{MemoryBytes: most})
	g := group(t, tree, "sockets")
	h := command(t, g, "sockets", "1000")
	held, err := strconv.ParseInt(h.line(t, ""), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	h.line(t, "done")
	t.Logf("%d bytes were held", held)
	if held > most {
		t.Errorf("the sockets held %d bytes, want at most %d", held, most)
	}
	if err := g.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	dead(t, g)
}

func TestPidsCapStopsForkBomb(t *testing.T) {
	tree, _ := delegated(t, Share{Pids: 40})
	g := group(t, tree, "bomb")
	command(t, g, "bomb").line(t, "done")
	u, err := g.Usage()
	if err != nil || u.PidsDenied < 10 {
		t.Errorf("Usage = %+v, %v; want at least 10 denied pids", u, err)
	}
	if n, err := g.Alive(); n < 5 || n > 40 || err != nil {
		t.Errorf("Alive = %d, %v; want 5 to 40", n, err)
	}
	denied := u.PidsDenied
	if err := g.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if u, err := g.Usage(); err != nil || u.PidsDenied != denied {
		t.Errorf("denied pids after the kill = %d, %v; want %d as before it", u.PidsDenied, err, denied)
	}
	dead(t, g)
}

func TestCPUTimeIsCounted(t *testing.T) {
	tree, _ := delegated(t, Share{})
	g := group(t, tree, "burn")
	command(t, g, "burn", "100").line(t, "done")
	eventually(t, "CPU time", func() bool {
		u, err := g.Usage()
		return err == nil && u.CPUUser+u.CPUSystem > 10*time.Millisecond
	})
	whole, err := tree.Usage()
	if err != nil || whole.CPUUser+whole.CPUSystem < 10*time.Millisecond {
		t.Errorf("Usage of the whole tree = %+v, %v; want at least 10 ms of CPU time", whole, err)
	}
}

func TestRemoveSucceedsAfterKill(t *testing.T) {
	tree, _ := delegated(t, Share{})
	g := group(t, tree, "busy")
	command(t, g, "sleep")
	if err := g.remove(0); !errors.Is(err, unix.EBUSY) {
		t.Errorf("remove of a busy group = %v, want %v", err, unix.EBUSY)
	}
	if err := g.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	dead(t, g)
	if _, err := g.Usage(); err == nil {
		t.Error("Usage of a removed group succeeded, want an error")
	}
	if err := g.Kill(bounded(t)); err != nil {
		t.Errorf("Kill of a removed group = %v, want no error", err)
	}
}

func TestKillEndsWithContext(t *testing.T) {
	tree, _ := delegated(t, Share{})
	g := group(t, tree, "x")
	command(t, g, "sleep")
	why := errors.New("out of patience")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	err := g.Kill(ctx) // nil if it died in time
	if err != nil && !errors.Is(err, why) {
		t.Errorf("Kill with an ended context = %v, want nil or %v", err, why)
	}
}

func TestGuestNeedsOnlyItsCapabilities(t *testing.T) {
	g := boxOf(t, "guest", everywhere)
	g.proceed(t)
	g.line(t, "unshared")
	d, err := Delegate(g.Process.Pid, Share{MemoryBytes: 64 << 20, Pids: 50, CPU: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(bounded(t)); err != nil {
			t.Error(err)
		}
	})
	dirs, err := json.Marshal(d.Dirs)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.in.Write(append(dirs, '\n')); err != nil {
		t.Fatal(err)
	}
	g.line(t, "done")
}
