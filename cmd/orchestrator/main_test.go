package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// TestMain makes the test binary the program if it is called "orchestrator": in scripts, and as a
// janitor.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"orchestrator": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			e.Vars = append(e.Vars,
				"ORCHESTRATOR_STATE_DIR="+filepath.Join(e.WorkDir, "state"),
				"ORCHESTRATOR_LISTEN=unix:"+filepath.Join(e.WorkDir, "sock"),
				"DOCKER_HOST=unix:"+filepath.Join(e.WorkDir, "no-docker.sock"))
			return nil
		},
		Condition: func(name string) (bool, error) {
			if name == "root" {
				return os.Geteuid() == 0, nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "oneline": oneline, "listening": listening,
		},
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
	})
}

// exits implements the script command "exits CODE PROGRAM ARGS...", which requires an exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		e, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = e.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code is %d, want %d", got, want)
	}
}

// oneline implements the script command that requires a one-line error message on standard error.
func oneline(ts *testscript.TestScript, _ bool, _ []string) {
	text := ts.ReadFile("stderr")
	if n := strings.Count(text, "\n"); n != 1 || !strings.HasPrefix(text, "orchestrator: ") {
		ts.Fatalf("not one line of ours: %q", text)
	}
}

// listening implements the script command "listening PATH": until the script ends, something
// listens on a socket at PATH.
func listening(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("unix", ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Defer(func() { l.Close() })
}

// commands calls f for each command that users see.
func commands(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
			commands(sub, f)
		}
	}
}

func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	a := &cli.App{Lookup: os.LookupEnv}
	commands(newRootCommand(a), func(c *cobra.Command) {
		if c.Short == "" || !strings.Contains(c.Example, "orchestrator ") {
			t.Errorf("%s: Short %q, Example %q; want both, with a command", c.CommandPath(), c.Short, c.Example)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s has no usage text, want some", c.CommandPath(), f.Name)
			}
		})
	})
}
