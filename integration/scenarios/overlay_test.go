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

// quotaConfig gives workspaces a quota of 16 MiB.
const quotaConfig = onDemand + `
workspaces: {quota: 16MiB}
`

// overlay leases a sandbox with an overlay on the workspace, and returns its id.
func overlay(t *testing.T, s *harness.Server, workspace string) string {
	t.Helper()
	return lease(t, s, v1.SandboxRequest{Workspace: workspace, Mode: "overlay"}).ID
}

// commitAll ends a lease and commits its overlay, or only the paths.
func commitAll(t *testing.T, s *harness.Server, id string, paths ...string) (v1.Commit, error) {
	t.Helper()
	return s.Client.Overlays.Commit(within(t), id, v1.CommitRequest{Paths: paths, End: true})
}

// paths returns the kind and path of each change.
func paths(d v1.Diff) []string {
	out := make([]string, 0, len(d.Changes))
	for _, c := range d.Changes {
		out = append(out, c.Kind+" "+c.Path)
	}
	return out
}

// TestConflictingOverlayCommitIsRefused leases three overlays of one workspace at once and commits
// them one after the other. The third commit must be refused, with the paths that the others have
// changed.
func TestConflictingOverlayCommitIsRefused(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, onDemand, func(t *testing.T, s *harness.Server) {
		name := workspace(t, s)
		files := s.Client.Workspaces.Files(name)
		put(t, files, "a.txt", "base\n")
		put(t, files, "b.txt", "base\n")
		put(t, files, "old/c.txt", "base\n")
		one, two, three := overlay(t, s, name), overlay(t, s, name), overlay(t, s, name)
		sh(t, s, one, "echo one > a.txt; rm -r old; mkdir old; echo one > old/new.txt")
		sh(t, s, two, "echo two > b.txt; mkfifo fifo; echo x > s; chmod 6755 s; ln -s /etc/shadow link")
		sh(t, s, three, "echo three > a.txt; echo three > mine.txt; rm b.txt")
		got := sh(t, s, one, "cat a.txt b.txt; ls old") + sh(t, s, three, "cat a.txt; ls")
		if got != "one\nbase\nnew.txt\nthree\na.txt\nmine.txt\nold\n" {
			t.Errorf("overlays one and three show %q, want their own changes only", got)
		}
		_, err := s.Client.CreateSandbox(within(t), v1.SandboxRequest{Workspace: name})
		if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "overlay of sandbox") {
			t.Errorf("CreateSandbox that writes to a workspace with overlays: %v, want unavailable", err)
		}
		commitFirstOverlays(t, s, one, two)
		commitConflicting(t, s, one, two, three)

		id := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
		const want = "one\ntwo\nthree\na.txt\nb.txt\nlink\nmine.txt\nold\ns\nnew.txt\n755 1000\n/etc/shadow\n"
		look := "cat a.txt b.txt mine.txt; ls; ls old; stat -c '%a %u' s; readlink link"
		if got := sh(t, s, id, look); got != want {
			t.Errorf("the workspace after the commits shows %q, want %q", got, want)
		}
		release(t, s, id)
		if err := s.Client.Overlays.Discard(within(t), three, false); err != nil {
			t.Error(err)
		}
		if list, err := s.Client.Overlays.List(within(t), name); err != nil || len(list) != 0 {
			t.Errorf("Overlays = %+v, %v; want none", list, err)
		}
	})
}

// commitFirstOverlays commits overlays that do not conflict, after checking the diff of the first.
func commitFirstOverlays(t *testing.T, s *harness.Server, one, two string) {
	t.Helper()
	d, err := s.Client.Overlays.Diff(within(t), one, true)
	changes := []string{"changed a.txt", "removed old/c.txt", "added old/new.txt"}
	if err != nil || !d.Overlay.Live || !slices.Equal(paths(d), changes) {
		t.Errorf("DiffOverlay = %+v, %v; want a live overlay with %v", d, err, changes)
	}
	if err == nil {
		assertContains(t, d.Changes[0].Diff, "-base\n+one\n")
	}
	_, err = s.Client.Overlays.Commit(within(t), one, v1.CommitRequest{})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), one) {
		t.Errorf("CommitOverlay of a live lease: %v, want failed precondition with its id", err)
	}
	if _, err := commitAll(t, s, one); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, s, two, "cat a.txt old/c.txt"); got != "base\nbase\n" {
		t.Errorf("after a commit, the other overlay shows %q, want the base", got)
	}
	c, err := commitAll(t, s, two)
	committed := slices.Equal(c.Paths, []string{"b.txt", "link", "s"}) && slices.Equal(c.Dropped, []string{"fifo"})
	if err != nil || !committed {
		t.Errorf("CommitOverlay = %+v, %v; want three paths, and fifo dropped", c, err)
	}
}

// commitConflicting checks that the third overlay conflicts with the committed ones, and commits
// the path that does not.
func commitConflicting(t *testing.T, s *harness.Server, one, two, three string) {
	t.Helper()
	_, err := commitAll(t, s, three)
	if !errdefs.IsFailedPrecondition(err) {
		t.Fatalf("CommitOverlay with conflicts: %v, want failed precondition", err)
	}
	for _, part := range []string{"a.txt was changed by overlay " + one, "b.txt was changed by overlay " + two} {
		assertContains(t, err.Error(), part)
	}
	if strings.Contains(err.Error(), "mine.txt") {
		t.Errorf("CommitOverlay with conflicts: %v, want only conflicting paths in it", err)
	}
	_, err = commitAll(t, s, three, "mine.txt", "none.txt")
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "none.txt") {
		t.Errorf("CommitOverlay of an unchanged path: %v, want invalid argument with its name", err)
	}
	if c, err := commitAll(t, s, three, "mine.txt"); err != nil || c.Left != 2 {
		t.Errorf("CommitOverlay of one path = %+v, %v; want 2 changes left", c, err)
	}
}

// TestOverlaysContainHostileCommands runs commands that try to reach below or beyond their overlay.
func TestOverlaysContainHostileCommands(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, quotaConfig, func(t *testing.T, s *harness.Server) {
		name := workspace(t, s)
		put(t, s.Client.Workspaces.Files(name), "a.txt", "base\n")
		id := overlay(t, s, name)
		for _, attribute := range []string{"trusted.overlay.opaque", "trusted.overlay.redirect", "user.overlay.opaque"} {
			script := "import os, sys\nos.makedirs('d', exist_ok=True)\nos.setxattr('d', sys.argv[1], b'y')"
			r := exec(t, s, id, v1.Exec{Argv: []string{"python3", "-c", script, attribute}})
			if r.ExitCode == 0 && !strings.HasPrefix(attribute, "user.") {
				t.Errorf("setting the attribute %s succeeded, want it refused", attribute)
			}
		}
		for _, command := range []string{
			"mknod w c 0 0", "mknod n c 1 3", "python3 -c 'import os; os.mknod(\"w\", 0o20644, 0)'",
			"mount -o remount,suid /workspace", "umount /workspace",
		} {
			if r := exec(t, s, id, v1.Exec{Command: command}); r.ExitCode == 0 {
				t.Errorf("%s: %+v, want an exit code other than 0", command, r)
			}
		}
		got := sh(t, s, id, "grep ' /workspace ' /proc/self/mountinfo | tail -1")
		if strings.Contains(got, s.Dir()) || !strings.Contains(got, "nosuid") || !strings.Contains(got, "nodev") {
			t.Errorf("the workspace is mounted as %s, want nosuid and nodev without the host's directory", got)
		}
		sh(t, s, id, "cp /bin/true t; chmod 4755 t; rm -rf d; printf 'x' > \"$(printf 'new\\nline\\377')\"")
		r := exec(t, s, id, v1.Exec{Command: "dd if=/dev/zero of=big bs=1M count=64"})
		if r.ExitCode == 0 || !strings.Contains(r.Stderr, "No space left") {
			t.Errorf("64 MiB written to a quota of 16 MiB: %+v, want no space left", r)
		}
		sh(t, s, id, "rm big")
		d, err := s.Client.Overlays.Diff(within(t), id, true)
		changed := err == nil && len(d.Changes) == 2
		if !changed || d.Changes[0].PathBase64 == "" || d.Changes[1].Path != "t" || !d.Changes[1].Binary {
			t.Errorf("DiffOverlay = %+v, %v; want a path that is not UTF-8 and the binary file t", d, err)
		}
		if c, err := commitAll(t, s, id); err != nil || len(c.Paths) != 2 {
			t.Errorf("CommitOverlay = %+v, %v; want two paths", c, err)
		}
		f, err := s.Client.Workspaces.Files(name).Stat(within(t), "t")
		if err != nil || f.Mode != "0755" {
			t.Errorf("Stat of the committed file = %+v, %v; want mode 0755", f, err)
		}
	})
}

// TestOverlaysSurviveServerRestart kills the service between lease and commit. Both a live and a
// released overlay must keep their changes.
func TestOverlaysSurviveServerRestart(t *testing.T) {
	t.Parallel()
	onAllRuntimes(t, func(t *testing.T, runtime string) {
		s := harness.Run(t, harness.Options{Runtime: runtime, Config: onDemand, Seed: &seed})
		name := workspace(t, s)
		put(t, s.Client.Workspaces.Files(name), "a.txt", "base\n")
		live, released := overlay(t, s, name), overlay(t, s, name)
		sh(t, s, live, "echo live > live.txt")
		sh(t, s, released, "echo over > over.txt")
		release(t, s, released)
		s.Kill9()
		s.Start()
		look := "echo more >> live.txt; cat live.txt a.txt; ls"
		if got := sh(t, s, live, look); got != "live\nmore\nbase\na.txt\nlive.txt\n" {
			t.Errorf("after the kill the live overlay shows %q, want its changes and the base", got)
		}
		for _, id := range []string{live, released} {
			if _, err := commitAll(t, s, id); err != nil {
				t.Error(err)
			}
		}
		files := s.Client.Workspaces.Files(name)
		if got := get(t, files, "live.txt") + get(t, files, "over.txt"); got != "live\nmore\nover\n" {
			t.Errorf("the committed files are %q, want both overlays' changes", got)
		}
		snapshot, err := s.Client.Snapshots.Create(within(t), name, "before")
		if err != nil {
			t.Fatal(err)
		}
		put(t, files, "a.txt", "spoilt\n")
		if _, err := s.Client.Snapshots.Restore(within(t), name, "before"); err != nil {
			t.Error(err)
		}
		if got := get(t, files, "a.txt"); got != "base\n" {
			t.Errorf("the restored file is %q, want %q", got, "base\n")
		}
		if err := s.Client.Snapshots.Remove(within(t), name, snapshot.ID); err != nil {
			t.Error(err)
		}
	})
}

// TestRunWithOverlay checks that the changes of a run stay in its overlay, with and without a
// server, and that the command line shows and commits them.
func TestRunWithOverlay(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, onDemand, func(t *testing.T, s *harness.Server) {
		name := workspace(t, s)
		put(t, s.Client.Workspaces.Files(name), "a.txt", "base\n")
		got := s.CLI(t, "run", "--workspace", name, "--mode", "overlay", "-c", "echo run > a.txt")
		got.Is(t, 0, "")
		list, err := s.Client.Overlays.List(within(t), name)
		if err != nil || len(list) != 1 || list[0].Live {
			t.Fatalf("Overlays after the run = %+v, %v; want one that is not live", list, err)
		}
		assertContains(t, got.Stderr, "workspace diff "+list[0].ID)
		assertContains(t, s.CLI(t, "workspace", "diff", list[0].ID).Stdout, "+run")
		assertContains(t, s.CLI(t, "workspace", "diff", name, "--name-only").Stdout, "a.txt")
		s.CLI(t, "workspace", "commit", list[0].ID, "other").Is(t, 64, "other")
		s.CLI(t, "workspace", "commit", list[0].ID, "a.txt").Is(t, 0, "")
		s.CLI(t, "workspace", "discard", list[0].ID).Is(t, 66, "not found: not an overlay lease")
		if got := get(t, s.Client.Workspaces.Files(name), "a.txt"); got != "run\n" {
			t.Errorf("the committed file is %q, want %q", got, "run\n")
		}
		s.CLI(t, "run", "--workspace", name, "--mode", "overlay", "-c", "true").Is(t, 0, "")
		if list, err := s.Client.Overlays.List(within(t), name); err != nil || len(list) != 0 {
			t.Errorf("Overlays after a run without changes = %+v, %v; want none", list, err)
		}
		s.CLI(t, "run", "--mode", "overlay", "-c", "true").Is(t, 64, "mode")
		s.Term()
		s.CLI(t, "run", "--runtime", s.Runtime, "--workspace", name, "--mode", "overlay", "-c", "echo here > a.txt").
			Is(t, 0, "workspace diff ")
		assertContains(t, s.CLI(t, "workspace", "diff", name).Stdout, "+here")
		left, err := filepath.Glob(filepath.Join(s.Dir(), "workspaces", "*", mergedDir, "*"))
		if err != nil || len(left) != 0 {
			t.Errorf("mount points of overlays without a lease: %v, %v; want none", left, err)
		}
	})
}

// mergedDir is the directory of a workspace where overlays are mounted.
const mergedDir = "merged"
