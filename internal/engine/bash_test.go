package engine

import (
	"sync/atomic"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

func TestMissingBashIsRememberedForItsSandboxOnly(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	id, other := s.lease(t), s.lease(t)
	var starts atomic.Int32
	w.guest(id).refuses(func(op wire.Op) *wire.Failure {
		if op != wire.OpStart {
			return nil
		}
		if starts.Add(1) == 1 {
			return &wire.Failure{Code: wire.NotFound, Field: "argv", Message: "program not found"}
		}
		return nil
	})
	for _, c := range []struct {
		sandbox, shell string
		starts         int32
	}{{id, "sh", 2}, {id, "sh", 3}, {other, "bash", 3}} {
		sh, err := s.StartShell(t.Context(), me, c.sandbox, v1.ShellRequest{Exec: v1.Exec{Command: "true"}})
		if err != nil {
			t.Fatal(err)
		}
		if sh.Argv[0] != c.shell || starts.Load() != c.starts {
			t.Errorf("shell of %s is %q after %d starts, want %q after %d",
				c.sandbox, sh.Argv[0], starts.Load(), c.shell, c.starts)
		}
	}
}
