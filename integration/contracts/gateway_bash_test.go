//go:build integration

package contracts

import (
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// program returns the input of bash.
func program(command string, args ...string) fields {
	if args == nil {
		args = []string{}
	}
	return fields{"command": command, "args": args}
}

// bash returns the tests of the tool bash.
func (g *gateway) bash() table {
	bash := func(s *harness.Server, profile string) agent { return operator(s, profile, "bash") }
	victim := func(t *testing.T, s *harness.Server) (still func()) {
		shell(t, bash(s, "gateway"), "echo x > victim")
		return func() { t.Helper(); shell(t, bash(s, "gateway"), "test -f victim") }
	}
	return table{
		"bash-allowed": func(t *testing.T, s *harness.Server, _ line) {
			r := bash(s, "gateway").call(t, program("sh", "-c", "echo out; echo err >&2"))
			assertFields(t, r, fields{"exitCode": 0, "stdout": "out\n", "stderr": "err\n", "truncated": false})
		},
		"bash-code": func(t *testing.T, s *harness.Server, _ line) {
			r := bash(s, "gateway").call(t, program("sh", "-c", "echo out; echo err >&2; exit 3"))
			assertFields(t, r, fields{"exitCode": 3, "stdout": "out\n", "stderr": "err\n"})
			if r.Error != nil {
				t.Errorf("error %+v, want none", r.Error)
			}
		},
		"bash-input": func(t *testing.T, s *harness.Server, l line) {
			field := map[string]string{"command": "command", "empty": "command", "args": "args", "unknown": "shell"}[lastOf(l)]
			in := map[string]fields{
				"command": {"args": []string{"x"}},
				"empty":   {"command": ""},
				"args":    {"command": "ls", "args": "x y"},
				"unknown": {"command": "ls", "shell": true},
			}[lastOf(l)]
			assertInvalid(t, bash(s, "gateway"), in, field)
		},
		"bash-args": func(t *testing.T, s *harness.Server, _ line) {
			args := []string{"[%s]", "a  b", "'q' \"d\"", "*", "$HOME", "x\ny", "", "-n", "é€"}
			assertFields(t, bash(s, "gateway").call(t, program("printf", args...)),
				fields{"stdout": "[" + strings.Join(args[1:], "][") + "]"})
		},
		"injection": func(t *testing.T, s *harness.Server, l line) {
			shell(t, bash(s, "gateway"), "rm -f hit")
			assertError(t, bash(s, "gateway").call(t, program(quoted(t, l))), "failed", "NotFound", "")
			shell(t, bash(s, "gateway"), "test ! -e hit && test -e in/file && test -e /etc/passwd")
		},
		"injection-args": func(t *testing.T, s *harness.Server, _ line) {
			for _, arg := range []string{
				"; touch hit", "&& touch hit", "| touch hit", "$(touch hit)", "`touch hit`", "> hit", "\ntouch hit",
			} {
				assertFields(t, bash(s, "gateway").call(t, program("echo", "-n", arg)), fields{"stdout": arg})
			}
			shell(t, bash(s, "gateway"), "test ! -e hit")
		},
		"allow": func(t *testing.T, s *harness.Server, l line) {
			args := map[string][]string{
				"ls":   {"in"},
				"cat":  {"in/file"},
				"grep": {"inside", "in/file"},
				"git":  {"--version"},
			}[lastOf(l)]
			says := map[string]string{"ls": "file\n", "cat": "inside\n", "grep": "inside\n", "git": "git version "}[lastOf(l)]
			r := bash(s, "lists").call(t, program(lastOf(l), args...))
			if got := outputOf(t, r); got["exitCode"] != float64(0) || !strings.Contains(got["stdout"].(string), says) {
				t.Errorf("output %s, want exit code 0 and %q", r.Output, says)
			}
		},
		"allow-other": func(t *testing.T, s *harness.Server, _ line) {
			for _, name := range []string{"touch", "sh", "LS", "ls2", "git-shell"} {
				assertEnding(t, bash(s, "lists").call(t, program(name, "hit")), "policy_denied", "PolicyDenied",
					"Command not allowed: '"+name+"'. Allowed: cat, git, grep, ls, pwd")
			}
			shell(t, bash(s, "gateway"), "test ! -e hit")
		},
		"allow-path": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, bash(s, "lists").call(t, program("/bin/ls", "other")), fields{"exitCode": 0, "stdout": "file\n"})
			for _, name := range []string{"/usr/bin/whoami", "/bin/../bin/whoami", "./whoami"} {
				assertError(t, bash(s, "lists").call(t, program(name)), "policy_denied", "PolicyDenied",
					"Command not allowed: 'whoami'")
			}
		},
		"allow-through": func(t *testing.T, s *harness.Server, _ line) {
			for _, args := range [][]string{
				{"-c", "alias.x=!touch hit", "x"}, {"-c", "core.pager=touch hit", "-p", "log"},
				{"-c", "core.sshCommand=touch hit", "ls-remote", "ssh://x/y"},
			} {
				if r := bash(s, "lists").call(t, program("git", args...)); r.Ending != "policy_denied" {
					t.Errorf("git %v: ending %s, want policy_denied", args, r.Ending)
				}
			}
			shell(t, bash(s, "gateway"), "test ! -e hit")
		},
		"deny": func(t *testing.T, s *harness.Server, l line) {
			still := victim(t, s)
			assertEnding(t, bash(s, "denies").call(t, program(lastOf(l), "victim")), "policy_denied", "PolicyDenied",
				"Command denied: '"+lastOf(l)+"'")
			still()
		},
		"deny-path": func(t *testing.T, s *harness.Server, _ line) {
			still := victim(t, s)
			for _, name := range []string{"/bin/rm", "/usr/bin/rm", "/bin/../bin/rm", "//bin//rm", "../bin/rm"} {
				assertEnding(t, bash(s, "denies").call(t, program(name, "victim")), "policy_denied", "PolicyDenied",
					"Command denied: 'rm'")
			}
			still()
		},
		"deny-through": func(t *testing.T, s *harness.Server, l line) {
			still := victim(t, s)
			argv := map[string][]string{
				"env":     {"rm", "victim"},
				"nice":    {"-n", "5", "rm", "victim"},
				"timeout": {"5", "rm", "victim"},
				"xargs":   {"rm"},
				"sh":      {"-c", "rm victim"},
				"find":    {".", "-name", "victim", "-exec", "rm", "{}", ";"},
			}[lastOf(l)]
			assertError(t, bash(s, "denies").call(t, program(lastOf(l), argv...)), "policy_denied", "PolicyDenied",
				"Command denied: 'rm'")
			still()
		},
		"deny-first": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, bash(s, "both").call(t, program("ls", "other")), fields{"stdout": "file\n"})
			assertEnding(t, bash(s, "both").call(t, program("rm", "victim")), "policy_denied", "PolicyDenied",
				"Command denied: 'rm'")
		},
		"cwd-in": func(t *testing.T, s *harness.Server, _ line) {
			for cwd, want := range map[string]string{
				"/workspace":        "/workspace\n",
				"in":                "/workspace/in\n",
				"/workspace/in/sub": "/workspace/in/sub\n",
				"in/../other":       "/workspace/other\n",
			} {
				assertFields(t, bash(s, "lists").call(t, fields{"command": "pwd", "cwd": cwd}),
					fields{"exitCode": 0, "stdout": want})
			}
		},
		"cwd-default": func(t *testing.T, s *harness.Server, _ line) {
			for _, profile := range []string{"gateway", "lists"} {
				assertFields(t, bash(s, profile).call(t, program("pwd")), fields{"stdout": "/workspace\n"})
			}
		},
		"cwd-out": func(t *testing.T, s *harness.Server, l line) {
			r := bash(s, "lists").call(t, fields{"command": "ls", "cwd": quoted(t, l)})
			assertError(t, r, "failed", "AccessDenied", "is not allowed: use one below /workspace")
		},
		"cwd-link": func(t *testing.T, s *harness.Server, _ line) {
			for _, c := range []struct{ profile, cwd string }{
				{"lists", "/workspace/link-folder"}, {"lists", "link-dots"}, {"dirs", "/workspace/in/link-other"},
			} {
				assertError(t, bash(s, c.profile).call(t, fields{"command": "ls", "cwd": c.cwd}), "failed", "AccessDenied", "")
			}
			assertFields(t, bash(s, "lists").call(t, fields{"command": "cat", "args": []string{"file"}, "cwd": "link-dir"}),
				fields{"stdout": "inside\n"})
		},
		"cwd-missing": func(t *testing.T, s *harness.Server, _ line) {
			assertError(t, bash(s, "lists").call(t, fields{"command": "ls", "cwd": "nowhere"}), "failed", "NotFound", "nowhere")
		},
		"timeout-default": func(t *testing.T, _ *harness.Server, _ line) {
			r := <-g.slow
			assertEnding(t, r, "timeout", "Timeout", "Command timed out after 30000ms")
			if r.DurationMS < 30_000 {
				t.Errorf("ended after %.0f ms, want at least 30 s", r.DurationMS)
			}
		},
		"timeout-config": func(t *testing.T, s *harness.Server, _ line) {
			assertEnding(t, bash(s, "limits").call(t, program("sleep", "3000")), "timeout", "Timeout",
				"Command timed out after 1500ms")
		},
		"timeout-tree": func(t *testing.T, s *harness.Server, _ line) {
			mark := uniqueWord()
			sleep := "sh -c 'sleep 3000; :' " + mark
			script := "setsid " + sleep + " & nohup " + sleep + " & (" + sleep + " &); wait"
			r := bash(s, "limits").call(t, program("sh", "-c", script, mark))
			assertError(t, r, "timeout", "Timeout", "1500ms")
			awaitNoProcess(t, mark)
		},
		"output-default": func(t *testing.T, s *harness.Server, _ line) {
			for _, stream := range []string{"stdout", "stderr"} {
				to := map[string]string{"stdout": "1", "stderr": "2"}[stream]
				r := bash(s, "gateway").call(t, program("sh", "-c", "{ echo begin; yes | head -c 20000; } >&"+to))
				assertCut(t, r, stream, 10240, "begin\n")
			}
		},
		"output-edge": func(t *testing.T, s *harness.Server, _ line) {
			r := bash(s, "gateway").call(t, program("sh", "-c", "yes | head -c 10240"))
			assertFields(t, r, fields{"truncated": false, "stdout": strings.Repeat("y\n", 5120)})
			r = bash(s, "gateway").call(t, program("sh", "-c", "yes | head -c 10241"))
			assertCut(t, r, "stdout", 10240, "y\n")
		},
		"output-config": func(t *testing.T, s *harness.Server, _ line) {
			assertCut(t, bash(s, "narrow").call(t, program("sh", "-c", "echo begin; yes | head -c 20000")), "stdout", 100,
				"begin\n")
		},
	}
}

// assertCut checks that a stream is cut after its first bytes, and reported as truncated.
func assertCut(t *testing.T, r v1.ToolResult, stream string, bytes int, begin string) {
	t.Helper()
	out := outputOf(t, r)
	text := out[stream].(string)
	if len(text) != bytes || !strings.HasPrefix(text, begin) || out["truncated"] != true || out["exitCode"] != float64(0) {
		t.Errorf("%s has %d bytes, truncated %v, want %d bytes that begin with %q, truncated: %.60q",
			stream, len(text), out["truncated"], bytes, begin, text)
	}
}
