package runtimetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// checkCommandCgroup checks that the guest answers whatever commands use up, and that the next
// command works after they end.
func checkCommandCgroup(t *testing.T, s *suite) {
	t.Helper()
	b := s.newSandbox(t, nil)
	if pong := b.mustPing(t); pong.Kill != "cgroup" {
		t.Errorf("kill method = %q, want %q", pong.Kill, "cgroup")
	}
	t.Logf("pings in an idle sandbox: %s", pingLatency(t, b, time.Second))
	for name, cmd := range map[string]wire.Command{
		"pids":    python("runaway", "bomb"),
		"threads": python("runaway", "threads"),
		"memory":  python("flood", "memory"),
		"cpu":     bash("for i in {1..50}; do while :; do :; done & done; wait"),
		"signals": python("guest"),
		"output":  bash("yes & yes & yes >&2"),
	} {
		t.Run(name, func(t *testing.T) {
			cmd.Timeout = 2 * time.Second
			r := b.startCommand(t, cmd, guest.IO{Stdout: &capped{}})
			took := pingLatency(t, b, 1700*time.Millisecond)
			t.Logf("pings: %s", took)
			if took.median > AnswerTime {
				t.Errorf("pings: %s; want a median of at most %s", took, AnswerTime)
			}
			if o := r.waitResult(t); o.Unclean || o.Ending == runtime.SandboxLost {
				t.Errorf("ending = %v; want a clean one, not %s", o, runtime.SandboxLost)
			}
			b.checkDead(t, runtime.CommandUID)
			b.mustOutput(t, "true | true")
		})
	}
	t.Run("spools", func(t *testing.T) { checkOutputBuffers(t, b) })
	t.Run("tmpfs", func(t *testing.T) {
		o := b.runCommand(t, python("flood", "tmpfs", "/tmp", "/home/user", "/workspace", "/dev/shm", "keep"))
		if took := pingLatency(t, b, time.Second); took.median > AnswerTime {
			t.Errorf("pings with %s full: %s; want a median of at most %s", o.stdout, took, AnswerTime)
		}
		b.mustOutput(t, "rm /tmp/flood /home/user/flood /workspace/flood /dev/shm/flood && echo x >/tmp/x")
	})
}

// checkOutputBuffers checks that many shells that nothing reads from, each with the largest output
// buffer, do not make the guest grow with their number. RSS includes the guest's program text,
// which does not count toward its memory reserve.
func checkOutputBuffers(t *testing.T, b *box) {
	t.Helper()
	const shells = 12
	for i := range shells {
		cmd := bash("yes | head -c 30M; yes | head -c 30M >&2; sleep 1000")
		cmd.ID, cmd.Spool = fmt.Sprintf("spool-%d", i), wire.SpoolTotal
		if _, err := b.Start(t.Context(), cmd); err != nil {
			// The guest may refuse to buffer more.
			t.Logf("shell %d: %v", i, err)
		}
	}
	var most int64
	all, err := b.Shells(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sh := range all {
		eventually(t, "shell "+sh.ID+" has written", func() (bool, string) {
			most = max(most, b.mustPing(t).RSSBytes)
			now, err := b.Shell(t.Context(), sh.ID)
			return err == nil && now.Stderr.End == 30<<20, fmt.Sprintf("%+v, %v", now, err)
		})
	}
	t.Logf("%d shells with %d MiB each: guest RSS at most %d KiB", len(all), 60, most>>10)
	if most > runtime.GuestReserveBytes*3/2 {
		t.Errorf("guest RSS = %d bytes, want at most one and a half times the reserve of %d", most, runtime.GuestReserveBytes)
	}
	for _, sh := range all {
		if _, err := b.Kill(t.Context(), wire.Kill{ID: sh.ID}); err != nil {
			t.Error(err)
		}
		if err := b.Forget(t.Context(), sh.ID); err != nil {
			t.Error(err)
		}
	}
	b.checkDead(t, runtime.CommandUID)
}

// latency summarises how long pings took.
type latency struct {
	median, slowest time.Duration
	count           int
}

func (l latency) String() string {
	return fmt.Sprintf("half of %d within %s, all within %s", l.count, l.median, l.slowest)
}

// pingLatency pings for the given time and returns the latency. Every ping must be answered; the
// caller judges the speed.
func pingLatency(t *testing.T, b *box, during time.Duration) latency {
	t.Helper()
	var all []time.Duration
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for end := time.Now().Add(during); len(all) == 0 || time.Now().Before(end); {
		began := time.Now()
		if _, err := b.Ping(ctx); err != nil {
			t.Fatalf("ping guest: %v", err)
		}
		all = append(all, time.Since(began))
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	slices.Sort(all)
	return latency{median: all[len(all)/2], slowest: all[len(all)-1], count: len(all)}
}

// checkNoCommandCgroup checks that the guest reports that it kills without cgroups.
func checkNoCommandCgroup(t *testing.T, s *suite) {
	t.Helper()
	if pong := s.plain.mustPing(t); pong.Kill != "tag" {
		t.Errorf("kill method = %q, want %q", pong.Kill, "tag")
	}
}
