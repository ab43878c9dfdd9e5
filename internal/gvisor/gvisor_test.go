package gvisor

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeRunsc writes a program that answers --version and flags like runsc.
func fakeRunsc(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "runsc")
	script := `#!/bin/sh
case $1 in
--version) echo "runsc version release-1"; echo "spec: 1" ;;
flags) cat <<'END'
  -host-uds value
  -network value
  -oci-seccomp
  -overlay2 value
  -platform string
    	specifies which platform to use: systrap (default), ptrace, kvm.
END
esac
`
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func search(t *testing.T, try func(p *Program) error) *Search {
	t.Helper()
	return &Search{
		Driver: "test", Memo: Memo{File: filepath.Join(t.TempDir(), "memo.json")}, Log: slog.New(slog.DiscardHandler),
		Try: func(_ context.Context, p *Program, _ time.Duration) error { return try(p) },
	}
}

func TestFindRemembersThePlatformThatWorks(t *testing.T) {
	name := fakeRunsc(t)
	var tried []string
	s := search(t, func(p *Program) error {
		tried = append(tried, p.Platform)
		if len(tried) == 1 {
			return errors.New("no such device")
		}
		return nil
	})
	first, err := s.Find(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if len(tried) != 2 || first.Platform != tried[1] || first.Release != "runsc version release-1" {
		t.Errorf("Find = %+v after trials %v, want the second platform", first, tried)
	}
	again, err := s.Find(t.Context(), name)
	if err != nil || len(tried) != 2 {
		t.Fatalf("second Find: %v after trials %v, want the remembered program", err, tried)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("remembered program differs (-want +got):\n%s", diff)
	}
	s.Scope = "another daemon"
	if _, err := s.Find(t.Context(), name); err != nil || len(tried) != 3 {
		t.Errorf("Find in another scope: %v after trials %v, want a new trial", err, tried)
	}
}

func TestFindNamesEveryFailedPlatform(t *testing.T) {
	name, trials := fakeRunsc(t), 0
	s := search(t, func(p *Program) error { trials++; return errors.New("broken " + p.Platform) })
	_, err := s.Find(t.Context(), name)
	if !errdefs.IsFailedPrecondition(err) || trials < 2 || strings.Count(err.Error(), "broken ") != trials {
		t.Errorf("Find = %v after %d trials, want FailedPrecondition that names each", err, trials)
	}
	if _, err := s.Find(t.Context(), name); err == nil || trials < 4 {
		t.Errorf("a failure was remembered: %v after %d trials", err, trials)
	}
}

func TestFindStopsWhenTheEngineIsDown(t *testing.T) {
	trials := 0
	s := search(t, func(*Program) error { trials++; return errdefs.ErrUnavailable })
	s.Down = func(_ context.Context, err error) bool { return errdefs.IsUnavailable(err) }
	if _, err := s.Find(t.Context(), fakeRunsc(t)); !errdefs.IsUnavailable(err) || trials != 1 {
		t.Errorf("Find = %v after %d trials, want Unavailable after 1", err, trials)
	}
}

func TestLookNamesTheMissingProgram(t *testing.T) {
	if _, err := Look("test", "/no/such/runsc"); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "/no/such/runsc is not found") {
		t.Errorf("Look = %v, want FailedPrecondition that names the program", err)
	}
}

func TestOnceRepeatsUnavailable(t *testing.T) {
	var o Once[int]
	answers := []error{errdefs.ErrUnavailable, nil, errors.New("a third call")}
	for i, want := range []error{errdefs.ErrUnavailable, nil, nil} {
		if _, err := o.Do(func() (int, error) { err := answers[0]; answers = answers[1:]; return 1, err }); !errors.Is(err,
			want) {
			t.Errorf("call %d: %v, want %v", i+1, err, want)
		}
	}
}

func TestMemoIgnoresDamage(t *testing.T) {
	m := Memo{File: filepath.Join(t.TempDir(), "memo.json")}
	var got string
	if m.Load("key", &got) {
		t.Error("Load of a missing file = true")
	}
	if err := m.Save("key", "found"); err != nil {
		t.Fatal(err)
	}
	if !m.Load("key", &got) || got != "found" || m.Load("other", &got) {
		t.Errorf("Load = %q under its key, or found under another", got)
	}
	if err := os.WriteFile(m.File, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if m.Load("key", &got) {
		t.Error("Load of a damaged file = true")
	}
}
