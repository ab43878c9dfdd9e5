//go:build integration

package scenarios

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// quota is what a workspace holds here.
const quota = onDemand + `
workspaces: {quota: 16MiB}
`

func overlay(t *testing.T, s *harness.Server, workspace string) string {
	t.Helper()
	return lease(t, s, v1.SandboxRequest{Workspace: workspace, Mode: "overlay"}).ID
}

func commitAll(t *testing.T, s *harness.Server, id string, paths ...string) (v1.Commit, error) {
	t.Helper()
	return s.Client.CommitOverlay(within(t), id, v1.CommitRequest{Paths: paths, End: true})
}

func paths(d v1.Diff) []string {
	var out []string
	for _, c := range d.Changes {
		out = append(out, c.Kind+" "+c.Path)
	}
	return out
}

// Three leases write to one workspace at once. What two of them did is
// committed; the third is told what is in its way, and by whom.
func TestThreeOverlaysOnOneWorkspace(t *testing.T) {
	t.Parallel()
	onServerOfAll(t, onDemand, func(t *testing.T, s *harness.Server) {
		name := workspace(t, s)
		files := s.Client.WorkspaceFiles(name)
		put(t, files, "a.txt", "base\n")
		put(t, files, "b.txt", "base\n")
		put(t, files, "old/c.txt", "base\n")
		one, two, three := overlay(t, s, name), overlay(t, s, name), overlay(t, s, name)
		sh(t, s, one, "echo one > a.txt; rm -r old; mkdir old; echo one > old/new.txt")
		sh(t, s, two, "echo two > b.txt; mkfifo fifo; echo x > s; chmod 6755 s; ln -s /etc/shadow link")
		sh(t, s, three, "echo three > a.txt; echo three > mine.txt; rm b.txt")
		if got := sh(t, s, one, "cat a.txt b.txt; ls old") + sh(t, s, three, "cat a.txt; ls"); got != "one\nbase\nnew.txt\nthree\na.txt\nmine.txt\nold\n" {
			t.Errorf("they see %q", got)
		}
		if _, err := s.Client.CreateSandbox(within(t), v1.SandboxRequest{Workspace: name}); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "overlay of sandbox") {
			t.Errorf("one that writes below them: %v", err)
		}
		d, err := s.Client.DiffOverlay(within(t), one, true)
		if err != nil || !d.Overlay.Live || !slices.Equal(paths(d), []string{"changed a.txt", "removed old/c.txt", "added old/new.txt"}) {
			t.Errorf("%+v %v", d, err)
		}
		if err == nil {
			contains(t, d.Changes[0].Diff, "-base\n+one\n")
		}
		if _, err := s.Client.CommitOverlay(within(t), one, v1.CommitRequest{}); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), one) {
			t.Errorf("commit of a live one: %v", err)
		}
		if _, err := commitAll(t, s, one); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, s, two, "cat a.txt old/c.txt"); got != "base\nbase\n" {
			t.Errorf("a commit is seen beside it: %q", got)
		}
		if c, err := commitAll(t, s, two); err != nil || !slices.Equal(c.Paths, []string{"b.txt", "link", "s"}) || !slices.Equal(c.Dropped, []string{"fifo"}) {
			t.Errorf("%+v %v", c, err)
		}
		_, err = commitAll(t, s, three)
		if !errdefs.IsFailedPrecondition(err) {
			t.Fatalf("the third: %v", err)
		}
		for _, part := range []string{"a.txt was changed by overlay " + one, "b.txt was changed by overlay " + two} {
			contains(t, err.Error(), part)
		}
		if strings.Contains(err.Error(), "mine.txt") {
			t.Errorf("%v", err)
		}
		if _, err := commitAll(t, s, three, "mine.txt", "none.txt"); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "none.txt") {
			t.Errorf("a path that it did not change: %v", err)
		}
		if c, err := commitAll(t, s, three, "mine.txt"); err != nil || c.Left != 2 {
			t.Errorf("%+v %v", c, err)
		}
		id := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
		if got := sh(t, s, id, "cat a.txt b.txt mine.txt; ls; ls old; stat -c '%a %u' s; readlink link"); got != "one\ntwo\nthree\na.txt\nb.txt\nlink\nmine.txt\nold\ns\nnew.txt\n755 1000\n/etc/shadow\n" {
			t.Errorf("%q", got)
		}
		release(t, s, id)
		if err := s.Client.DiscardOverlay(within(t), three, false); err != nil {
			t.Error(err)
		}
		if list, err := s.Client.Overlays(within(t), name); err != nil || len(list) != 0 {
			t.Errorf("%+v %v", list, err)
		}
	})
}

// What a command tries in an overlay to reach past it.
func TestOverlaysContainHostileCommands(t *testing.T) {
	t.Parallel()
	onServerOfAll(t, quota, func(t *testing.T, s *harness.Server) {
		name := workspace(t, s)
		put(t, s.Client.WorkspaceFiles(name), "a.txt", "base\n")
		id := overlay(t, s, name)
		for _, attribute := range []string{"trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.opaque"} {
			r := exec(t, s, id, v1.Exec{Argv: []string{"python3", "-c", "import os, sys\nos.makedirs('d', exist_ok=True)\nos.setxattr('d', sys.argv[1], b'y')", attribute}})
			if r.ExitCode == 0 && !strings.HasPrefix(attribute, "user.") {
				t.Errorf("%s can be set", attribute)
			}
		}
		for _, command := range []string{"mknod w c 0 0", "mknod n c 1 3", "python3 -c 'import os; os.mknod(\"w\", 0o20644, 0)'", "mount -o remount,suid /workspace", "umount /workspace"} {
			if r := exec(t, s, id, v1.Exec{Command: command}); r.ExitCode == 0 {
				t.Errorf("%s: %+v", command, r)
			}
		}
		if got := sh(t, s, id, "grep ' /workspace ' /proc/self/mountinfo | tail -1"); strings.Contains(got, s.Dir()) || !strings.Contains(got, "nosuid") || !strings.Contains(got, "nodev") {
			t.Errorf("it sees %s", got)
		}
		sh(t, s, id, "cp /bin/true t; chmod 4755 t; rm -rf d; printf 'x' > \"$(printf 'new\\nline\\377')\"")
		r := exec(t, s, id, v1.Exec{Command: "dd if=/dev/zero of=big bs=1M count=64"})
		if r.ExitCode == 0 || !strings.Contains(r.Stderr, "No space left") {
			t.Errorf("64 MiB into 16: %+v", r)
		}
		sh(t, s, id, "rm big")
		d, err := s.Client.DiffOverlay(within(t), id, true)
		if err != nil || len(d.Changes) != 2 || d.Changes[0].PathBase64 == "" || d.Changes[1].Path != "t" || !d.Changes[1].Binary {
			t.Errorf("%+v %v", d, err)
		}
		if c, err := commitAll(t, s, id); err != nil || len(c.Paths) != 2 {
			t.Errorf("%+v %v", c, err)
		}
		f, err := s.Client.WorkspaceFiles(name).Stat(within(t), "t")
		if err != nil || f.Mode != "0755" {
			t.Errorf("%+v %v", f, err)
		}
	})
}

// A kill of the service between lease and commit loses nothing.
func TestOverlaysSurviveServerRestart(t *testing.T) {
	t.Parallel()
	eachOfAll(t, func(t *testing.T, runtime string) {
		s := harness.Run(t, harness.Options{Runtime: runtime, Config: onDemand, Seed: &seed})
		name := workspace(t, s)
		put(t, s.Client.WorkspaceFiles(name), "a.txt", "base\n")
		live, over := overlay(t, s, name), overlay(t, s, name)
		sh(t, s, live, "echo live > live.txt")
		sh(t, s, over, "echo over > over.txt")
		release(t, s, over)
		s.Kill9()
		s.Start()
		if got := sh(t, s, live, "echo more >> live.txt; cat live.txt a.txt; ls"); got != "live\nmore\nbase\na.txt\nlive.txt\n" {
			t.Errorf("after a kill: %q", got)
		}
		for _, id := range []string{live, over} {
			if _, err := commitAll(t, s, id); err != nil {
				t.Error(err)
			}
		}
		files := s.Client.WorkspaceFiles(name)
		if got := get(t, files, "live.txt") + get(t, files, "over.txt"); got != "live\nmore\nover\n" {
			t.Errorf("%q", got)
		}
		snapshot, err := s.Client.Snapshot(within(t), name, "before")
		if err != nil {
			t.Fatal(err)
		}
		put(t, files, "a.txt", "spoilt\n")
		if _, err := s.Client.Restore(within(t), name, "before"); err != nil {
			t.Error(err)
		}
		if got := get(t, files, "a.txt"); got != "base\n" {
			t.Errorf("restored %q", got)
		}
		if err := s.Client.RemoveSnapshot(within(t), name, snapshot.ID); err != nil {
			t.Error(err)
		}
	})
}

// A run keeps what it changed, with a server or without, and the next command
// finds it.
func TestRunWithOverlay(t *testing.T) {
	t.Parallel()
	onServerOfAll(t, onDemand, func(t *testing.T, s *harness.Server) {
		name := workspace(t, s)
		put(t, s.Client.WorkspaceFiles(name), "a.txt", "base\n")
		got := s.CLI(t, "run", "--workspace", name, "--mode", "overlay", "-c", "echo run > a.txt")
		got.Is(t, 0, "")
		list, err := s.Client.Overlays(within(t), name)
		if err != nil || len(list) != 1 || list[0].Live {
			t.Fatalf("%+v %v", list, err)
		}
		contains(t, got.Stderr, "workspace diff "+list[0].ID)
		contains(t, s.CLI(t, "workspace", "diff", list[0].ID).Stdout, "+run")
		contains(t, s.CLI(t, "workspace", "diff", name, "--name-only").Stdout, "a.txt")
		s.CLI(t, "workspace", "commit", list[0].ID, "other").Is(t, 64, "other")
		s.CLI(t, "workspace", "commit", list[0].ID, "a.txt").Is(t, 0, "")
		s.CLI(t, "workspace", "discard", list[0].ID).Is(t, 66, "not found: not an overlay lease")
		if got := get(t, s.Client.WorkspaceFiles(name), "a.txt"); got != "run\n" {
			t.Errorf("%q", got)
		}
		s.CLI(t, "run", "--workspace", name, "--mode", "overlay", "-c", "true").Is(t, 0, "")
		if list, err := s.Client.Overlays(within(t), name); err != nil || len(list) != 0 {
			t.Errorf("of a run that changed nothing: %+v %v", list, err)
		}
		s.CLI(t, "run", "--mode", "overlay", "-c", "true").Is(t, 64, "mode")
		s.Term()
		s.CLI(t, "run", "--runtime", s.Runtime, "--workspace", name, "--mode", "overlay", "-c", "echo here > a.txt").Is(t, 0, "workspace diff ")
		contains(t, s.CLI(t, "workspace", "diff", name).Stdout, "+here")
		if left, err := filepath.Glob(filepath.Join(s.Dir(), "workspaces", "*", mergedFolder, "*")); err != nil || len(left) != 0 {
			t.Errorf("mounted for nobody: %v %v", left, err)
		}
	})
}

// mergedFolder is where overlays are mounted.
const mergedFolder = "merged"
