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

// What the commands for looking and copying do, on a server with one sandbox.
func TestInspectAndCopyFiles(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		ws := workspace(t, s)
		l := lease(t, s, v1.SandboxRequest{Workspace: ws})
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server, v1.Sandbox, string)
		}{{"ps", psShows}, {"logs", logsFollow}, {"cp", copies}, {"events", eventsTold}, {"completion", completes}} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s, l, ws)
			})
		}
	})
}

func psShows(t *testing.T, s *harness.Server, l v1.Sandbox, ws string) {
	for _, args := range [][]string{{"ps"}, {"ps", "--all"}} {
		got := s.CLI(t, args...)
		got.Is(t, 0, "")
		for _, want := range []string{"TEMPLATE", "CALLER", l.ID, "leased", "local", ws} {
			contains(t, got.Stdout, want)
		}
	}
	if got := s.CLI(t, "ps", "-q"); got.Stdout != l.ID+"\n" {
		t.Errorf("%+v", got)
	}
}

func logsFollow(t *testing.T, s *harness.Server, l v1.Sandbox, _ string) {
	sh, err := s.Client.StartShell(within(t), l.ID, v1.ShellRequest{Exec: v1.Exec{Command: "echo one; sleep 1; echo two"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.CLI(t, "logs", "-f", sh.ID); got.Code != 0 || got.Stdout != "one\ntwo\n" {
		t.Errorf("%+v", got)
	}
}

func copies(t *testing.T, s *harness.Server, l v1.Sandbox, ws string) {
	here := harness.TempDir(t)
	big := bytes.Repeat([]byte("0123456789abcdef"), 128<<10) // 2 MiB
	for i := range 40 {
		harness.WriteFile(t, filepath.Join(here, "src", fmt.Sprint("d", i%4), fmt.Sprint("f", i)), fmt.Sprint("content ", i))
	}
	for _, err := range []error{
		os.WriteFile(filepath.Join(here, "src", "run.sh"), []byte("#!/bin/sh\necho ran\n"), 0o755),
		os.Chmod(filepath.Join(here, "src", "run.sh"), 0o755),
		os.WriteFile(filepath.Join(here, "src", "big"), big, 0o600),
		os.WriteFile(filepath.Join(here, "src", "none"), nil, 0o600),
		os.Mkdir(filepath.Join(here, "src", "empty"), 0o755),
		os.Symlink("/etc/passwd", filepath.Join(here, "src", "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got := s.CLI(t, "cp", filepath.Join(here, "src"), l.ID+":/workspace")
	got.Is(t, 0, "link")
	if out := sh(t, s, l.ID, "src/run.sh; find src -type f | wc -l; stat -c %s src/big; stat -c %a src/run.sh src/big; test ! -e src/link && test -d src/empty && cat src/d3/f7"); out != "ran\n43\n2097152\n755\n600\ncontent 7" {
		t.Errorf("inside: %q", out)
	}
	sh(t, s, l.ID, "ln -s /etc/passwd src/out; mkfifo src/pipe")
	back := filepath.Join(here, "back")
	got = s.CLI(t, "cp", l.ID+":src", back)
	got.Is(t, 0, "src/out")
	if b, err := os.ReadFile(filepath.Join(back, "big")); err != nil || !bytes.Equal(b, big) {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if info, err := os.Stat(filepath.Join(back, "run.sh")); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	for _, name := range []string{"out", "pipe", "link"} {
		if _, err := os.Lstat(filepath.Join(back, name)); err == nil {
			t.Errorf("%s was copied", name)
		}
	}
	if b, err := os.ReadFile(filepath.Join(back, "d1", "f5")); err != nil || string(b) != "content 5" {
		t.Errorf("%q, %v", b, err)
	}
	// One file into a folder, as another name, and through the streams.
	s.CLI(t, "cp", filepath.Join(here, "src", "run.sh"), l.ID+":/tmp/").Is(t, 0, "")
	s.CLI(t, "cp", filepath.Join(here, "src", "run.sh"), l.ID+":/tmp/other").Is(t, 0, "")
	if out := sh(t, s, l.ID, "/tmp/run.sh; /tmp/other"); out != "ran\nran\n" {
		t.Errorf("%q", out)
	}
	s.Launch(t, strings.NewReader("from stdin"), "cp", "-", l.ID+":in.txt").Wait().Is(t, 0, "")
	if got := s.CLI(t, "cp", l.ID+":in.txt", "-"); got.Stdout != "from stdin" {
		t.Errorf("%+v", got)
	}
	// From sandbox to workspace, and what is not there.
	other := workspace(t, s)
	s.CLI(t, "cp", l.ID+":src/d1", "workspace:"+other+":kept").Is(t, 0, "")
	if got := s.CLI(t, "cp", "workspace:"+other+":kept/f5", "-"); got.Stdout != "content 5" {
		t.Errorf("%+v", got)
	}
	s.CLI(t, "cp", l.ID+":nope", here).Is(t, 66, "nope")
	s.CLI(t, "cp", filepath.Join(here, "nope"), l.ID+":x").Is(t, 66, "nope")
	s.CLI(t, "cp", filepath.Join(here, "src"), l.ID+":in.txt").Is(t, 78, "is a file")
	// The workspace that the sandbox has is one and the same.
	s.CLI(t, "cp", filepath.Join(here, "src", "run.sh"), "workspace:"+ws+":x").Is(t, 0, "")
	if out := sh(t, s, l.ID, "./x"); out != "ran\n" {
		t.Errorf("%q", out)
	}
}

func eventsTold(t *testing.T, s *harness.Server, l v1.Sandbox, _ string) {
	kinds := func(out string) (list []string) {
		for line := range strings.Lines(out) {
			var e v1.ServiceEvent
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			if e.Sandbox == l.ID {
				list = append(list, e.Type)
			}
		}
		return list
	}
	got := s.CLI(t, "events", "-o", "json")
	if list := kinds(got.Stdout); !slices.Contains(list, "sandbox.leased") || !slices.Contains(list, "shell.started") || !slices.Contains(list, "shell.ended") {
		t.Errorf("%v", list)
	}
	if got := s.CLI(t, "events", "--since", "tomorrow"); got.Code != 64 || !strings.Contains(got.Stderr, "since") {
		t.Errorf("%+v", got)
	}
	// Over a restart of the server.
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	told, ended := make(chan string, 1000), make(chan error, 1)
	listening := make(chan struct{})
	begun := sync.OnceFunc(func() { close(listening) })
	go func() { // ended receives when it ends
		ended <- s.Client.Events(ctx, client.EventQuery{Follow: true}, func(e v1.ServiceEvent) error {
			begun()
			told <- e.Type + " " + e.Sandbox
			return nil
		})
	}()
	<-listening
	s.Term()
	s.Start()
	other := lease(t, s, v1.SandboxRequest{})
	for got := ""; got != "sandbox.leased "+other.ID; {
		select {
		case got = <-told:
		case err := <-ended:
			t.Fatalf("it ended: %v", err)
		case <-ctx.Done():
			t.Fatal("the lease after a restart was not told")
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func completes(t *testing.T, s *harness.Server, l v1.Sandbox, ws string) {
	contains(t, s.CLI(t, "__complete", "exec", "").Stdout, l.ID)
	contains(t, s.CLI(t, "__complete", "run", "--workspace", "").Stdout, ws)
	contains(t, s.CLI(t, "__complete", "template", "show", "").Stdout, "default\tready")
	contains(t, s.CLI(t, "__complete", "shell", "logs", "").Stdout, "ended")
}
