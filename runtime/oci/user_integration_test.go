//go:build integration

package oci

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// userLimits uses up or tries what the kernel limits for each user.
//
//go:embed testdata/userlimits.py
var userLimits string

// makeUser creates a sandbox, in a user namespace if own is set.
func (b bench) makeUser(tb testing.TB, own bool) *ocidriver.Sandbox {
	tb.Helper()
	spec := specFor(tb)
	spec.UserNamespace = own
	s, err := b.Create(tb.Context(), spec)
	if err != nil {
		tb.Fatal(err)
	}
	return s.(*ocidriver.Sandbox)
}

// python returns a shell line that runs a program with an argument.
func python(program, arg, redirect string) string {
	return "python3 -c \"$(cat <<'EOF'\n" + program + "\nEOF\n)\" " + arg + " " + redirect
}

// TestUserLimits shows the attack that user namespaces end: one sandbox uses up what the kernel
// grants a user, and another one finds nothing left.
func TestUserLimits(t *testing.T) {
	for name, c := range map[string]struct {
		own  bool
		want string
	}{
		"shared without user namespaces": {false, "inotify no, signals no, pipes no, descriptors no\n"},
		"separate with user namespaces":  {true, "inotify yes, signals yes, pipes yes, descriptors yes\n"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			attacker, victim := b.makeUser(t, c.own), b.makeUser(t, c.own)
			before := sh(t, victim, 1000, python(userLimits, "try", ""))
			if want := "inotify yes, signals yes, pipes yes, descriptors yes\n"; before.Output != want {
				t.Fatalf("limits before the attack = %q, want %q", before.Output, want)
			}
			sh(t, attacker, 1000, python(userLimits, "hold", ">/tmp/out 2>&1 </dev/null &"))
			held := sh(t, attacker, 1000,
				"for i in $(seq 600); do grep -q held /tmp/out && break; sleep 0.05; done; cat /tmp/out")
			if held.Output != "held\n" {
				t.Fatalf("the attack says %q, want held", held.Output)
			}
			if got := sh(t, victim, 1000, python(userLimits, "try", "2>&1")); got.Output != c.want {
				t.Errorf("limits of the other sandbox during the attack = %q, want %q", got.Output, c.want)
			}
		})
	}
}

// idsOf returns the first id of a sandbox's range, as the kernel says it.
func idsOf(tb testing.TB, pid int) uint32 {
	tb.Helper()
	n, err := userns.Of(pid)
	if err != nil || n == nil {
		tb.Fatalf("user namespace of process %d = %v, %v; want its own", pid, n, err)
	}
	defer n.Close()
	return n.First
}

func TestUserNamespaceIsOwnAndSurvivesRestart(t *testing.T) {
	b := newBench(t)
	one, two := b.makeUser(t, true), b.makeUser(t, true)
	first, second := idsOf(t, one.Init.Pid), idsOf(t, two.Init.Pid)
	if first == second {
		t.Errorf("both sandboxes have the ids from %d on, want different ones", first)
	}
	if err := one.Release(); err != nil {
		t.Fatal(err)
	}
	after := b.another(t)
	defer after.Close()
	s, err := after.Adopt(t.Context(), one.ID())
	if err != nil {
		t.Fatal(err)
	}
	adopted := s.(*ocidriver.Sandbox)
	if got := idsOf(t, adopted.Init.Pid); got != first {
		t.Errorf("ids of the adopted sandbox = %d, want still %d", got, first)
	}
	dir := filepath.Join(t.TempDir(), "workspace")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	if err := s.Bind(t.Context(), runtime.Binding{Source: dir}); err != nil {
		t.Fatal(err)
	}
	got := sh(t, s, 1000, "echo x >/workspace/file; stat -c %u:%g /workspace/file /usr/bin/env")
	if got.Output != "1000:1000\n0:0\n" {
		t.Errorf("owners inside = %+v, want those on disk", got)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dir, "file"), &st); err != nil || st.Uid != 1000 || st.Gid != 1000 {
		t.Errorf("owner on the host = %d:%d, %v; want 1000:1000", st.Uid, st.Gid, err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b.Driver.ids.Holds(first, b.bundle(one.ID())) {
		t.Errorf("ids from %d on are still claimed, want them returned", first)
	}
}

func TestUserNamespaceTrialLeavesNothing(t *testing.T) {
	b := newBench(t)
	if err := b.CheckUserNamespace(t.Context(), runtime.ClassContainer); err != nil {
		t.Fatal(err)
	}
	b.wantNothingLeft(t)
	if err := b.CheckUserNamespace(t.Context(), runtime.ClassGVisor); err == nil {
		t.Error("CheckUserNamespace(gvisor) = nil, want why not")
	}
}

// claimsBelow returns the ranges that sandboxes below a directory have, existing or not.
func claimsBelow(tb testing.TB, state string) []string {
	tb.Helper()
	entries, err := os.ReadDir(userns.DefaultDir)
	if err != nil && !os.IsNotExist(err) {
		tb.Fatal(err)
	}
	var claims []string
	for _, e := range entries {
		holder, err := os.Readlink(filepath.Join(userns.DefaultDir, e.Name()))
		if err == nil && strings.HasPrefix(holder, state+"/") {
			claims = append(claims, e.Name())
		}
	}
	return claims
}

// BenchmarkUserNamespace compares creating and removing sandboxes, one of each kind in turn, by
// medians.
func BenchmarkUserNamespace(b *testing.B) {
	bench := newBench(b)
	created, removed := map[bool][]time.Duration{}, map[bool][]time.Duration{}
	for b.Loop() {
		for _, own := range []bool{false, true} {
			start := time.Now()
			s := bench.makeUser(b, own)
			made := time.Now()
			if err := s.Destroy(context.Background()); err != nil {
				b.Fatal(err)
			}
			created[own] = append(created[own], made.Sub(start))
			removed[own] = append(removed[own], time.Since(made))
		}
	}
	for what, times := range map[string]map[bool][]time.Duration{"create": created, "remove": removed} {
		for own, list := range times {
			slices.Sort(list)
			b.ReportMetric(float64(list[len(list)/2].Microseconds())/1000, fmt.Sprintf("ms/%s-own=%v", what, own))
		}
	}
}
