package cli

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

func TestFindServerWithoutServer(t *testing.T) {
	dir := t.TempDir()
	a := &App{Lookup: func(string) (string, bool) { return "", false }}
	c := config.Config{StateDir: dir, Listen: "unix:" + filepath.Join(dir, "sock")}
	if cl, err := a.findServer(t.Context(), c, true); cl != nil || err != nil {
		t.Errorf("findServer where a server is optional = %v, %v; want nil, nil", cl, err)
	}
	cl, err := a.findServer(t.Context(), c, false)
	if e, ok := errors.AsType[*client.NoServerError](err); cl != nil || !ok || e.Err == nil {
		t.Errorf("findServer where a server is required = %v, %v; want a NoServerError with its cause", cl, err)
	}
	if code := ExitCode(err); code != ExitUnavailable {
		t.Errorf("ExitCode(%v) = %d, want %d", err, code, ExitUnavailable)
	}
}
