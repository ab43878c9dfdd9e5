//go:build integration

package contracts

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

const readonlyConfig = `
readonly_shell: {enabled: true, caller: chat, workspaces: {/srv/old: old, /srv/gone: gone}}
templates:
  default:
    limits: {memory: 192MiB, pids: 160}
    pool: {min: 1, max: 12, rate: 10, parallel: 2}
`

// whitelist is the list of allowed commands, as refusals name them.
const whitelist = "awk, cat, cut, date, diff, env, file, find, grep, head, less, ls, pwd, rg, sed, sort, stat, " +
	"tail, tr, uniq, wc, which, whoami"

// notesScript creates the files of the tests in a workspace.
const notesScript = `
set -e
mkdir sub bin
printf 'TODO one\ntwo\n' > notes
printf 'notes\0' > list
echo 1 > script
printf '#!/bin/sh\necho evil\n' > ls && chmod +x ls && cp ls bin/ls
ln -s /etc/passwd link-file
ln -s /etc link-folder
ln -s chain-2 chain-1
ln -s /etc/passwd chain-2
ln -s notes link-in
`

// readonly has what the tests of the contract share.
type readonly struct {
	t    *testing.T
	once sync.Once
	// Results of commands that run for 30 s: without a timeout, with one above the maximum, and over
	// POST /shell.
	slow, most, shellSlow chan v1.ToolResult
	before                string // the workspace's content at the start

	mu    sync.Mutex
	texts []string // of refusals and failures
}

// TestReadonly tests every line of readonly.txt.
func TestReadonly(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	r := &readonly{
		t:         t,
		slow:      make(chan v1.ToolResult, 1),
		most:      make(chan v1.ToolResult, 1),
		shellSlow: make(chan v1.ToolResult, 1),
	}
	tests := table{}
	for _, part := range []table{r.commands(), r.refusals(), r.around(), r.shell()} {
		maps.Copy(tests, part)
	}
	for id, run := range tests {
		tests[id] = func(t *testing.T, s *harness.Server, l line) {
			r.once.Do(func() { r.start(s) })
			run(t, s, l)
		}
	}
	runContract(t, "readonly.txt", readonlyConfig, tests)
}

// start prepares the workspaces, and starts the commands that run for 30 s.
func (r *readonly) start(s *harness.Server) {
	t := r.t
	setup := operator(s, "default", "system.bash")
	if got := setup.run(t, notesScript); got.ExitCode == nil || *got.ExitCode != 0 {
		t.Fatalf("set up the workspace: %s, want exit code 0", got.Output)
	}
	r.before = r.workspaceContent(t, s)
	chat := newTokenAgent(t, s, v1.TokenRequest{Caller: "chat", Profile: "default", Trust: 3}, "system.bash")
	if _, err := chat.client.Workspaces.Create(callContext(t), "old"); err != nil {
		t.Fatal(err)
	}
	box, err := chat.client.CreateSandbox(callContext(t), v1.SandboxRequest{Workspace: "old", WhenEmpty: "cold"})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := chat.client.Exec(callContext(t), box.ID, v1.Exec{Command: notesScript}); err != nil ||
		got.ExitCode != 0 {
		t.Fatalf("set up the workspace: %+v, %v; want exit code 0", got, err)
	}
	if err := chat.client.RemoveSandbox(callContext(t), box.ID); err != nil {
		t.Fatal(err)
	}
	var waits sync.WaitGroup
	ctx, cancel := context.WithCancel(callContext(t))
	later := func(to chan v1.ToolResult, in fields) {
		a := newTokenAgent(t, s, v1.TokenRequest{Caller: "slow-" + itoa(len(in)), Profile: "readonly"}, "run_shell")
		request := a.request(t, in)
		waits.Go(func() {
			got, err := a.client.Tools.Call(ctx, a.tool, request, client.CallOptions{})
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			to <- got
		})
	}
	later(r.slow, fields{"command": "tail -f --retry notes"})
	later(r.most, fields{"command": "tail -f --retry notes", "timeout": 3600})
	waits.Go(func() {
		var got v1.ToolResult
		defer func() { r.shellSlow <- got }()
		got.Output = s.Ask(t, "POST", "/shell", `{"command":"tail -f notes","workspace":"/srv/old"}`, "Content-Type",
			"application/json").Body
	})
	t.Cleanup(func() { cancel(); waits.Wait() }) // in case the lines' tests are not run
}

// workspaceContent returns the workspace's entries and the content of its files.
func (r *readonly) workspaceContent(t *testing.T, s *harness.Server) string {
	t.Helper()
	got := operator(s, "default", "system.bash").run(t,
		`find . -printf '%p %y %m %l\n' | sort; cat notes list script ls bin/ls`)
	if got.ExitCode == nil || *got.ExitCode != 0 {
		t.Fatalf("list the workspace: %s, want exit code 0", got.Output)
	}
	return outputOf(t, got)["stdout"].(string)
}

// run runs a command in the shared sandbox, and stores the text of refusals.
func (r *readonly) run(t *testing.T, s *harness.Server, command string) v1.ToolResult {
	t.Helper()
	got := operator(s, "readonly", "run_shell").run(t, command)
	if out := outputOf(t, got); out["success"] != true {
		r.storeText(string(got.Output) + got.Text + got.Detail)
	}
	return got
}

// storeText stores the text of a refusal or failure.
func (r *readonly) storeText(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.texts = append(r.texts, text)
}

// assertRefused checks a refusal by a rule with this prefix, and a part of its text.
func (r *readonly) assertRefused(t *testing.T, got v1.ToolResult, rule, says string) {
	t.Helper()
	if got.Ending != "policy_denied" || got.Verdict == nil || !strings.HasPrefix(got.Verdict.Rule, rule) {
		t.Errorf("ending %s, verdict %+v, output %s; want a refusal by %s", got.Ending, got.Verdict, got.Output, rule)
		return
	}
	assertFields(t, got, fields{"success": false, "stdout": "", "returncode": -1})
	if text, _ := outputOf(t, got)["stderr"].(string); !strings.HasPrefix(text, "Security: ") ||
		!strings.Contains(text, says) {
		t.Errorf("stderr %q, want Security: and %q", text, says)
	}
}

// commands returns the tests of allowed commands.
func (r *readonly) commands() table {
	find := func(t *testing.T, s *harness.Server) []v1.Tool {
		t.Helper()
		list, err := s.Client.Tools.List(callContext(t), "readonly")
		if err != nil || len(list) == 0 {
			t.Fatalf("Tools = %+v, %v; want some", list, err)
		}
		return list
	}
	return table{
		"tool/name": func(t *testing.T, s *harness.Server, _ line) {
			if got := find(t, s)[0]; got.Name != "run_shell" ||
				got.Description != "Run read-only shell commands like ls, cat, grep, find." || !got.Enabled {
				t.Errorf("tool %+v, want run_shell, enabled", got)
			}
		},
		"tool/input": func(t *testing.T, s *harness.Server, _ line) {
			got := find(t, s)[0]
			for _, name := range []string{"command", "timeout"} {
				if !strings.Contains(string(got.Input), `"`+name+`"`) {
					t.Errorf("input schema = %s, want the property %s in it", got.Input, name)
				}
			}
			for _, name := range []string{"success", "stdout", "stderr", "returncode"} {
				if !strings.Contains(string(got.Output), `"`+name+`"`) {
					t.Errorf("output schema = %s, want the property %s in it", got.Output, name)
				}
			}
			assertFields(t, r.run(t, s, "cat notes"),
				fields{"success": true, "stdout": "TODO one\ntwo\n", "stderr": "", "returncode": 0})
		},
		"text": func(t *testing.T, s *harness.Server, l line) {
			command, says := "cat notes", "TODO one\ntwo\n"
			if lastOf(l) == "error" {
				command, says = "cat nowhere", "cat: nowhere: No such file or directory\n"
			}
			if got := r.run(t, s, command); got.Text != says {
				t.Errorf("text %q, want %q", got.Text, says)
			}
		},
		"tool/only": func(t *testing.T, s *harness.Server, _ line) {
			if list := find(t, s); len(list) != 1 {
				t.Errorf("Tools = %+v, want one", list)
			}
		},
		"allowed": func(t *testing.T, s *harness.Server, l line) {
			command := quoted(t, l)
			if program, _, _ := strings.Cut(command, " "); program != lastOf(l) {
				t.Fatalf("line %s is about %s, want its last part to be that program", l.id, command)
			}
			says := map[string]string{
				"ls":     "notes\n",
				"cat":    "two\n",
				"head":   "TODO one\n",
				"tail":   "two\n",
				"less":   "two\n",
				"file":   "notes: ",
				"stat":   "notes",
				"find":   "./notes\n",
				"grep":   "notes:TODO one\n",
				"rg":     "TODO one",
				"awk":    "1\n",
				"sed":    "TODO one\n",
				"wc":     "2 notes\n",
				"sort":   "two\n",
				"uniq":   "two\n",
				"cut":    "TODO\n",
				"pwd":    "/workspace\n",
				"which":  "/bin/ls\n",
				"whoami": "\n",
				"date":   "UTC",
				"env":    "PATH=",
			}[lastOf(l)]
			got := r.run(t, s, command)
			assertFields(t, got, fields{"success": true, "returncode": 0})
			if out, _ := outputOf(t, got)["stdout"].(string); !strings.Contains(out, says) {
				t.Errorf("stdout = %q, want it to contain %q", out, says)
			}
		},
		"allowed-all": func(t *testing.T, s *harness.Server, _ line) {
			names := strings.Split(whitelist, ", ")
			if !slices.IsSorted(names) || len(names) != 23 {
				t.Fatalf("allowed commands %q, want 23 sorted names", names)
			}
			assertFields(t, r.run(t, s, "nothing"),
				fields{"stderr": "Security: Command 'nothing' not in whitelist. Allowed: " + whitelist})
		},
		"inside": func(t *testing.T, s *harness.Server, l line) {
			assertFields(t, r.run(t, s, quoted(t, l)), fields{"success": true, "stdout": "TODO one\ntwo\n"})
		},
		"guest-link-inside": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, r.run(t, s, "cat link-in"), fields{"success": true, "stdout": "TODO one\ntwo\n"})
		},
		"words": func(t *testing.T, s *harness.Server, _ line) {
			for command, want := range map[string]string{
				`grep -c 'TODO one' notes`: "1\n",
				`grep -c "TODO one" notes`: "1\n",
				`grep -c TODO\ one notes`:  "1\n",
				"cat \t no'te's":           "TODO one\ntwo\n",
			} {
				assertFields(t, r.run(t, s, command), fields{"success": true, "stdout": want})
			}
		},
		"meta-not": func(t *testing.T, s *harness.Server, l line) {
			switch lastOf(l) {
			case "line":
				assertFields(t, r.run(t, s, "ls\nnotes"), fields{"success": true, "stdout": "notes\n"})
			case "ampersand":
				assertFields(t, r.run(t, s, "grep -c & notes"), fields{"success": false, "stdout": "0\n", "returncode": 1})
			default:
				assertFields(t, r.run(t, s, "ls *"), fields{"success": false, "stdout": "", "returncode": 2})
			}
		},
	}
}

// hostWords returns words that only the host knows.
func hostWords(t *testing.T, s *harness.Server) []string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	words := []string{
		s.Dir(), s.Socket(), "/var/", "/run/", "/tmp/", "/sys/", "orchestrator", "runc", "cgroup", "goroutine", ".go:",
		"root:",
	}
	if strings.ContainsAny(name, "0123456789-.") { // not a common word
		words = append(words, name)
	}
	return words
}

// shellAnswer is the answer of POST /shell.
type shellAnswer struct {
	Success    *bool   `json:"success"`
	Stdout     *string `json:"stdout"`
	Stderr     *string `json:"stderr"`
	ReturnCode *int    `json:"returncode"`
}

// post sends a body to POST /shell, as its clients do, and checks the answer's fields.
func (r *readonly) post(t *testing.T, s *harness.Server, body string, success bool, says string) shellAnswer {
	t.Helper()
	got := s.Ask(t, "POST", "/shell", body, "Content-Type", "application/json")
	var a shellAnswer
	got.Into(t, &a)
	if got.Status != 200 || a.Success == nil || a.Stdout == nil || a.Stderr == nil || a.ReturnCode == nil {
		t.Fatalf("POST /shell %s: status %d, want 200 with all fields: %s", body, got.Status, got.Body)
	}
	if *a.Success != success || success != (*a.ReturnCode == 0) || !strings.Contains(*a.Stdout+*a.Stderr, says) {
		t.Errorf("POST /shell %s: %s, want success %v and %q", body, got.Body, success, says)
	}
	if !success {
		r.storeText(string(got.Body))
	}
	return a
}
