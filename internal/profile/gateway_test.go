package profile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
)

func example(tb testing.TB) string {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "gateway.json"))
	if err != nil {
		tb.Fatal(err)
	}
	return string(b)
}

func TestGatewayExample(t *testing.T) {
	s, err := load(t, map[string]string{"team.json": example(t)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.Get("team")
	if err != nil {
		t.Fatal(err)
	}
	p := c.Profile
	if p.Extends != Gateway || p.Name != "team" || !strings.HasSuffix(c.Source, "team.json") {
		t.Errorf("profile %q extends %q from %s; want team, %s, team.json", p.Name, p.Extends, c.Source, Gateway)
	}
	if d := cmp.Diff(map[string]string{"/home/user/projects": "/workspace"}, p.Paths); d != "" {
		t.Errorf("paths (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"ls", "cat", "grep", "git"}, p.Policy.Allow); d != "" {
		t.Errorf("policy.allow (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"rm", "sudo"}, p.Policy.Deny); d != "" {
		t.Errorf("policy.deny (-want +got):\n%s", d)
	}
	want := []approval.Rule{
		{ID: "approval-1", Tool: "bash", Action: "prompt"},
		{ID: "approval-2", Tool: "filesystem", Action: "budget", Limit: 100, Period: "daily"},
		{ID: "approval-3", Tool: "http", Action: "approve"},
	}
	if d := cmp.Diff(want, p.Approvals); d != "" {
		t.Errorf("approvals (-want +got):\n%s", d)
	}
	checkExampleTools(t, c)
	for _, w := range []string{
		"tools.sandbox.enabled: is false", "tools.sandbox.image: ",
	} {
		if !strings.Contains(strings.Join(p.Warnings, "\n"), w) {
			t.Errorf("warnings = %q, want %q among them", p.Warnings, w)
		}
	}
	if len(p.Warnings) != 2 {
		t.Errorf("warnings %q, want 2", p.Warnings)
	}
}

// checkExampleTools checks the tools of the example.
func checkExampleTools(t *testing.T, c *Compiled) {
	t.Helper()
	bash, files := mustTool(t, c, "bash"), mustTool(t, c, "filesystem")
	if d := cmp.Diff(&approval.Rate{MaxCalls: 10, WindowMS: 60000}, bash.Rate()); d != "" {
		t.Errorf("rate of bash (-want +got):\n%s", d)
	}
	if d := cmp.Diff(&approval.Rate{MaxCalls: 50, WindowMS: 60000}, files.Rate()); d != "" {
		t.Errorf("rate of filesystem (-want +got):\n%s", d)
	}
	b, f := bash.Caps(), files.Caps()
	if b.Timeout != 30*time.Second || b.Output.Limit != 10240 || b.MemoryBytes != 512<<20 ||
		!cmp.Equal(b.Dirs, []string{"/workspace"}) {
		t.Errorf("caps of bash = %+v, want 30s, output 10240, memory 512 MiB, dir /workspace", b)
	}
	if f.MaxFile != 10485760 || f.ReadOnly || f.NoFollow || !cmp.Equal(f.Dirs, []string{"/workspace", "/tmp"}) {
		t.Errorf("caps of filesystem = %+v, want writable files of 10485760 bytes in /workspace and /tmp", f)
	}
	h := mustTool(t, c, "http").Caps()
	web := reach.Hosts{
		Allow:   []string{"api.github.com", "*.api.github.com", "docs.solana.com", "*.docs.solana.com"},
		Deny:    []string{"localhost", "*.localhost", "127.0.0.1"},
		Methods: []string{"GET", "POST", "PUT", "DELETE"},
	}
	web.HTTP = web.Allow
	if d := cmp.Diff(web, h.Web.Hosts); d != "" || h.Timeout != 30*time.Second || h.Web.MaxBytes != 1<<20 ||
		h.Web.Limited == nil {
		t.Errorf("caps of http: %+v\nreach (-want +got):\n%s", h, d)
	}
}

func mustTool(tb testing.TB, c *Compiled, name string) *CompiledTool {
	tb.Helper()
	ct, err := c.Tool(name)
	if err != nil {
		tb.Fatal(err)
	}
	return ct
}

// gatewaySettings is a configuration with every setting.
const gatewaySettings = `{
		"tools": {
			"bash": {"enabled": false, "timeoutMs": 5000, "maxOutputBytes": 99,
				"allowedDirectories": ["/home/a", "/home/a/b", "/workspace/x", "/srv"]},
			"filesystem": {"readOnly": true, "followSymlinks": false, "maxFileSize": 7},
			"http": {"enabled": false, "allowedMethods": ["GET"], "blockedDomains": ["a.example", "10.0.0.0/8"],
				"timeoutMs": 8, "maxResponseSize": 9},
			"browser": {"mode": "playwright", "maxContentLength": 10},
			"sandbox": {"enabled": true, "networkMode": "bridge", "memoryLimit": "1g", "cpuLimit": 1.5,
				"volumeMounts": {"/a": "/b"}}
		},
		"approval": {"rules": [
			{"toolName": "*", "action": "deny", "condition": "input.command == 'x'"},
			{"toolName": "bash", "action": "budget", "budgetLimit": 5, "budgetPeriod": "weekly",
				"budgetField": "amount"}
		]},
		"policy": {
			"enabled": {"filesystem": true},
			"rateLimits": {"http": {"maxCalls": 1, "windowMs": 2}},
			"resourceLimits": {"bash": {"maxDuration": 3000, "maxMemory": 1000, "maxCpu": 0.5}}
		}
	}`

// parseGateway converts a configuration of the gateway system, as Load does for a file.
func parseGateway(name, doc string) (Profile, error) {
	n, err := parseFile(name+".json", []byte(doc))
	if err != nil {
		return Profile{}, err
	}
	p, _, err := fromGateway(&source{file: name, lines: map[string]int{}}, name, n)
	return p, err
}

func TestFromGatewaySettings(t *testing.T) {
	p, err := parseGateway("team", gatewaySettings)
	if err != nil {
		t.Fatal(err)
	}
	want := []Tool{
		{Name: "bash", Disabled: true, Caps: Caps{
			TimeoutMS: 3000, MaxTimeoutMS: 3000, MemoryBytes: 1000, CPUs: 0.5,
			Dirs: []string{"/home/a", "/home/a/b", "/workspace/x", "/srv"},
		}},
		{Name: "filesystem", Caps: Caps{ReadOnly: true, NoFollow: true, MaxFile: 7}},
		{
			Name: "http", Disabled: true, Rate: &approval.Rate{MaxCalls: 1, WindowMS: 2},
			Caps: Caps{TimeoutMS: 8,
				Web: &reach.Caps{Hosts: reach.Hosts{Deny: []string{"a.example", "*.a.example", "10.0.0.0/8"},
					Methods: []string{"GET"}}, MaxBytes: 9}},
		},
		{
			Name: "browser",
			Arguments: `{"url": input.url, ?"wait_for": input.?waitForSelector, "screenshot": input.screenshot ? ` +
				`"viewport" : "", "mode": "real"}`,
			Caps: Caps{Web: &reach.Caps{Hosts: reach.Hosts{Deny: []string{"a.example", "*.a.example",
				"10.0.0.0/8"}}, MaxText: 10}},
		},
	}
	want[0].Caps.Output.Limit = 99
	if d := cmp.Diff(want, p.Tools); d != "" {
		t.Errorf("tools (-want +got):\n%s", d)
	}
	if p.Network != NetworkBridge {
		t.Errorf("network %q, want bridge", p.Network)
	}
	rules := []approval.Rule{
		{ID: "approval-1", Tool: "*", Action: "deny", When: "input.command == 'x'"},
		{ID: "approval-2", Tool: "bash", Action: "budget", Limit: 5, Period: "weekly",
			Amount: "double(has(input.amount) ? input.amount : call.amount)"},
	}
	if d := cmp.Diff(rules, p.Approvals); d != "" {
		t.Errorf("approvals (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{
		"team:4: tools.bash.allowedDirectories[3]: /srv does not exist in sandboxes: " +
			"only the first directory is mapped to the workspace",
		"team:10: tools.sandbox.volumeMounts: are ignored: " +
			"a call names its workspace, and host directories are never mounted",
		"team:15: approval.rules[1].budgetField: is amount, which no input of tool bash has: " +
			"each call must carry its amount (amount of the request)",
	}, p.Warnings); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
}

// gatewayErrors are configurations with the expected error.
var gatewayErrors = []struct{ doc, want string }{
	{`{"tools": {"bahs": {}}}`, `tools.bahs: is unknown; did you mean "bash"?`},
	{"{\"tools\": {\n\"bash\": {\n\"allowedComands\": []}}}",
		`x:3: tools.bash.allowedComands: is unknown; did you mean "allowedCommands"?`},
	{`{"tools": {"bash": {"allowedCommands": []}}}`, "tools.bash.allowedCommands: is empty and allows no command"},
	{`{"tools": {"bash": {"allowedDirectories": []}}}`, "tools.bash.allowedDirectories: is empty"},
	{`{"tools": {"bash": {"allowedDirectories": ["a"]}}}`,
		`tools.bash.allowedDirectories[0]: is "a": use an absolute path`},
	{`{"tools": {"bash": {"allowedDirectories": ["/"]}}}`, `tools.bash.allowedDirectories[0]: is "/"`},
	{`{"tools": {"bash": {"timeoutMs": "1"}}}`, "tools.bash.timeoutMs: is text and must be a whole number"},
	{`{"tools": {"bash": {"timeoutMs": 0}}}`, "tools.bash.timeoutMs: is 0: must be more than 0"},
	{`{"tools": {"filesystem": {"maxFileSize": -1}}}`, "tools.filesystem.maxFileSize: is -1"},
	{`{"tools": {"http": {"allowedMethods": ["PATCH"]}}}`, `tools.http.allowedMethods[0]: is "PATCH"`},
	{`{"tools": {"http": {"allowedDomains": []}}}`, "tools.http.allowedDomains: is empty and allows no host"},
	{`{"tools": {"http": {"allowedDomains": ["a.example", "https://b.example"]}}}`,
		"tools.http.allowedDomains[1]: is not a host: "},
	{`{"tools": {"http": {"blockedDomains": ["0x7f.1"]}}}`, "tools.http.blockedDomains[0]: is not a host: "},
	{`{"tools": {"http": {"maxResponseSize": 0}}}`, "tools.http.maxResponseSize: is 0: must be more than 0"},
	{`{"tools": {"browser": {"mode": "simpel"}}}`,
		`tools.browser.mode: is "simpel": use simple or playwright; did you mean "simple"?`},
	{`{"tools": {"sandbox": {"networkMode": "host"}}}`, `tools.sandbox.networkMode: is "host": use none or bridge`},
	{`{"tools": {"sandbox": {"memoryLimit": "much"}}}`, `tools.sandbox.memoryLimit: is "much"`},
	{`{"tools": {"sandbox": {"memoryLimit": "999999999999g"}}}`, "tools.sandbox.memoryLimit"},
	{`{"tools": {}, "approval": {"rules": [{"toolName": "bsh", "action": "deny"}]}}`,
		`approval.rules[0].toolName: is "bsh": tool not found; did you mean "bash"?`},
	{`{"tools": {}, "approval": {"rules": [{"toolName": "bash", "action": "ask"}]}}`,
		`approval.rules[0].action: is "ask": use approve, deny, prompt or budget`},
	{`{"tools": {}, "approval": {"rules": [{"toolName": "bash", "action": "deny", "condition": "input.("}]}}`,
		`approval.rules[0].condition: 1:7: `},
	{`{"tools": {}, "approval": {"rules": [{"toolName": "bash", "action": "budget"}]}}`,
		"approval.rules[0].budgetLimit: must be more than 0"},
	{`{"tools": {}, "approval": {"rules": [{"toolName": "bash", "action": "deny", "budgetLimit": 3}]}}`,
		"approval.rules[0]: has a budget, but action deny"},
	{`{"tools": {}, "approval": {"rules": [{"toolName": "bash", "action": "budget", "budgetLimit": 3, ` +
		`"budgetPeriod": "hourly"}]}}`, `approval.rules[0].budgetPeriod: is "hourly": use daily, weekly or monthly`},
	{`{"tools": {}, "approval": {"rules": [{"toolName": "bash", "action": "budget", "budgetLimit": 3, ` +
		`"budgetField": "a b"}]}}`, `approval.rules[0].budgetField: is "a b"`},
	{`{"tools": {}, "policy": {"rateLimits": {"bash": {"maxCalls": 1}}}}`,
		"policy.rateLimits.bash: must have maxCalls and windowMs over 0"},
	{`{"tools": {}, "policy": {"rateLimits": {"shell": {"maxCalls": 1, "windowMs": 1}}}}`,
		`policy.rateLimits.shell: is "shell": tool not found`},
	{`{"tools": {}, "policy": {"resourceLimits": {"bash": {"maxMemory": -1}}}}`,
		"policy.resourceLimits.bash: must not have a negative limit"},
	{`{"tools": {}, "policy": {"enabled": {"bas": true}}}`,
		`policy.enabled.bas: is "bas": tool not found; did you mean "bash"?`},
	{`{"tools": {`, "is an incomplete JSON value"},
	{"{\"tools\": {},\n \"tools\": {}}", `x.json:2: has duplicate key "tools", first in line 1`},
}

func TestFromGatewayErrors(t *testing.T) {
	for _, c := range gatewayErrors {
		_, err := parseGateway("x", c.doc)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("parseGateway(%s): %v\nwant %s", c.doc, err, c.want)
		}
	}
}
