package runtimetest

import (
	"context"
	"testing"
	"time"

	"orchestrator/internal/guest"
	"orchestrator/internal/guest/wire"
	"orchestrator/runtime"
)

// commandCgroup: whatever commands use up, the guest answers, and the next command works once they are gone.
func commandCgroup(t *testing.T, s *suite) {
	b := s.make(t, nil)
	if pong := b.well(t); pong.Kill != "cgroup" {
		t.Errorf("commands are killed by %q", pong.Kill)
	}
	control := answers(t, b, time.Second)
	t.Logf("slowest ping in a quiet sandbox: %s", control)
	for name, cmd := range map[string]wire.Command{
		"pids":    python("runaway", "bomb"),
		"threads": python("runaway", "threads"),
		"memory":  python("flood", "memory"),
		"cpu":     bash("for i in {1..50}; do while :; do :; done & done; wait"),
		"signals": python("guest"),
		"output":  bash("yes & yes & yes >&2"),
	} {
		t.Run(name, func(t *testing.T) {
			cmd.Timeout = 4 * time.Second
			r := b.begin(t, cmd, guest.IO{Stdout: &capped{}})
			slowest := answers(t, b, 3*time.Second)
			t.Logf("slowest ping: %s, in a quiet sandbox %s", slowest, control)
			if slowest > AnswerTime {
				t.Errorf("a ping took %s", slowest)
			}
			if o := r.end(t); o.Unclean || o.Ending == runtime.SandboxLost {
				t.Errorf("the ending is %v", o)
			}
			b.dead(t, runtime.CommandUID)
			b.want(t, "true | true")
		})
	}
	t.Run("tmpfs", func(t *testing.T) {
		o := b.run(t, python("flood", "tmpfs", "/tmp", "/home/user", "/workspace", "/dev/shm", "keep"))
		if slowest := answers(t, b, time.Second); slowest > AnswerTime {
			t.Errorf("with %s full a ping took %s", o.stdout, slowest)
		}
		b.want(t, "rm /tmp/flood /home/user/flood /workspace/flood /dev/shm/flood && echo x >/tmp/x")
	})
}

// answers pings for a while, and says how long the slowest answer took. The first of each sandbox may be on a stream that has to be made.
func answers(t *testing.T, b *box, during time.Duration) time.Duration {
	t.Helper()
	var slowest time.Duration
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for end := time.Now().Add(during); time.Now().Before(end); {
		began := time.Now()
		if _, err := b.Ping(ctx); err != nil {
			t.Fatalf("the guest does not answer: %v", err)
		}
		slowest = max(slowest, time.Since(began))
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return slowest
}

// noCommandCgroup: the guest says itself that it has none.
func noCommandCgroup(t *testing.T, s *suite) {
	if pong := s.plain.well(t); pong.Kill != "tag" {
		t.Errorf("commands are killed by %q", pong.Kill)
	}
}
