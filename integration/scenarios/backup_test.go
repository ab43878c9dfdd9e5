//go:build integration

package scenarios

import (
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// A backup of a busy service is restored over a later state: tokens and the audit log are whole,
// and the next start serves calls.
func TestBackupAndRestore(t *testing.T) {
	s := harness.Run(t, harness.Options{Runtime: "oci", Seed: &seed})
	kept, err := s.Client.Tokens.Create(within(t), v1.TokenRequest{Caller: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var work sync.WaitGroup
	for range 2 {
		work.Go(func() {
			for !stop.Load() {
				if got := s.CLI(t, "tool", "call", "system.bash", "command=true"); got.Code != 0 {
					t.Errorf("call during a backup = code %d, %s", got.Code, got.Stderr)
				}
			}
		})
	}
	file := filepath.Join(t.TempDir(), "backup.tar.gz")
	wantCLI(t, s, 0, "not included:", "backup", file)
	stop.Store(true)
	work.Wait()
	wantCLI(t, s, 73, "exists", "backup", file)
	wantCLI(t, s, 78, "systemctl stop orchestrator", "restore", file)
	if _, err := s.Client.Tokens.Revoke(within(t), kept.ID); err != nil {
		t.Fatal(err)
	}
	s.Term()
	wantCLI(t, s, 73, "give --replace", "restore", file)
	wantCLI(t, s, 0, "earlier records:", "restore", "--replace", file)
	wantCLI(t, s, 0, "", "audit", "verify", "--dir", s.Dir())
	s.Start()
	list, err := s.Client.Tokens.List(within(t))
	if err != nil || len(list) != 1 || list[0].RevokedAt != nil {
		t.Errorf("tokens after the restore = %+v, %v; want the one of before, valid", list, err)
	}
	wantCLI(t, s, 0, "", "tool", "call", "system.bash", "command=true")
	wantCLI(t, s, 0, "", "audit", "verify")
}

func wantCLI(t *testing.T, s *harness.Server, code int, text string, args ...string) {
	t.Helper()
	got := s.CLI(t, args...)
	if got.Code != code || !strings.Contains(got.Stdout+got.Stderr, text) {
		t.Errorf("%v = code %d, %s%s; want code %d with %q", args, got.Code, got.Stdout, got.Stderr, code, text)
	}
}
