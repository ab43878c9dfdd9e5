//go:build integration

package scenarios

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// splitWord returns the word in a form that a shell joins again: the shell's command line does not
// contain the word, that of the process it starts does.
func splitWord(word string) string { return word[:4] + `""` + word[4:] }

// TestServerlessRun checks the exit codes and messages of runs without a server, and that they
// leave nothing.
func TestServerlessRun(t *testing.T) {
	t.Parallel()
	onRuntimes(t, func(t *testing.T, name string) {
		s := harness.New(t, harness.Options{Runtime: name, Config: onDemand, Seed: &seed})
		for _, c := range []struct {
			name string
			code int
			text string
			args []string
		}{
			{"exited 0", 0, "", []string{"-c", "echo out; echo err >&2"}},
			{"exited 7", 7, "", []string{"--", "sh", "-c", "exit 7"}},
			{"signalled", 139, "signalled", []string{"-c", "kill -SEGV $$"}},
			{"timeout", 124, "timeout", []string{"--timeout", "1s", "-c", "setsid sleep 3000 & sleep 3000"}},
			{"oom", 122, "oom", []string{"--", "python3", "-c", "x = b'x' * (1 << 30)"}},
			{"pids", 121, "pids", []string{"--", "python3", "-c", forkBomb}},
			{"user 0", 64, "user", []string{"--user", "0", "--", "true"}},
			{"no such template", 66, "nope", []string{"--template", "nope", "--", "true"}},
			{"no such workspace", 66, "nope", []string{"--workspace", "nope", "--", "true"}},
			{"no command", 64, "CMD", nil},
		} {
			t.Run(c.name, func(t *testing.T) {
				got := s.CLI(t, append([]string{"run", "--no-server"}, c.args...)...)
				got.Is(t, c.code, c.text)
				if c.code == 0 && (got.Stdout != "out\n" || got.Stderr != "err\n") {
					t.Errorf("run = %+v, want stdout out and stderr err", got)
				}
			})
		}
		if left := s.Left(); len(left) > 0 {
			t.Errorf("left on the machine: %v, want nothing", left)
		}
		got := s.CLI(t, "run", "--no-server", "-o", "json", "-c", "echo out")
		var r v1.ExecResult
		if err := json.Unmarshal([]byte(got.Stdout), &r); err != nil || r.Ending != "exited" || r.Stdout != "out\n" {
			t.Errorf("run -o json = %+v, %v; want exited with stdout out", got, err)
		}
	})
}

// TestRunIsKilled checks that a run without a server leaves nothing when it is interrupted,
// terminated or killed, although nothing else runs afterwards.
func TestRunIsKilled(t *testing.T) {
	t.Parallel()
	onRuntimes(t, func(t *testing.T, name string) {
		for _, c := range []struct {
			name   string
			signal syscall.Signal
			codes  []int
		}{
			{"INT", syscall.SIGINT, []int{130}},
			{"TERM", syscall.SIGTERM, []int{130, 143}},
			{"KILL", syscall.SIGKILL, []int{-1}},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := harness.New(t, harness.Options{Runtime: name, Config: onDemand, Seed: &seed})
				word := uniqueWord()
				command := "(setsid bash -c 'exec -a " + splitWord(word) + " sleep 3000' &); exec -a " + splitWord(word) +
					" sleep 3000"
				r := s.Launch(t, nil, "run", "--no-server", "-c", command)
				awaitProcesses(t, word, 2)
				r.Signal(c.signal)
				if got := r.Wait(); !slices.Contains(c.codes, got.Code) {
					t.Errorf("run after signal %v = %+v, want an exit code of %v", c.signal, got, c.codes)
				}
				if c.signal == syscall.SIGKILL {
					harness.Eventually(t, harness.Long, "the run's processes are dead", func() bool {
						return len(harness.Marked(word)) == 0
					})
				}
				assertNoProcess(t, word)
				if left := s.Left(); len(left) > 0 {
					t.Errorf("left on the machine: %v, want nothing", left)
				}
			})
		}
	})
}

// TestImportAndRun follows the README: import the image, run without a server, serve.
func TestImportAndRun(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{Runtime: "oci", Config: onDemand})
	s.CLI(t, "run", "--no-server", "--", "true").Is(t, 66, "orchestrator/sandbox")
	s.CLI(t, "image", "import", harness.Need(t, harness.EnvArchive)).Is(t, 0, "")
	if got := s.CLI(t, "image", "ls"); got.Code != 0 || !strings.Contains(got.Stdout, "orchestrator/sandbox") {
		t.Errorf("image ls = %+v, want orchestrator/sandbox in it", got)
	}
	if got := s.CLI(t, "run", "--no-server", "-c", "echo fine"); got.Code != 0 || got.Stdout != "fine\n" {
		t.Errorf("run without a server = %+v, want stdout fine", got)
	}
	s.Start()
	if got := s.CLI(t, "run", "--when-empty", "cold", "-c", "echo served"); got.Code != 0 || got.Stdout != "served\n" {
		t.Errorf("run on the server = %+v, want stdout served", got)
	}
}

// TestCommandLineWithServer runs the commands that need a server, with one and without one.
func TestCommandLineWithServer(t *testing.T) {
	t.Parallel()
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		text := func(args ...string) string {
			t.Helper()
			got := s.CLI(t, args...)
			if got.Code != 0 {
				t.Fatalf("%v = %+v, want exit code 0", args, got)
			}
			return strings.TrimSuffix(got.Stdout, "\n")
		}
		text("workspace", "create", "notes")
		id := text("sandbox", "create", "--when-empty", "cold", "--workspace", "notes", "-q")
		if got := text("exec", id, "-c", "echo kept > file; pwd"); got != "/workspace" {
			t.Errorf("exec pwd printed %q, want /workspace", got)
		}
		s.CLI(t, "exec", id, "--", "sh", "-c", "exit 9").Is(t, 9, "")
		in := s.Launch(t, strings.NewReader("piped"), "exec", "-i", id, "--", "wc", "-c").Wait()
		if in.Code != 0 || strings.TrimSpace(in.Stdout) != "5" {
			t.Errorf("exec -i wc -c = %+v, want 5", in)
		}
		shell := text("shell", "start", "-q", id, "-c", "for i in 1 2 3; do echo $i; sleep 0.2; done")
		logs := s.Launch(t, nil, "shell", "logs", "-f", shell)
		if got := logs.Wait(); got.Code != 0 || got.Stdout != "1\n2\n3\n" {
			t.Errorf("shell logs -f = %+v, want three lines", got)
		}
		word := uniqueWord()
		cut := s.Launch(t, nil, "exec", id, "-c", "exec -a "+splitWord(word)+" sleep 3000")
		awaitProcesses(t, word, 1)
		cut.Signal(syscall.SIGINT)
		cut.Wait().Is(t, 130, "")
		harness.Eventually(t, harness.Short, "the interrupted command is dead", func() bool {
			return len(harness.Marked(word)) == 0
		})
		for _, args := range [][]string{
			{"sandbox", "ls"}, {"sandbox", "inspect", id}, {"shell", "ls", id}, {"pool"}, {"image", "ls"},
			{"workspace", "ls"}, {"version"},
		} {
			text(args...)
			if got := text(append(args, "-o", "json")...); !json.Valid([]byte(got)) {
				t.Errorf("%v -o json printed %s, want JSON", args, got)
			}
		}
		text("sandbox", "rm", id)
		s.CLI(t, "exec", id, "--", "true").Is(t, 66, "removed")
		text("sandbox", "create", "--when-empty", "cold", "-q")
		text("down")
		if state := s.Ended(); !state.Success() {
			t.Errorf("after down the server ended with %s, want success", state)
		}
		if left := s.Left(); len(left) > 0 {
			t.Errorf("left on the machine: %v, want nothing", left)
		}
		s.CLI(t, "sandbox", "ls").Is(t, 69, "orchestrator serve")
		text("down") // without a server it succeeds, too
	})
}
