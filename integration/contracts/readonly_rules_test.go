//go:build integration

package contracts

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// refusals returns the tests of refused commands.
func (r *readonly) refusals() table {
	unlisted := func(t *testing.T, s *harness.Server, l line) {
		command := quoted(t, l)
		name, _, _ := strings.Cut(command, " ")
		r.assertRefused(t, r.run(t, s, command), "allowlist:", "Command '"+name+"' not in whitelist. Allowed: "+whitelist)
	}
	return table{
		"blocked": func(t *testing.T, s *harness.Server, l line) {
			if name, _, _ := strings.Cut(quoted(t, l), " "); name != lastOf(l) {
				t.Fatalf("line %s is about %s, want its last part to be that", l.id, name)
			}
			unlisted(t, s, l)
		},
		"unlisted": unlisted,
		"meta": func(t *testing.T, s *harness.Server, l line) {
			_, sign, _ := strings.Cut(l.text, "` is refused for ")
			sign, _, _ = strings.Cut(sign, ",")
			got := r.run(t, s, quoted(t, l))
			r.assertRefused(t, got, "forbidden:", "")
			assertFields(t, got, fields{"stderr": "Security: Blocked: shell metacharacter '" + sign + "' not allowed"})
		},
		"meta-backtick": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, r.run(t, s, "ls `pwd`"),
				fields{"success": false, "stderr": "Security: Blocked: shell metacharacter '`' not allowed"})
		},
		"syntax": func(t *testing.T, s *harness.Server, l line) {
			_, says, _ := strings.Cut(l.text, "is refused: ")
			got := r.run(t, s, quoted(t, l))
			r.assertRefused(t, got, "syntax", "")
			assertFields(t, got, fields{"stderr": "Security: " + says})
		},
		"empty": func(t *testing.T, s *harness.Server, l line) {
			got := r.run(t, s, map[string]string{"nothing": "", "blanks": " \t\n "}[lastOf(l)])
			r.assertRefused(t, got, "empty", "")
			assertFields(t, got, fields{"stderr": "Security: Empty command"})
		},
		"security": func(t *testing.T, s *harness.Server, _ line) {
			for _, command := range []string{
				"rm notes", "ls;", "", "ls '", "sort -o made notes", "cat /etc/passwd", "cat link-file",
			} {
				r.assertRefused(t, r.run(t, s, command), "", "Security: ")
			}
		},
		"trick": func(t *testing.T, s *harness.Server, l line) {
			r.assertRefused(t, r.run(t, s, quoted(t, l)), "argument", "")
		},
		"outside": func(t *testing.T, s *harness.Server, l line) {
			r.assertRefused(t, r.run(t, s, quoted(t, l)), "path", "")
		},
		"guest-link": func(t *testing.T, s *harness.Server, l line) {
			command := quoted(t, l)
			says, err := s.Client.Tools.CheckPolicy(callContext(t), v1.PolicyCheck{Profile: "readonly", Command: command})
			if err != nil || says.Verdict != "allow" {
				t.Errorf("PolicyCheck = %+v, %v; want allow", says, err)
			}
			r.assertRefused(t, r.run(t, s, command), "sandbox:", "outside")
		},
		"guest-program": func(t *testing.T, s *harness.Server, _ line) {
			// The lease has a PATH that begins with the workspace.
			box, err := s.Client.CreateSandbox(callContext(t),
				v1.SandboxRequest{WhenEmpty: "cold", Env: map[string]string{"PATH": "/workspace/bin:/usr/bin:/bin"}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Client.RemoveSandbox(callContext(t), box.ID) }()
			set, err := s.Client.Exec(callContext(t), box.ID, v1.Exec{Command: notesScript + "PATH=/workspace/bin:$PATH; ls"})
			if err != nil || set.Stdout != "evil\n" {
				t.Fatalf("set up the workspace: %+v, %v; want the script's ls", set, err)
			}
			got, err := s.Client.Tools.Call(callContext(t), "run_shell", v1.ToolCall{Profile: "readonly", Sandbox: box.ID,
				Input: json.RawMessage(`{"command":"ls notes"}`)}, client.CallOptions{})
			if err != nil {
				t.Fatal(err)
			}
			assertFields(t, got, fields{"success": true, "stdout": "notes\n"})
		},
	}
}

// around returns the tests of timeouts, results and records.
func (r *readonly) around() table {
	// late returns a test that a command ended after 30 s.
	late := func(from chan v1.ToolResult) func(t *testing.T, s *harness.Server, l line) {
		return func(t *testing.T, _ *harness.Server, _ line) {
			got := <-from
			assertFields(t, got, fields{"success": false, "stderr": "Command timed out"})
			if got.ID != "" && (got.Ending != "timeout" || got.DurationMS < 30_000) {
				t.Errorf("ended with %s after %.0f ms, want timeout after 30 s", got.Ending, got.DurationMS)
			}
		}
	}
	return table{
		"cwd": func(t *testing.T, s *harness.Server, _ line) {
			for _, command := range []string{"pwd", "pwd -P", "find /workspace -maxdepth 0"} {
				assertFields(t, r.run(t, s, command), fields{"success": true, "stdout": "/workspace\n"})
			}
			assertInvalid(t, operator(s, "readonly", "run_shell"), fields{"command": "pwd", "cwd": "/"}, "cwd")
		},
		"timeout-default": late(r.slow),
		"timeout-most":    late(r.most),
		"shell-default":   late(r.shellSlow),
		"timeout-less": func(t *testing.T, s *harness.Server, _ line) {
			got := operator(s, "readonly", "run_shell").call(t, fields{"command": "tail -f notes", "timeout": 0.5})
			assertFields(t, got, fields{"success": false, "stdout": "", "stderr": "Command timed out", "returncode": -1})
		},
		"returncode": func(t *testing.T, s *harness.Server, _ line) {
			assertFields(t, r.run(t, s, "grep -c nothing notes"),
				fields{"success": false, "stdout": "0\n", "stderr": "", "returncode": 1})
			assertFields(t, r.run(t, s, "cat nowhere"),
				fields{"success": false, "stderr": "cat: nowhere: No such file or directory\n", "returncode": 1})
		},
		"audit": func(t *testing.T, s *harness.Server, l line) {
			if lastOf(l) == "broken" {
				a := newTokenAgent(t, s, v1.TokenRequest{Caller: "broken", Profile: "readonly"}, "run_shell")
				assertInvalid(t, a, fields{"command": 7}, "command")
				list, err := a.client.Audit.Records(callContext(t), client.AuditFilter{})
				if err != nil || len(list) != 2 || list[0].Action != "run_shell" || !strings.Contains(list[1].Error, "command") {
					t.Errorf("records %+v, %v; want two, the last with the field's name", list, err)
				}
				return
			}
			c := map[string]struct{ command, verdict, rule string }{
				"allowed": {"cat 'notes'", "allow", ""},
				"refused": {"rm -rf notes", "deny", "allowlist:rm"},
				"guest":   {"cat link-file", "deny", "sandbox:argv"},
			}[lastOf(l)]
			got := r.run(t, s, c.command)
			record := closingRecord(t, s, got)
			if record.Verdict != c.verdict || c.rule != "" && record.Rule != c.rule {
				t.Errorf("closing record %+v, want %+v", record, c)
			}
			list, err := s.Client.Audit.Records(callContext(t), client.AuditFilter{Call: got.ID})
			if err != nil || !strings.Contains(string(list[0].Input), c.command) || list[0].Profile != "readonly" {
				t.Errorf("records %+v, %v; want the command and the profile", list, err)
			}
		},
		"leaks": func(t *testing.T, s *harness.Server, _ line) {
			for _, command := range []string{
				"cat nowhere", "ls sub/none", "find nowhere", "diff notes nowhere", "file nowhere", "sort nowhere", "stat nowhere",
			} {
				r.run(t, s, command)
			}
			for _, text := range r.texts {
				for _, word := range hostWords(t, s) {
					if strings.Contains(text, word) {
						t.Errorf("answer = %s, want it without %q, which only the host knows", text, word)
					}
				}
			}
		},
		"no-writes": func(t *testing.T, s *harness.Server, _ line) {
			if now := r.workspaceContent(t, s); now != r.before {
				t.Errorf("the workspace is\n%s\nwant it unchanged:\n%s", now, r.before)
			}
		},
	}
}

// shell returns the tests of POST /shell.
func (r *readonly) shell() table {
	request := func(command, workspace string) string {
		b, err := json.Marshal(map[string]any{"command": command, "workspace": workspace, "timeout": 30})
		if err != nil {
			panic(err)
		}
		return string(b)
	}
	return table{
		"shell-off": func(t *testing.T, _ *harness.Server, _ line) {
			s := harness.Run(t, harness.Options{Runtime: harness.Runtimes()[0], Seed: &seed})
			s.Ask(t, "POST", "/shell", request("ls", "/srv/old"), "Content-Type", "application/json").
				Problem(t, 404, "not_found", "")
		},
		"shell-here": func(t *testing.T, s *harness.Server, l line) {
			dir := harness.TempDir(t)
			harness.WriteFile(t, dir+"/token", "contract-of-the-readonly-shell-0123456789")
			file := map[string]string{
				"listen": "listen: '0.0.0.0:7070'\ntoken_file: '" + dir +
					"/token'\nreadonly_shell: {enabled: true, caller: chat, workspaces: {/srv/old: old}}\n",
				"workspaces": "listen: 'unix:" + dir + "/s'\nreadonly_shell: {enabled: true, caller: chat}\n",
			}[lastOf(l)]
			harness.WriteFile(t, dir+"/config.yaml", file)
			got := s.CLI(t, "config", "check", dir+"/config.yaml")
			if got.Code == 0 || !strings.Contains(got.Stderr, "readonly_shell.") {
				t.Errorf("config check = %+v, want an error of readonly_shell", got)
			}
		},
		"shell-success": func(t *testing.T, s *harness.Server, _ line) {
			if a := r.post(t, s, request("cat notes", "/srv/old"), true, ""); *a.Stdout != "TODO one\ntwo\n" || *a.Stderr != "" {
				t.Errorf("cat notes: stdout %q, stderr %q; want the file only", *a.Stdout, *a.Stderr)
			}
			r.post(t, s, `{"command":"pwd","workspace":"/srv/old"}`, true, "/workspace\n")
		},
		"shell-failure": func(t *testing.T, s *harness.Server, _ line) {
			if a := r.post(t, s, request("ls nowhere", "/srv/old"), false, "nowhere"); *a.ReturnCode != 2 {
				t.Errorf("ls nowhere: return code %d, want 2", *a.ReturnCode)
			}
		},
		"shell-refusal": func(t *testing.T, s *harness.Server, l line) {
			c := map[string][2]string{
				"command": {"rm -rf notes", "Command not allowed: Command 'rm' not in whitelist. Allowed: " +
					whitelist}, "meta": {"ls; ls", "Blocked: ';' not allowed"},
				"syntax":  {"ls '", "Invalid command syntax: No closing quotation"},
				"empty":   {" ", "Command not allowed: Empty command"},
				"trick":   {"sort -o made notes", "-o"},
				"outside": {"cat /etc/passwd", "outside"},
				"link":    {"cat link-file", "outside"},
			}[lastOf(l)]
			a := r.post(t, s, request(c[0], "/srv/old"), false, c[1])
			if *a.ReturnCode != -1 || *a.Stdout != "" {
				t.Errorf("refusal: return code %d, stdout %q; want -1 and nothing", *a.ReturnCode, *a.Stdout)
			}
		},
		"shell-timeout": func(t *testing.T, s *harness.Server, _ line) {
			if a := r.post(t, s, `{"command":"tail -f notes","workspace":"/srv/old","timeout":1}`, false,
				""); *a.Stderr != "Command timed out" {
				t.Errorf("timeout: stderr %q, want Command timed out", *a.Stderr)
			}
		},
		"shell-workspace": func(t *testing.T, s *harness.Server, l line) {
			path := map[string]string{
				"unknown": "/srv/new",
				"host":    "/etc",
				"prefix":  "/srv/old/sub",
				"gone":    "/srv/gone",
			}[lastOf(l)]
			if a := r.post(t, s, request("ls", path), false, ""); *a.Stderr != "Workspace not found" {
				t.Errorf("unknown workspace: stderr %q, want Workspace not found", *a.Stderr)
			}
		},
		"shell-bad": func(t *testing.T, s *harness.Server, l line) {
			body := map[string]string{
				"json":      `{"command":`,
				"list":      `["ls"]`,
				"command":   `{"workspace":"/srv/old"}`,
				"workspace": `{"command":"ls"}`,
				"type":      `{"command":7,"workspace":"/srv/old"}`,
				"timeout":   `{"command":"ls","workspace":"/srv/old","timeout":-1}`,
				"unknown":   `{"command":"ls","workspace":"/srv/old","user":"root"}`,
			}[lastOf(l)]
			if a := r.post(t, s, body, false, ""); *a.Stderr == "" || *a.ReturnCode != -1 {
				t.Errorf("bad request: stderr %q, return code %d; want a message and -1", *a.Stderr, *a.ReturnCode)
			}
		},
		"shell-no-token": func(t *testing.T, _ *harness.Server, _ line) {
			file := harness.TempDir(t) + "/token"
			harness.WriteFile(t, file, "contract-of-the-readonly-shell-0123456789")
			s := harness.Run(t, harness.Options{
				Runtime: harness.Runtimes()[0], Seed: &seed, Config: fmt.Sprintf("token_file: '%s'\n", file) + readonlyConfig,
			})
			s.Ask(t, "GET", "/v1/sandboxes", "").Problem(t, 401, "unauthenticated", "")
			if a := r.post(t, s, request("ls", "/srv/none"), false, ""); *a.Stderr != "Workspace not found" {
				t.Errorf("unknown workspace: stderr %q, want Workspace not found", *a.Stderr)
			}
			r.post(t, s, request("rm x", "/srv/old"), false, "not in whitelist")
			s.CLI(t, "down").Is(t, 0, "")
			s.Ended()
		},
		"shell-caller": func(t *testing.T, s *harness.Server, _ line) {
			r.post(t, s, request("wc -l notes", "/srv/old"), true, "2 notes")
			list, err := s.Client.Audit.Records(callContext(t),
				client.AuditFilter{Caller: "chat", Action: "run_shell", Newest: true, Limit: 2})
			if err != nil || len(list) != 2 || !strings.Contains(string(list[0].Input), "wc -l notes") ||
				list[0].Via != "shell" || list[1].Workspace != "old" {
				t.Errorf("records %+v, %v; want the call of chat over the shell in workspace old", list, err)
			}
		},
		"shell-readonly": func(t *testing.T, s *harness.Server, _ line) {
			r.post(t, s, request("ls", "/srv/old"), true, "notes")
			chat := newTokenAgent(t, s, v1.TokenRequest{Caller: "chat", Trust: 3}, "run_shell")
			list, err := chat.client.Sandboxes(callContext(t), false)
			if err != nil || len(list) != 1 || !list[0].ReadOnly || list[0].Workspace != "old" {
				t.Fatalf("sandboxes of chat = %+v, %v; want a read-only one of workspace old", list, err)
			}
			if got, err := chat.client.Exec(callContext(t), list[0].ID, v1.Exec{Command: "touch made"}); err != nil ||
				got.ExitCode == 0 {
				t.Errorf("touch in a read-only workspace = %+v, %v; want a failure", got, err)
			}
		},
		"shell-browser": func(t *testing.T, s *harness.Server, l line) {
			header := map[string][]string{
				"origin": {"Content-Type", "application/json", "Origin", "http://example.com"},
				"site":   {"Content-Type", "application/json", "Sec-Fetch-Site", "cross-site"},
				"form":   {"Content-Type", "text/plain"},
			}[lastOf(l)]
			s.Ask(t, "POST", "/shell", request("ls", "/srv/old"), header...).Problem(t, 403, "permission_denied", "")
		},
	}
}
