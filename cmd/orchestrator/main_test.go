package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// TestMain makes the test binary be the program where it is called
// "orchestrator": in scripts, and as a janitor.
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

// exits CODE PROGRAM ARGS... runs a program that has to exit with the code.
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

// oneline checks that what failed was said in one line.
func oneline(ts *testscript.TestScript, _ bool, _ []string) {
	text := ts.ReadFile("stderr")
	if n := strings.Count(text, "\n"); n != 1 || !strings.HasPrefix(text, "orchestrator: ") {
		ts.Fatalf("not one line of ours: %q", text)
	}
}

// listening PATH has a socket there on which somebody listens, until the
// script's end.
func listening(ts *testscript.TestScript, _ bool, args []string) {
	l, err := net.Listen("unix", ts.MkAbs(args[0]))
	ts.Check(err)
	ts.Defer(func() { l.Close() })
}

// commands calls f for every command that users see.
func commands(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" && sub.Name() != "completion" {
			commands(sub, f)
		}
	}
}

func TestEveryCommandHasHelpWithExamples(t *testing.T) {
	a := &app{lookup: os.LookupEnv}
	commands(a.newRootCommand(), func(c *cobra.Command) {
		if c.Short == "" || !strings.Contains(c.Example, "orchestrator ") {
			t.Errorf("%s lacks a description or an example", c.CommandPath())
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s: --%s has no text", c.CommandPath(), f.Name)
			}
		})
	})
}

func TestEveryEndingHasItsExitCode(t *testing.T) {
	want := map[runtime.Ending]int{
		runtime.Exited: 5, runtime.Signalled: 143, runtime.Timeout: 124, runtime.Cancelled: 130, runtime.OOM: 122, runtime.Pids: 121,
		runtime.Disk: 123, runtime.OutputLimit: 120, runtime.PolicyDenied: 117, runtime.ApprovalDenied: 118, runtime.SandboxLost: 125,
	}
	for _, e := range runtime.Endings() {
		r := v1.ExecResult{Ending: string(e), ExitCode: -1}
		switch e {
		case runtime.Exited:
			r.ExitCode = 5
		case runtime.Signalled:
			r.Signal = 15
		}
		if got := exitCode(fmt.Errorf("run: %w", result(r))); got != want[e] {
			t.Errorf("%s exits with %d, want %d", e, got, want[e])
		}
	}
	if err := result(v1.ExecResult{Ending: "exited"}); err != nil {
		t.Errorf("exit code 0 is an error: %v", err)
	}
	if got := exitCode(result(v1.ExecResult{Ending: "of a newer server"})); got != exitLost {
		t.Errorf("an unknown ending exits with %d", got)
	}
}

func TestErrorsHaveTheirExitCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{&usageError{}, 64},
		{errdefs.ErrInvalidArgument, 64},
		{errdefs.ErrNotFound, 66},
		{client.ErrNoServer, 69},
		{client.ErrLost, 69},
		{errors.New("what is this"), 70},
		{errdefs.ErrAlreadyExists, 73},
		{errdefs.ErrResourceExhausted, 75},
		{context.DeadlineExceeded, 75},
		{errdefs.ErrPermissionDenied, 77},
		{errdefs.ErrUnauthenticated, 77},
		{errdefs.ErrFailedPrecondition, 78},
		{errChecks, 1},
		{&interrupted{2}, 130},
		{&interrupted{15}, 143},
		{refuse(errdefs.ErrNotFound, "no %s", "x"), 66},
	} {
		if got := exitCode(c.err); got != c.want {
			t.Errorf("%v exits with %d, want %d", c.err, got, c.want)
		}
	}
}

// Every code that the program can exit with is in the document, and no other.
func TestExitCodesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []int{
		exitOK, exitChecksFailed, exitUsage, exitNotFound, exitUnavailable, exitInternal, exitExists, exitTryAgain, exitDenied,
		exitPrecondition, exitPolicyAsk, exitPolicyDenied, exitApprovalDenied, exitOutputLimit, exitPids, exitOOM, exitDisk, exitTimeout, exitLost, exitCancelled,
	} {
		if !strings.Contains(string(text), fmt.Sprintf("| %d |", code)) {
			t.Errorf("%d is not in docs/exit-codes.md", code)
		}
	}
	for _, e := range runtime.Endings() {
		if !strings.Contains(string(text), "`"+string(e)+"`") {
			t.Errorf("%s is not in docs/exit-codes.md", e)
		}
	}
}

func TestTablesEscapeWhatSteersATerminal(t *testing.T) {
	for in, want := range map[string]string{
		"plain ünï 日本":  "plain ünï 日本",
		"\x1b[2Jred":    `\x1b[2Jred`,
		"a\nb\tc":       `a\nb\tc`,
		"bad\xffbyte":   `bad\xffbyte`,
		"\u202egnp.x":   `\u202egnp.x`,
		"\u200bzero":    `\u200bzero`,
		"\u009b31m":     `\u009b31m`,
		"tag\U000e0041": `tag\U000e0041`,
	} {
		if got := escape(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
	var b strings.Builder
	tb := &table{head: []string{"A", "B"}}
	tb.add("x\ty\n", "")
	if err := tb.write(&b); err != nil || b.String() != "A        B\nx\\ty\\n   -\n" {
		t.Errorf("table is %q, %v", b.String(), err)
	}
}

// No time at all is another thing than a short time: it stands for no end.
func TestTimesAreNotRoundedToNone(t *testing.T) {
	for d, want := range map[time.Duration]int64{0: 0, 1: 1, time.Microsecond: 1, -1: -1, 1500 * time.Microsecond: 1, -time.Second: -1000, time.Hour: 3600000} {
		if got := millis(d); got != want {
			t.Errorf("%s: %d", d, got)
		}
	}
	a := &app{lookup: func(string) (string, bool) { return "", false }}
	if x, err := a.exec(&cobra.Command{}, commandOptions{timeout: 1}, []string{"true"}); err != nil || x.TimeoutMS != 1 {
		t.Errorf("%+v %v", x, err)
	}
}

func TestJSONSteersNoTerminal(t *testing.T) {
	const hostile = "a\x1b[31m\u009b31m\u202ertl\u2028\x7f\U000e0041é漢😀\xff<&"
	var want, got string
	plain, err := json.Marshal(hostile)
	if err != nil || json.Unmarshal(plain, &want) != nil {
		t.Fatal(err)
	}
	for size := 1; size < 8; size++ { // pieces end anywhere
		var out bytes.Buffer
		w := &jsonWriter{w: &out}
		for piece := range slices.Chunk(plain, size) {
			if n, err := w.Write(piece); n != len(piece) || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got != want {
			t.Errorf("pieces of %d: %q %v", size, got, err)
		}
		if s := out.String(); escape(s) != s || !strings.Contains(s, "é漢😀") {
			t.Errorf("pieces of %d: %q", size, s)
		}
	}
	var out bytes.Buffer
	a := &app{stdout: &out}
	if err := a.printJSON(map[string]string{"x": hostile}); err != nil || out.String() != escapeText(out.String()) {
		t.Errorf("%q %v", out.String(), err)
	}
}

func TestErrorsAreOneLineWithoutTheirClass(t *testing.T) {
	err := errors.Join(fmt.Errorf("a: %w", errdefs.ErrUnavailable), fmt.Errorf("b\x1b: %w", errdefs.ErrNotFound))
	var b strings.Builder
	a := &app{stderr: &b}
	if code := a.finish(err); code != exitNotFound || b.String() != "orchestrator: a: unavailable; b\\x1b\n" {
		t.Errorf("code %d, %q", code, b.String())
	}
	b.Reset()
	if a.finish(result(v1.ExecResult{Ending: "exited", ExitCode: 1})); b.Len() > 0 {
		t.Errorf("a failing command is told about: %q", b.String())
	}
	if a.finish(result(v1.ExecResult{Ending: "oom", Signal: 9})); b.String() != "orchestrator: the command ended: oom\n" {
		t.Errorf("an ending is told as %q", b.String())
	}
}

// Ctrl-C ends a command that waits for its standard input.
func TestInputEndsWithItsContext(t *testing.T) {
	typed, keyboard := io.Pipe()
	defer keyboard.Close()
	a := &app{stdin: typed}
	ctx, cancel := context.WithCancelCause(t.Context())
	in := a.input(ctx)
	if _, err := io.WriteString(keyboard, "x"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := io.ReadFull(in, b); err != nil || b[0] != 'x' {
		t.Fatalf("%q, %v", b, err)
	}
	cancel(&interrupted{syscall.SIGINT})
	if _, err := io.ReadAll(in); exitCode(err) != 130 {
		t.Fatal(err)
	}
	if b, err := io.ReadAll((&app{stdin: strings.NewReader("all")}).input(t.Context())); err != nil || string(b) != "all" {
		t.Fatalf("%q, %v", b, err)
	}
}
