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
			t.Fatalf("%s: %s exists before Delegate", name, filepath.Join(dir, commands))
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
			t.Errorf("%s: %s is not below the sandbox's %s", name, dir, own[name])
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
			t.Errorf("%s: %s exists after Remove", name, dir)
		}
	}
	if err := unix.Kill(pid, 0); err != nil {
		t.Errorf("removal ended the sandbox's init: %v", err)
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
		t.Fatalf("commands are in %s", d.Dirs[Unified])
	}
	g := group(t, treeOf(t, d), "x")
	left := command(t, g, "sleep")

	_ = init.Process.Kill()
	_ = init.Wait()
	saved := &Delegated{Dirs: maps.Clone(d.Dirs)} // as a restarted host has it
	if err := saved.Remove(bounded(t)); err != nil || exists(top) {
		t.Errorf("Remove after the sandbox's end = %v; %s exists: %v", err, top, exists(top))
	}
	if err := left.Wait(); err == nil {
		t.Error("the process in the stand-in was not killed")
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
			t.Errorf("%s alone: own %v, %v", name, own, err)
		}
		if own, err := h.ownsDir(name, h.mounts[name].point, p); own || err != nil {
			t.Errorf("top of %s: own %v, %v", name, own, err)
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, stranger.Process.Pid), 0); err != nil {
			t.Fatal(err)
		}
		if own, err := h.ownsDir(name, dir, p); own || err != nil {
			t.Errorf("%s with a stranger: own %v, %v", name, own, err)
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
			t.Errorf("ended with %v", h.ProcessState)
		}
	}
	if n, err := other.Alive(); n != 1 || err != nil {
		t.Errorf("%d alive in the other group, %v", n, err)
	}
	if err := errors.Join(other.Kill(bounded(t)), out.Cmd.Process.Release()); err != nil {
		t.Error(err)
	}
	if err := g.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("an empty group: %v", err)
	}
}

func TestMemoryCapKillsAndCounts(t *testing.T) {
	tree, _ := delegated(t, Share{MemoryBytes: 96 << 20})
	quiet, greedy := group(t, tree, "quiet"), group(t, tree, "greedy")
	command(t, quiet, "sleep").line(t, "done")
	h := command(t, greedy, "hog", "1024")
	_ = h.Wait()
	if s := h.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != syscall.SIGKILL {
		t.Errorf("the hog ended with %v", h.ProcessState)
	}
	eventually(t, "the kill is counted", func() bool {
		u, err := greedy.Usage()
		return err == nil && u.OOMKills >= 1 && u.MemoryPeak > 16<<20
	})
	u, err := quiet.Usage()
	if n, _ := quiet.Alive(); n != 1 || u.OOMKills != 0 || err != nil {
		t.Errorf("beside it: %d alive, %+v, %v", n, u, err)
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
		t.Errorf("sockets held %d bytes, the cap is %d", held, most)
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
		t.Errorf("Usage = %+v, %v; want at least 10 forks denied", u, err)
	}
	if n, err := g.Alive(); n < 5 || n > 40 || err != nil {
		t.Errorf("%d alive, %v", n, err)
	}
	denied := u.PidsDenied
	if err := g.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if u, err := g.Usage(); err != nil || u.PidsDenied != denied {
		t.Errorf("after the kill %d denied, before %d, %v", u.PidsDenied, denied, err)
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
		t.Errorf("the whole tree: %+v, %v", whole, err)
	}
}

func TestRemoveSucceedsAfterKill(t *testing.T) {
	tree, _ := delegated(t, Share{})
	g := group(t, tree, "busy")
	command(t, g, "sleep")
	if err := g.remove(0); !errors.Is(err, unix.EBUSY) {
		t.Errorf("got %v", err)
	}
	if err := g.Kill(bounded(t)); err != nil {
		t.Fatal(err)
	}
	dead(t, g)
	if _, err := g.Usage(); err == nil {
		t.Error("usage of a removed group")
	}
	if err := g.Kill(bounded(t)); err != nil {
		t.Errorf("kill of a removed group: %v", err)
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
		t.Errorf("got %v", err)
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
