package profile

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

func toolOf(tb testing.TB, profile, name string) *CompiledTool {
	tb.Helper()
	c, err := builtins(tb).Get(profile)
	if err != nil {
		tb.Fatal(err)
	}
	ct, err := c.Tool(name)
	if err != nil {
		tb.Fatal(err)
	}
	return ct
}

func sameJSON(t *testing.T, what, got, want string) {
	t.Helper()
	var g, w any
	if got == "" {
		got = "null"
	}
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Errorf("%s = %s, want JSON", what, got)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(w, g); d != "" {
		t.Errorf("JSON of %s (-want +got):\n%s", what, d)
	}
}

// prepareCases are inputs with the built-in tool and its input.
var prepareCases = []struct{ profile, tool, input, base, want string }{
	{"default", "system.bash", `{"command":"ls"}`, "system.bash", `{"command":"ls"}`},
	{"default", "system_bash", ``, "system.bash", `{}`},

	{"phase2", "system.bash", `{"command":"ls"}`, "system.bash", `{"command":"ls","run_in_background":false}`},
	{
		"phase2", "system_bash",
		`{"command":"ls","timeout_ms":100,"working_directory":"sub","run_in_background":true,"description":"why"}`,
		"system.bash",
		`{"command":"ls","timeout_ms":100,"cwd":"sub","run_in_background":true,"description":"why"}`,
	},
	{"phase2", "system.bash", `{"command":"ls","working_directory":null}`, "system.bash",
		`{"command":"ls","run_in_background":false}`},
	{"phase2", "system.kill", `{"shell_id":"nonexistent"}`, "system.kill",
		`{"shell_id":"nonexistent","grace_ms":5000}`},
	{"phase2", "system.output", `{"shell_id":"x"}`, "system.output", `{"shell_id":"x"}`},

	{"gateway", "bash", `{"command":"command; rm -rf /"}`, "system.run", `{"argv":["command; rm -rf /"]}`},
	{"gateway", "bash", `{"command":"ls","args":["-l","a b"],"cwd":"/home/user/projects"}`, "system.run",
		`{"argv":["ls","-l","a b"],"cwd":"/home/user/projects"}`},
	{"gateway", "filesystem", `{"operation":"read","path":"a"}`, "fs.read", `{"path":"a","encoding":"text"}`},
	{"gateway", "filesystem", `{"operation":"read","path":"a","encoding":"base64"}`, "fs.read",
		`{"path":"a","encoding":"base64"}`},
	{"gateway", "filesystem", `{"operation":"write","path":"a","content":"x"}`, "fs.write",
		`{"path":"a","content":"x","encoding":"text"}`},
	{"gateway", "filesystem", `{"operation":"write","path":"a","content":"eA==","encoding":"base64"}`, "fs.write",
		`{"path":"a","content":"eA==","encoding":"base64"}`},
	{"gateway", "filesystem", `{"operation":"list","path":"/tmp"}`, "fs.list", `{"path":"/tmp"}`},
	{"gateway", "filesystem", `{"operation":"stat","path":"a"}`, "fs.stat", `{"path":"a"}`},
	{"gateway", "filesystem", `{"operation":"delete","path":"a"}`, "fs.delete", `{"path":"a"}`},

	{"readonly", "run_shell", `{"command":"grep -r TODO ."}`, "system.line",
		`{"command":"grep -r TODO .","cwd":"/workspace"}`},
	{"readonly", "run_shell", `{"command":"ls","timeout":5}`, "system.line",
		`{"command":"ls","cwd":"/workspace","timeout_ms":5000}`},
	{"readonly", "run_shell", `{"command":"ls","timeout":0}`, "system.line", `{"command":"ls","cwd":"/workspace"}`},
	{"readonly", "run_shell", `{"command":"ls","timeout":9999}`, "system.line",
		`{"command":"ls","cwd":"/workspace","timeout_ms":30000}`},
	{"readonly", "run_shell", `{"command":""}`, "system.line", `{"command":"","cwd":"/workspace"}`},

	{"universal", "run_command", `{"command":"ls | wc -l"}`, "system.bash", `{"command":"ls | wc -l"}`},
	{"universal", "run_command", `{"command":"ls","working_dir":"a/b","timeout":5}`, "system.bash",
		`{"command":"ls","cwd":"a/b","timeout_ms":5000}`},
	{"universal", "run_command", `{"command":"ls","timeout":0.5}`, "system.bash",
		`{"command":"ls","timeout_ms":500}`},
	{"universal", "run_command", `{"command":"ls","timeout":1e300}`, "system.bash",
		`{"command":"ls","timeout_ms":31536000000}`},

	{"confirm", "bash", `{"command":"make"}`, "system.bash", `{"command":"make"}`},
	{"confirm", "bash", `{"command":"make","timeout":1}`, "system.bash", `{"command":"make"}`},
}

func TestPrepare(t *testing.T) {
	for _, c := range prepareCases {
		t.Run(c.profile+" "+c.input, func(t *testing.T) {
			call, err := toolOf(t, c.profile, c.tool).Prepare(context.Background(), json.RawMessage(c.input), nil)
			if err != nil {
				t.Fatal(err)
			}
			if call.Base.Name != c.base {
				t.Errorf("base %s, want %s", call.Base.Name, c.base)
			}
			sameJSON(t, "input", string(call.Input), c.want)
			if c.want == "{}" {
				return
			}
			if _, err := call.Base.Check(call.Input); err != nil {
				t.Errorf("Check of the built-in tool: %v", err)
			}
		})
	}
}

func TestPrepareInvalidInput(t *testing.T) {
	for _, c := range []struct{ profile, tool, input, kind, want string }{
		{"phase2", "system.bash", `{}`, "ValidationError", "command is missing"},
		{"phase2", "system.bash", `{"command":1}`, "ValidationError", "command is a number and must be a string"},
		{"phase2", "system.bash", `{"command":"x","timeout":1}`, "ValidationError",
			`timeout is unknown; did you mean "timeout_ms"?`},
		{"phase2", "system.bash", `{"command":"x","timeout_ms":0}`, "ValidationError", "timeout_ms is 0: at least 1"},
		{"phase2", "system.bash", `{"command":"x","timeout_ms":1.5}`, "ValidationError",
			"timeout_ms is a number and must be a whole number"},
		{"phase2", "system.bash", `{"command":"x","run_in_background":"yes"}`, "ValidationError",
			"run_in_background is a string and must be true or false"},
		{"phase2", "system.bash", `[1]`, "ValidationError", "input is a list and must be an object"},
		{"gateway", "bash", `{"command":"ls","args":"-l"}`, "InvalidInput", "args is a string and must be a list"},
		{"gateway", "bash", `{"command":"ls","args":["-l",1]}`, "InvalidInput",
			"args[1] is a number and must be a string"},
		{"gateway", "bash", `{"command":""}`, "InvalidInput", "command is too short"},
		{"gateway", "filesystem", `{"operation":"raed","path":"a"}`, "InvalidInput",
			`operation is "raed": use one of ["read","write","list","stat","delete"]`},
		{"gateway", "filesystem", `{"operation":"write","path":"a"}`, "InvalidInput", "content is missing"},
		{"gateway", "filesystem", `{"operation":"read"}`, "InvalidInput", "path is missing"},
		{"readonly", "run_shell", `{}`, "", "command is missing"},
		{"readonly", "run_shell", `{"command":"ls","workspace":"x"}`, "", "workspace is unknown"},
		{"universal", "run_command", `{"command":"ls","timeout":0}`, "", "timeout is 0: more than 0"},
		{"universal", "run_command", `{"command":"ls","timeout":"1"}`, "", "timeout is a string and must be a number"},
		{"confirm", "bash", `{}`, "InvalidArgs", "missing 'command' parameter"},
		{"confirm", "bash", `{"command":3}`, "InvalidArgs", "missing 'command' parameter"},
		{"confirm", "bash", `{"command":null}`, "InvalidArgs", "missing 'command' parameter"},
		{"confirm", "bash", `{`, "InvalidArgs", "is invalid JSON: "},
	} {
		t.Run(c.profile+" "+c.input, func(t *testing.T) {
			_, err := toolOf(t, c.profile, c.tool).Prepare(context.Background(), json.RawMessage(c.input), nil)
			e, ok := err.(*InputError) // the type is the contract
			if !ok {
				t.Fatalf("error of type %T, want an *InputError: %v", err, err)
			}
			if c.input != "{" && e.Error() != c.want || !strings.Contains(e.Error(), strings.TrimSpace(c.want)) &&
				c.input != "{" || e.Type != c.kind {
				t.Errorf("Prepare = %q (%s), want %q (%s)", e.Error(), e.Type, c.want, c.kind)
			}
		})
	}
}

// command returns the output of a command.
func command(stdout, stderr string, code int) *tool.CommandOutput {
	return &tool.CommandOutput{Stdout: stdout, Stderr: stderr, ExitCode: code, Ending: "exited", DurationMS: 12}
}

func ended(ending string) *tool.CommandOutput {
	return &tool.CommandOutput{Stdout: "so far", ExitCode: -1, Ending: ending, DurationMS: 12}
}

func denied(class, message string) End {
	return End{Ending: EndingPolicy, Refused: true, Class: class, Message: message}
}

var (
	exited    = End{Ending: "exited"}
	signalled = &tool.CommandOutput{ExitCode: -1, Ending: "signalled", Signal: 9}
)

func timeout(ms int64) End { return End{Ending: "timeout", TimeoutMS: ms} }

// finishCases are endings of calls with what callers get.
var finishCases = []struct {
	name, profile, tool, input string
	r                          any
	end                        End
	output, text               string // text "json" means output, "" without output means message
	kind, message              string
}{
	{
		"ok", "phase2", "system.bash", `{"command":"echo hello"}`, command("hello\n", "", 0), exited,
		`{"command":"echo hello","stdout":"hello\n","stderr":"","exit_code":0,"duration_ms":12,` +
			`"truncated":false,"background_task_id":null}`, "json", "", "",
	},
	{
		"truncated", "phase2", "system.bash", `{"command":"yes"}`,
		&tool.CommandOutput{Stdout: "y\n... (truncated)", Truncated: true, Ending: "exited"}, exited,
		`{"command":"yes","stdout":"y\n... (truncated)","stderr":"","exit_code":0,"duration_ms":0,` +
			`"truncated":true,"background_task_id":null}`, "json", "", "",
	},
	{
		"a failing command", "phase2", "system.bash", `{"command":"false"}`, command("", "no", 1), exited,
		`{"command":"false","stdout":"","stderr":"no","exit_code":1,"duration_ms":12,"truncated":false,` +
			`"background_task_id":null}`, "json", "", "",
	},
	{
		"in the background", "phase2", "system.bash", `{"command":"sleep 9","run_in_background":true}`,
		&tool.CommandOutput{Ending: "started", ShellID: "sh1"}, End{Ending: "started"},
		`{"command":"sleep 9","stdout":"","stderr":"","exit_code":0,"duration_ms":0,"truncated":false,` +
			`"background_task_id":"sh1"}`, "json", "", "",
	},
	{
		"a signal", "phase2", "system.bash", `{"command":"x"}`, signalled, End{Ending: "signalled", Signal: 9},
		`{"command":"x","stdout":"","stderr":"","exit_code":-9,"duration_ms":0,"truncated":false,` +
			`"background_task_id":null}`, "json", "", "",
	},
	{"NEVER", "phase2", "system.bash", `{"command":"sudo ls"}`, nil,
		End{Ending: EndingPolicy, Refused: true, Never: true, Class: "rule", Message: "x"}, `null`,
		"", "SafetyViolation", "Command matches forbidden pattern"},
	{"a syntax error", "phase2", "system.bash", `{"command":"("}`, nil,
		denied("syntax", "Command does not parse: x"), `null`, "", "SafetyViolation", "Command does not parse: x"},
	{"trust", "phase2", "system.bash", `{"command":"ls"}`, nil, denied(ClassTrust, "needs trust 3"), `null`,
		"", "TrustViolation", "needs trust 3"},
	{"not confirmed", "phase2", "system.bash", `{"command":"git push"}`,
		nil, End{Ending: EndingApproval, Refused: true, Class: ClassRefused, Message: "no"}, `null`, "",
		"ConfirmationDenied", "no"},
	{
		"100 ms", "phase2", "system.bash", `{"command":"sleep 10","timeout_ms":100}`, ended("timeout"),
		timeout(100),
		`{"command":"sleep 10","stdout":"so far","stderr":"","exit_code":-1,"duration_ms":12,"truncated":false,` +
			`"background_task_id":null}`, "json",
		"ToolTimeoutError", "Command timed out after 0.1s",
	},
	{"120 s", "phase2", "system.bash", `{"command":"sleep 999"}`, nil, timeout(120000), `null`,
		"", "ToolTimeoutError", "Command timed out after 120.0s"},
	{
		"killed", "phase2", "system.kill", `{"shell_id":"a"}`,
		&tool.KillOutput{ShellID: "a", Success: true, Message: "Shell terminated", Ending: "signalled"},
		End{Ending: "ok"},
		`{"shell_id":"a","success":true,"message":"Shell terminated"}`, "json", "", "",
	},
	{
		"not found", "phase2", "system.kill", `{"shell_id":"nonexistent"}`,
		&tool.KillOutput{ShellID: "nonexistent", Message: "Shell nonexistent not found"}, End{Ending: "ok"},
		`{"shell_id":"nonexistent","success":false,"message":"Shell nonexistent not found"}`, "json", "", "",
	},

	{"ok", "gateway", "bash", `{"command":"ls"}`, command("a\n", "", 0), exited,
		`{"exitCode":0,"stdout":"a\n","stderr":"","truncated":false}`, "json", "", ""},
	{"timeout", "gateway", "bash", `{"command":"sleep"}`, nil, timeout(30000), `null`, "", "Timeout",
		"Command timed out after 30000ms"},
	{"denied", "gateway", "bash", `{"command":"rm"}`, nil, denied("denylist", "Command denied: 'rm'"), `null`,
		"", "PolicyDenied", "Command denied: 'rm'"},
	{"rate", "gateway", "bash", `{"command":"ls"}`, nil, denied(ClassRate, "10 calls in 60 s"), `null`, "",
		"RateLimitExceeded", "10 calls in 60 s"},
	{"no approval", "gateway", "bash", `{"command":"ls"}`,
		nil, End{Ending: EndingApproval, Refused: true, Class: ClassExpired, Message: "nobody answered"},
		`null`, "", "ApprovalDenied", "nobody answered"},
	{
		"read", "gateway", "filesystem", `{"operation":"read","path":"a"}`,
		&tool.ReadOutput{Path: "a", Content: "x", Encoding: "text", Size: 1}, End{Ending: "ok"},
		`{"path":"a","content":"x","encoding":"utf-8","size":1}`, "json", "", "",
	},
	{
		"write", "gateway", "filesystem", `{"operation":"write","path":"a","content":"x"}`,
		&tool.WriteOutput{Path: "a", Bytes: 1}, End{Ending: "ok"},
		`{"path":"a","bytesWritten":1}`, "json", "", "",
	},
	{
		"list", "gateway", "filesystem", `{"operation":"list","path":"."}`,
		&tool.ListOutput{Path: ".", Entries: []tool.FileState{{Name: "d", Type: "dir"},
			{Name: "f", Type: "file", Size: 3}}}, End{Ending: "ok"},
		`{"path":".","entries":[{"name":"d","type":"directory","size":0},{"name":"f","type":"file","size":3}],` +
			`"truncated":false}`, "json", "", "",
	},
	{
		"stat", "gateway", "filesystem", `{"operation":"stat","path":"a"}`,
		&tool.FileState{Path: "a", Name: "a", Type: "file", Size: 1, Mode: "0644", ModTime: "2026-01-01T00:00:00Z"},
		End{Ending: "ok"},
		`{"path":"a","type":"file","size":1,"mode":"0644","modified":"2026-01-01T00:00:00Z","isFile":true,` +
			`"isDirectory":false,"isSymbolicLink":false}`, "json", "", "",
	},
	{"delete", "gateway", "filesystem", `{"operation":"delete","path":"a"}`,
		&tool.DeleteOutput{Path: "a", Deleted: true}, End{Ending: "ok"}, `{"path":"a","deleted":true}`, "json",
		"", ""},
	{"outside", "gateway", "filesystem", `{"operation":"read","path":"../x"}`, nil,
		End{Ending: EndingFailed, Class: ClassPermission, Message: "path is not allowed"}, `null`,
		"", "AccessDenied", "path is not allowed"},

	{"ok", "readonly", "run_shell", `{"command":"ls"}`, command("a\n", "", 0), exited,
		`{"success":true,"stdout":"a\n","stderr":"","returncode":0}`, "a\n", "", ""},
	{"failing", "readonly", "run_shell", `{"command":"ls x"}`, command("", "no x", 2), exited,
		`{"success":false,"stdout":"","stderr":"no x","returncode":2}`, "no x", "", ""},
	{
		"refused", "readonly", "run_shell", `{"command":"ls | cat"}`,
		nil, denied("forbidden", "Blocked: shell metacharacter '|' not allowed"),
		`{"success":false,"stdout":"","stderr":"Security: Blocked: shell metacharacter '|' not allowed",` +
			`"returncode":-1}`, "Security: Blocked: shell metacharacter '|' not allowed", "", "",
	},
	{"timeout", "readonly", "run_shell", `{"command":"ls"}`, ended("timeout"), timeout(30000),
		`{"success":false,"stdout":"","stderr":"Command timed out","returncode":-1}`, "Command timed out", "", ""},
	{"lost", "readonly", "run_shell", `{"command":"ls"}`, nil, End{Ending: "sandbox_lost"},
		`{"success":false,"stdout":"","stderr":"Command ended by sandbox_lost","returncode":-1}`,
		"Command ended by sandbox_lost", "", ""},
	{"a signal", "readonly", "run_shell", `{"command":"ls"}`, signalled, End{Ending: "signalled", Signal: 9},
		`{"success":false,"stdout":"","stderr":"","returncode":-9}`, "", "", ""},

	{
		"ok", "universal", "run_command", `{"command":"ls"}`, command("a\n", "w", 0), exited,
		`{"command":"ls","exit_code":0,"stdout":"a\n","stderr":"w","truncated":false,"timed_out":false,` +
			`"duration_ms":12}`, "Exit code: 0\n\nSTDOUT:\na\n\n\nSTDERR:\nw", "", "",
	},
	{
		"timeout", "universal", "run_command", `{"command":"ls"}`, ended("timeout"), timeout(120000),
		`{"command":"ls","exit_code":-1,"stdout":"so far","stderr":"","truncated":false,"timed_out":true,` +
			`"duration_ms":12}`,
		"Command timed out after 120s\n\nSTDOUT:\nso far", "Timeout", "Command timed out after 120s",
	},
	{
		"timeout below a second", "universal", "run_command", `{"command":"ls"}`, ended("timeout"), timeout(500),
		`{"command":"ls","exit_code":-1,"stdout":"so far","stderr":"","truncated":false,"timed_out":true,` +
			`"duration_ms":12}`,
		"Command timed out after 500ms\n\nSTDOUT:\nso far", "Timeout", "Command timed out after 500ms",
	},
	{"blocked", "universal", "run_command", `{"command":"sudo ls"}`,
		nil, denied("denylist", "Command not allowed: 'sudo' is blocked"), `null`,
		"Command not allowed: 'sudo' is blocked", "CommandNotAllowed", "Command not allowed: 'sudo' is blocked"},

	{"ok", "confirm", "bash", `{"command":"x"}`, command("a\n", "", 0), exited, `{"exit_code":0,"success":true}`,
		"Exit code: 0\na\n", "", ""},
	{"stderr", "confirm", "bash", `{"command":"x"}`, command("a\n", "b\n", 3), exited,
		`{"exit_code":3,"success":false}`, "Exit code: 3\nSTDOUT:\na\n\nSTDERR:\nb\n", "", ""},
	{"nothing", "confirm", "bash", `{"command":"x"}`, command("", "", 0), exited, `{"exit_code":0,"success":true}`,
		"Exit code: 0\n", "", ""},
	{"a signal", "confirm", "bash", `{"command":"x"}`, signalled, End{Ending: "signalled", Signal: 9},
		`{"exit_code":-1,"success":false}`, "Exit code: -1\n", "", ""},
	{
		"denied", "confirm", "bash", `{"command":"mkfs"}`,
		nil,
		denied("rule", "Command blocked by safety policy: contains 'mkfs'. This pattern is denied for safety."),
		`null`,
		"Command blocked by safety policy: contains 'mkfs'. This pattern is denied for safety.", "Failed",
		"Command blocked by safety policy: contains 'mkfs'. This pattern is denied for safety.",
	},
	{"not confirmed", "confirm", "bash", `{"command":"x"}`,
		nil, End{Ending: EndingApproval, Refused: true, Message: "x"},
		`null`, "Command was not confirmed by the user.", "Failed", "Command was not confirmed by the user."},
	{"timeout", "confirm", "bash", `{"command":"x"}`, ended("timeout"), timeout(120000), `null`,
		"Command timed out after 120s", "Failed", "Command timed out after 120s"},
	{"cancelled", "confirm", "bash", `{"command":"x"}`, ended("cancelled"), End{Ending: "cancelled"}, `null`,
		"Cancelled", "Cancelled", "Cancelled"},
	{"no program", "confirm", "bash", `{"command":"x"}`, nil, End{Ending: EndingFailed, Detail: "no such file"},
		`null`, "no such file", "Failed", "Failed to execute: no such file"},

	{
		"ok", "default", "system.bash", `{"command":"x"}`, command("a", "b", 1), exited,
		`{"stdout":"a","stderr":"b","exit_code":1,"ending":"exited","truncated":false,"stdout_bytes":0,` +
			`"stderr_bytes":0,"duration_ms":12}`, "Exit code: 1\na\nSTDERR:\nb", "", "",
	},
	{"the service's", "default", "fs.write", `{"path":"a"}`, &tool.WriteOutput{Path: "a<b", Bytes: 3},
		End{Ending: "ok"}, `{"path":"a<b","bytes":3}`, "json", "", ""},
	{"nothing", "default", "fs.write", `{"path":"a"}`, nil, End{Ending: EndingFailed, Message: "x"}, `null`,
		"x", "", ""},
}

func TestFinish(t *testing.T) {
	for _, c := range finishCases {
		t.Run(c.profile+" "+c.tool+" "+c.name, func(t *testing.T) {
			call, err := toolOf(t, c.profile, c.tool).Prepare(context.Background(), json.RawMessage(c.input), nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := call.Finish(context.Background(), c.r, c.end)
			if err != nil {
				t.Fatal(err)
			}
			sameJSON(t, "output", string(got.Output), c.output)
			switch {
			case c.text == "json":
				c.text = string(got.Output)
			case c.text == "" && c.output == "null":
				c.text = c.message
			}
			if got.Text != c.text {
				t.Errorf("text %q, want %q", got.Text, c.text)
			}
			if got.Error == nil {
				got.Error = &Error{}
			}
			if got.Error.Type != c.kind || got.Error.Message != c.message {
				t.Errorf("error %+v, want %s: %s", *got.Error, c.kind, c.message)
			}
		})
	}
}

func TestBuiltinCaps(t *testing.T) {
	type row struct {
		Trust              int
		Timeout, MaxTimout int64
		Clamp              bool
		Limit              int64
		Unit, Keep, Marker string
	}
	for name, want := range map[string]row{
		"phase2 system.bash": {3, 120000, 600000, true, 30000, "characters", "head", "\n... (truncated)"},
		"phase2 system.kill": {Trust: 2},
		"gateway bash":       {0, 30000, 0, false, 10240, "bytes", "head", ""},
		"readonly run_shell": {0, 30000, 30000, true, 0, "", "", ""},
		"universal run_command": {0, 120000, 600000, true, 50000, "characters", "tail",
			"... ({omitted} of {total} {unit} truncated)\n"},
		"confirm bash": {0, 120000, 120000, true, 262144, "bytes", "head", "\n... (output truncated)"},
	} {
		profile, tool, _ := strings.Cut(name, " ")
		ct := toolOf(t, profile, tool)
		c := ct.Caps()
		got := row{ct.Trust(), c.Timeout.Milliseconds(), c.MaxTimeout.Milliseconds(), c.Clamp, c.Output.Limit,
			c.Output.Unit, c.Output.Keep, c.Output.Marker}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("trust and caps of %s (-want +got):\n%s", name, d)
		}
	}
	if f := toolOf(t, "gateway", "filesystem").Caps(); f.MaxFile != 10485760 || f.ReadOnly || f.NoFollow {
		t.Errorf("caps of filesystem = %+v, want writable files of 10485760 bytes, with links", f)
	}
	got := toolOf(t, "phase2", "system.bash").Effects()
	if d := cmp.Diff([]tool.Effect{tool.CallsShell, tool.WritesFiles, tool.Spawns}, got); d != "" {
		t.Errorf("effects of system.bash (-want +got):\n%s", d)
	}
	for _, name := range []string{"phase2 web.fetch", "phase2 web.search", "gateway http"} {
		profile, web, _ := strings.Cut(name, " ")
		ct := toolOf(t, profile, web)
		if d := cmp.Diff([]tool.Effect{tool.CallsNetwork}, ct.Effects()); d != "" || !ct.Enabled() ||
			ct.Trust() != map[string]int{"phase2": 1, "gateway": 0}[profile] || ct.Cacheable() != (web == "web.fetch") {
			t.Errorf("%s: enabled %t, trust %d, cacheable %t; want true, %d, %t; effects (-want +got):\n%s", name,
				ct.Enabled(), ct.Trust(), ct.Cacheable(), map[string]int{"phase2": 1, "gateway": 0}[profile],
				web == "web.fetch", d)
		}
	}
}
