package governed

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// unused is Sandboxes under a name that differs from its method Sandboxes.
type unused interface{ Sandboxes }

// loudSandboxes runs commands that write 1000 bytes to each stream and end with err.
type loudSandboxes struct {
	unused
	err error
}

func (s loudSandboxes) ExecIn(
	_ context.Context, _ *scheduler.Lease, _ string, _ v1.Exec, st core.Stream, _ func(*wire.Command),
) (v1.ExecResult, error) {
	for _, w := range []io.Writer{st.Stdout, st.Stderr} {
		if _, err := io.WriteString(w, strings.Repeat("x", 1000)); err != nil {
			return v1.ExecResult{}, err
		}
	}
	return v1.ExecResult{}, s.err
}

func newRunner(tb testing.TB, err error) *runner {
	tb.Helper()
	o, openErr := openOutputs(tb.TempDir())
	if openErr != nil {
		tb.Fatal(openErr)
	}
	log := slog.New(slog.DiscardHandler)
	return &runner{
		transaction: &transaction{
			s:         &Service{opts: Options{Sandboxes: loudSandboxes{err: err}}, log: log, outputs: o},
			principal: caller.Principal{Caller: "ann"},
			id:        uuid.Must(uuid.NewV7()).String(),
			profile:   &profile.Compiled{},
		},
		caps: tool.Caps{Output: tool.Cut{Limit: 10}},
	}
}

// openFiles returns how many files below dir this process has open.
func openFiles(tb testing.TB, dir string) (n int) {
	tb.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range all {
		if path, err := os.Readlink(filepath.Join("/proc/self/fd", f.Name())); err == nil && strings.HasPrefix(path, dir) {
			n++
		}
	}
	return n
}

func TestExecClosesKeptOutputs(t *testing.T) {
	for _, failure := range []error{nil, errors.New("lost")} {
		b := newRunner(t, failure)
		_, rest, err := b.Exec(t.Context(), v1.Exec{})
		if !errors.Is(err, failure) || (rest == b.id) != (failure == nil) {
			t.Errorf("Exec() = rest %q, %v, want the error %v", rest, err, failure)
		}
		if n := openFiles(t, b.s.outputs.dir); n != 0 {
			t.Errorf("%d kept outputs are open after error %v, want 0", n, failure)
		}
	}
}

func TestFailureToKeepOutputIsNotTheCommandsError(t *testing.T) {
	lost := errdefs.ErrUnavailable
	b := newRunner(t, lost)
	b.s.outputs.bytes = keptAll
	if _, _, err := b.Exec(t.Context(), v1.Exec{}); !errdefs.IsUnavailable(err) || errdefs.IsResourceExhausted(err) {
		t.Errorf("Exec() = %v, want only %v", err, lost)
	}
}
