//go:build integration

package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestInspectAndCopyFiles runs the commands that show a sandbox and copy files, on a server with
// one sandbox.
func TestInspectAndCopyFiles(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		ws := workspace(t, s)
		l := lease(t, s, v1.SandboxRequest{Workspace: ws})
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, v1.Sandbox, string)
		}{
			{"ps", testPsShows},
			{"logs", testLogsFollow},
			{"cp", testCpCopies},
			{"events", testEventsFollow},
			{"completion", testCompletionShows},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s, l, ws)
			})
		}
	})
}

// testPsShows checks the rows of "ps", and its ids with -q.
func testPsShows(t *testing.T, s *harness.Server, l v1.Sandbox, ws string) {
	for _, args := range [][]string{{"ps"}, {"ps", "--all"}} {
		got := s.CLI(t, args...)
		got.Is(t, 0, "")
		for _, want := range []string{"TEMPLATE", "CALLER", l.ID[:13], "leased", "local", ws} {
			assertContains(t, got.Stdout, want)
		}
	}
	if got := s.CLI(t, "ps", "-q"); got.Stdout != l.ID+"\n" {
		t.Errorf("ps -q = %+v, want stdout %s", got, l.ID)
	}
}

// testLogsFollow checks that "logs -f" prints output until the command ends.
func testLogsFollow(t *testing.T, s *harness.Server, l v1.Sandbox, _ string) {
	sh, err := s.Client.StartShell(within(t), l.ID, v1.ShellRequest{Exec: v1.Exec{Command: "echo one; sleep 1; echo two"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.CLI(t, "logs", "-f", sh.ID); got.Code != 0 || got.Stdout != "one\ntwo\n" {
		t.Errorf("logs -f = %+v, want both lines", got)
	}
}

// testCpCopies copies directories, files and streams between host, sandbox and workspaces.
func testCpCopies(t *testing.T, s *harness.Server, l v1.Sandbox, ws string) {
	host := harness.TempDir(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 128<<10) // 2 MiB
	writeSourceTree(t, filepath.Join(host, "src"), big)
	got := s.CLI(t, "cp", filepath.Join(host, "src"), l.ID+":/workspace")
	got.Is(t, 0, "link")
	look := "src/run.sh; find src -type f | wc -l; stat -c %s src/big; stat -c %a src/run.sh src/big; " +
		"test ! -e src/link && test -d src/empty && cat src/d3/f7"
	if out := sh(t, s, l.ID, look); out != "ran\n43\n2097152\n755\n600\ncontent 7" {
		t.Errorf("the copied directory in the sandbox: %q, want 43 files with their modes and content", out)
	}
	sh(t, s, l.ID, "ln -s /etc/passwd src/out; mkfifo src/pipe")
	back := filepath.Join(host, "back")
	got = s.CLI(t, "cp", l.ID+":src", back)
	got.Is(t, 0, "src/out")
	assertCopiedBack(t, back, big)

	// A single file: into a directory, to another name, and through standard input and output.
	script := filepath.Join(host, "src", "run.sh")
	s.CLI(t, "cp", script, l.ID+":/tmp/").Is(t, 0, "")
	s.CLI(t, "cp", script, l.ID+":/tmp/other").Is(t, 0, "")
	if out := sh(t, s, l.ID, "/tmp/run.sh; /tmp/other"); out != "ran\nran\n" {
		t.Errorf("both copies of the script printed %q, want %q", out, "ran\nran\n")
	}
	s.Launch(t, strings.NewReader("from stdin"), "cp", "-", l.ID+":in.txt").Wait().Is(t, 0, "")
	if got := s.CLI(t, "cp", l.ID+":in.txt", "-"); got.Stdout != "from stdin" {
		t.Errorf("cp to standard output = %+v, want stdout %q", got, "from stdin")
	}

	// From a sandbox to a workspace, and errors.
	other := workspace(t, s)
	s.CLI(t, "cp", l.ID+":src/d1", "workspace:"+other+":kept").Is(t, 0, "")
	if got := s.CLI(t, "cp", "workspace:"+other+":kept/f5", "-"); got.Stdout != "content 5" {
		t.Errorf("cp from the workspace = %+v, want stdout %q", got, "content 5")
	}
	s.CLI(t, "cp", l.ID+":nope", host).Is(t, 66, "nope")
	s.CLI(t, "cp", filepath.Join(host, "nope"), l.ID+":x").Is(t, 66, "nope")
	s.CLI(t, "cp", filepath.Join(host, "src"), l.ID+":in.txt").Is(t, 78, "is a file")

	// The sandbox sees what is copied into its own workspace.
	s.CLI(t, "cp", script, "workspace:"+ws+":x").Is(t, 0, "")
	if out := sh(t, s, l.ID, "./x"); out != "ran\n" {
		t.Errorf("the script in the sandbox's workspace printed %q, want %q", out, "ran\n")
	}
}

// writeSourceTree creates 43 files of several kinds below dir, an empty directory and a symlink.
func writeSourceTree(t *testing.T, dir string, big []byte) {
	t.Helper()
	for i := range 40 {
		harness.WriteFile(t, filepath.Join(dir, fmt.Sprint("d", i%4), fmt.Sprint("f", i)), fmt.Sprint("content ", i))
	}
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "run.sh"), []byte("#!/bin/sh\necho ran\n"), 0o755),
		os.Chmod(filepath.Join(dir, "run.sh"), 0o755),
		os.WriteFile(filepath.Join(dir, "big"), big, 0o600),
		os.WriteFile(filepath.Join(dir, "none"), nil, 0o600),
		os.Mkdir(filepath.Join(dir, "empty"), 0o755),
		os.Symlink("/etc/passwd", filepath.Join(dir, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// assertCopiedBack checks a directory that was copied from the sandbox to the host: regular files
// only, with content and mode.
func assertCopiedBack(t *testing.T, dir string, big []byte) {
	t.Helper()
	if b, err := os.ReadFile(filepath.Join(dir, "big")); err != nil || !bytes.Equal(b, big) {
		t.Errorf("file big: %d bytes, %v; want the %d bytes that were copied", len(b), err, len(big))
	}
	if info, err := os.Stat(filepath.Join(dir, "run.sh")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("file run.sh: %v, %v; want mode 0755", info, err)
	}
	for _, name := range []string{"out", "pipe", "link"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s was copied, want regular files only", name)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "d1", "f5")); err != nil || string(b) != "content 5" {
		t.Errorf("file d1/f5: %q, %v; want %q", b, err, "content 5")
	}
}

// testEventsFollow checks the listed events of the sandbox, and that a client that follows events
// continues over a restart of the server.
func testEventsFollow(t *testing.T, s *harness.Server, l v1.Sandbox, _ string) {
	kinds := func(out string) (list []string) {
		for line := range strings.Lines(out) {
			var e v1.ServiceEvent
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("decode the event %q: %v", line, err)
			}
			if e.Sandbox == l.ID {
				list = append(list, e.Type)
			}
		}
		return list
	}
	got := s.CLI(t, "events", "-o", "json")
	list := kinds(got.Stdout)
	for _, kind := range []string{"sandbox.leased", "shell.started", "shell.ended"} {
		if !slices.Contains(list, kind) {
			t.Errorf("events of the sandbox = %v, want %s among them", list, kind)
		}
	}
	if got := s.CLI(t, "events", "--since", "tomorrow"); got.Code != 64 || !strings.Contains(got.Stderr, "since") {
		t.Errorf("events with an invalid time = %+v, want exit code 64 with the flag's name", got)
	}
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	events, ended := make(chan string, 1000), make(chan error, 1)
	listening := make(chan struct{})
	firstEvent := sync.OnceFunc(func() { close(listening) })
	go func() { // the result is received from ended
		ended <- s.Client.Events(ctx, client.EventQuery{Follow: true}, func(e v1.ServiceEvent) error {
			firstEvent()
			events <- e.Type + " " + e.Sandbox
			return nil
		})
	}()
	<-listening
	s.Term()
	s.Start()
	other := lease(t, s, v1.SandboxRequest{})
	for got := ""; got != "sandbox.leased "+other.ID; {
		select {
		case got = <-events:
		case err := <-ended:
			t.Fatalf("Events returned %v while the server restarted, want it to continue", err)
		case <-ctx.Done():
			t.Fatal("no event of the lease that was created after the restart, want one")
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Events after cancel: %v, want context canceled", err)
	}
}

// testCompletionShows checks what the shell completion offers.
func testCompletionShows(t *testing.T, s *harness.Server, l v1.Sandbox, ws string) {
	assertContains(t, s.CLI(t, "__complete", "exec", "").Stdout, l.ID)
	assertContains(t, s.CLI(t, "__complete", "run", "--workspace", "").Stdout, ws)
	assertContains(t, s.CLI(t, "__complete", "template", "show", "").Stdout, "default\tready")
	assertContains(t, s.CLI(t, "__complete", "shell", "logs", "").Stdout, "ended")
}
