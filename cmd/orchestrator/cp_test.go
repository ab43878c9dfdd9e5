package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	v1 "orchestrator/client/v1"
)

func TestPlaces(t *testing.T) {
	for text, want := range map[string]place{
		"-":                   {std: true, path: "-"},
		"notes.txt":           {path: "notes.txt"},
		"./a:b":               {path: "./a:b"},
		"/tmp/a:b":            {path: "/tmp/a:b"},
		"dir.d/a:b":           {path: "dir.d/a:b"},
		"0123:x/y":            {sandbox: "0123", path: "x/y"},
		"0123:/tmp/x":         {sandbox: "0123", path: "/tmp/x"},
		"0123:a:b":            {sandbox: "0123", path: "a:b"},
		"0123:":               {sandbox: "0123"},
		"workspace:notes:a/b": {workspace: "notes", path: "a/b"},
		"workspace:a.b:c:d":   {workspace: "a.b", path: "c:d"},
		"workspace:notes":     {workspace: "notes"},
		":x":                  {path: ":x"},
	} {
		want.text = text
		if got := parsePlace(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestFirstArguments(t *testing.T) {
	for use, want := range map[string]string{
		"exec [flags] SANDBOX -- CMD...": "SANDBOX", "logs SHELL": "SHELL", "ls": "", "rm SANDBOX...": "SANDBOX", "show NAME": "NAME", "ls [NAME]": "NAME",
	} {
		if got := firstArgument(use); got != want {
			t.Errorf("%q: %q", use, got)
		}
	}
}

// Every command that names a sandbox or a shell offers those there are.
func TestArgumentsAreCompleted(t *testing.T) {
	a := &app{lookup: os.LookupEnv}
	n := 0
	commands(a.newRootCommand(), func(c *cobra.Command) {
		if word := firstArgument(c.Use); word == "SANDBOX" || word == "SHELL" {
			if n++; c.ValidArgsFunction == nil {
				t.Errorf("%s offers nothing", c.CommandPath())
			}
		}
	})
	if n < 6 {
		t.Errorf("only %d commands were looked at", n)
	}
}

func TestColoursAreForTerminals(t *testing.T) {
	a := &app{stdout: &strings.Builder{}, lookup: func(string) (string, bool) { return "", false }}
	e := v1.ServiceEvent{At: time.Now(), Type: "sandbox.failed", Sandbox: "x", Reason: "two words\n\x1b[31m"}
	if line := eventLine(e, a.colours()); strings.Contains(line, "\x1b") || strings.Contains(line, "\n") || !strings.Contains(line, `sandbox.failed sandbox=x reason="two words`) {
		t.Errorf("%q", line)
	}
	if line := eventLine(e, palette{on: true}); !strings.Contains(line, "\x1b[31msandbox.failed\x1b[0m") {
		t.Errorf("%q", line)
	}
	for _, name := range []string{"NO_COLOR", "TERM"} {
		a.lookup = func(v string) (string, bool) { return "dumb", v == name }
		if a.colours().on {
			t.Errorf("%s is not respected", name)
		}
	}
}
