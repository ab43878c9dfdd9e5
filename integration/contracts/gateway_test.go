//go:build integration

package contracts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// gatewayFiles are configurations of the gateway system, by the name of the profile that they
// become. The example is used unchanged.
var gatewayFiles = map[string]string{
	"lists": `{"tools": {
		"bash": {"allowedCommands": ["ls", "cat", "grep", "git", "pwd"], "allowedDirectories": ["/workspace"]}}}`,
	"denies":         `{"tools": {"bash": {"deniedCommands": ["rm", "sudo"]}}}`,
	"both":           `{"tools": {"bash": {"allowedCommands": ["ls", "rm"], "deniedCommands": ["rm"]}}}`,
	"limits":         `{"tools": {"bash": {"timeoutMs": 1500, "maxOutputBytes": 100}, "filesystem": {"maxFileSize": 7}}}`,
	"narrow":         `{"tools": {"bash": {"maxOutputBytes": 100}}}`,
	"sizes":          `{"tools": {"filesystem": {"maxFileSize": 10485760}}}`,
	"readonly-files": `{"tools": {"filesystem": {"readOnly": true}}}`,
	"plain":          `{"tools": {"filesystem": {"followSymlinks": false}}}`,
	"dirs": `{"tools": {"filesystem": {"allowedDirectories": ["/workspace/in", "/tmp"]},
		"bash": {"allowedDirectories": ["/workspace/in"]}}}`,
	"boxed": `{"tools": {"sandbox": {"enabled": true, "image": "other:latest",
		"networkMode": "bridge", "volumeMounts": {"/etc": "/host"}}}}`,
	"memory": `{"tools": {"sandbox": {"networkMode": "none", "memoryLimit": "64m"}}}`,
	"cpu":    `{"tools": {"sandbox": {"cpuLimit": 0.25}}}`,
	"caps": `{"tools": {}, "policy": {"resourceLimits": {
		"bash": {"maxDuration": 1500, "maxMemory": 67108864}}}}`,
	"memory-caps": `{"tools": {}, "policy": {"resourceLimits": {"bash": {"maxMemory": 67108864}}}}`,
	"cpu-caps":    `{"tools": {}, "policy": {"resourceLimits": {"bash": {"maxCpu": 0.25}}}}`,
	"asks": `{"tools": {"bash": {"deniedCommands": ["rm"]}}, "approval": {"rules": [
		{"toolName": "bash", "action": "approve", "condition": "input.command == 'true'"},
		{"toolName": "bash", "action": "deny", "condition": "input.command == 'false'"},
		{"toolName": "bash", "action": "prompt"}]}}`,
	"breaks": `{"tools": {}, "approval": {"rules": [
		{"toolName": "bash", "action": "deny", "condition": "input.args[0] == 'x'"},
		{"toolName": "bash", "action": "approve"}]}}`,
	"daily": `{"tools": {}, "approval": {"rules": [
		{"toolName": "filesystem", "action": "budget", "budgetLimit": 2, "budgetPeriod": "daily"}]}}`,
	"weekly": `{"tools": {}, "approval": {"rules": [
		{"toolName": "filesystem", "action": "budget", "budgetLimit": 2, "budgetPeriod": "weekly"}]}}`,
	"monthly": `{"tools": {}, "approval": {"rules": [
		{"toolName": "filesystem", "action": "budget", "budgetLimit": 2, "budgetPeriod": "monthly"}]}}`,
	"amounts": `{"tools": {}, "approval": {"rules": [
		{"toolName": "filesystem", "action": "budget",
			"budgetLimit": 10, "budgetPeriod": "daily", "budgetField": "content"}]}}`,
	"carried": `{"tools": {}, "approval": {"rules": [
		{"toolName": "bash", "action": "budget",
			"budgetLimit": 10, "budgetPeriod": "daily", "budgetField": "cost"}]}}`,
	"web": `{"tools": {"http": {
		"allowedDomains": ["site.test", "other.test", "localhost", "127.0.0.1", "10.0.0.1", "169.254.169.254"],
		"blockedDomains": ["blocked.site.test"], "maxResponseSize": 1000, "allowedMethods": ["GET", "POST", "PUT"]}}}`,
	"web-hasty": `{"tools": {"http": {"allowedDomains": ["site.test"], "timeoutMs": 2500}}}`,
	"off":       `{"tools": {"bash": {"enabled": false}}, "policy": {"enabled": {"filesystem": false}}}`,
	"rates": `{"tools": {}, "policy": {"rateLimits": {
		"bash": {"maxCalls": 2, "windowMs": 600000}, "filesystem": {"maxCalls": 1, "windowMs": 300}}}}`,
}

// example is the original system's own configuration, which package profile keeps unchanged.
const example = "../../internal/profile/testdata/gateway.json"

// gatewayConfig returns a service configuration with all profiles in a directory.
func gatewayConfig(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	dir := harness.TempDir(t)
	harness.WriteFile(t, filepath.Join(dir, "example.json"), string(b))
	for name, text := range gatewayFiles {
		harness.WriteFile(t, filepath.Join(dir, name+".json"), text)
	}
	return fmt.Sprintf(`
profiles: {dir: '%s'}
templates:
  default:
    limits: {memory: 768MiB, pids: 160}
    pool: {min: 1, max: 12, rate: 10, parallel: 2}
  cold:
    limits: {memory: 192MiB, pids: 160}
    pool: {min: 0, max: 8}
`, dir)
}

// table is the tests of a contract.
type table = map[string]func(t *testing.T, s *harness.Server, l line)

// gateway has what the tests of the contract share.
type gateway struct {
	t      *testing.T
	config string
	once   sync.Once
	slow   chan v1.ToolResult
	names  int
	site   *harness.Website
}

// TestGateway tests every line of gateway.txt.
func TestGateway(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	g := &gateway{t: t, config: gatewayConfig(t), slow: make(chan v1.ToolResult, 1), site: harness.NewWebsite(t, "")}
	g.config += g.site.Config
	tests := table{}
	for _, part := range []table{
		g.tools(), g.http(), g.bash(), g.files(), g.paths(), g.sandbox(), g.approvals(), g.budgets(), g.policy(), g.example(),
	} {
		maps.Copy(tests, part)
	}
	for id, run := range tests {
		tests[id] = func(t *testing.T, s *harness.Server, l line) {
			g.once.Do(func() { g.start(s) })
			run(t, s, l)
		}
	}
	runContract(t, "gateway.txt", g.config, tests)
}

// start prepares the workspace, and starts a command that runs into the default timeout while other
// lines are tested.
func (g *gateway) start(s *harness.Server) {
	sleeper := g.newCaller(g.t, s, "gateway", "bash")
	request := sleeper.request(g.t, program("sleep", "3000"))
	ctx, cancel := context.WithCancel(callContext(g.t))
	done := make(chan struct{})
	go func() { // the cleanup waits for it
		defer close(done)
		got, err := sleeper.client.Tools.Call(ctx, "bash", request, client.CallOptions{})
		if err != nil && ctx.Err() == nil {
			g.t.Error(err)
		}
		g.slow <- got
	}()
	g.t.Cleanup(func() { cancel(); <-done }) // in case the line's test is not run
	shell(g.t, operator(s, "gateway", "bash"), workspaceScript)
}

// workspaceScript creates the files of the tests in the workspace, and a directory outside of it.
const workspaceScript = `
set -e
mkdir -p in/sub other ~/out
echo inside > in/file
echo deep > in/sub/file
echo other > other/file
echo theirs > ~/out/file
ln -s in/file link-in
ln -s in link-dir
ln -s /etc/passwd link-file
ln -s /etc link-folder
ln -s chain-2 chain-1
ln -s /etc/passwd chain-2
ln -s ../../../etc link-dots
ln -s ~/out/new link-new
ln -s /proc/self link-proc
ln -s ../other in/link-other
ln -s ../other/file in/link-other-file
`

// newCaller returns a new caller with a separate workspace, sandbox, rate limit and budget.
func (g *gateway) newCaller(t *testing.T, s *harness.Server, profile, tool string) agent {
	t.Helper()
	g.names++
	return newTokenAgent(t, s, v1.TokenRequest{Caller: fmt.Sprintf("caller-%d", g.names), Profile: profile}, tool)
}

// shell runs a script with bash of profile gateway. It must exit with 0.
func shell(t *testing.T, a agent, script string) string {
	t.Helper()
	r := a.call(t, fields{"command": "sh", "args": []string{"-c", script}})
	if r.ExitCode == nil || *r.ExitCode != 0 {
		t.Fatalf("script %s: %+v, output %s; want exit code 0", script, r, r.Output)
	}
	return outputOf(t, r)["stdout"].(string)
}

// quoted returns the first part of a line between backticks.
func quoted(t *testing.T, l line) string {
	t.Helper()
	_, rest, _ := strings.Cut(l.text, "`")
	word, _, ok := strings.Cut(rest, "`")
	if !ok {
		t.Fatalf("line %s quotes nothing, want text between backticks", l.id)
	}
	return word
}

// assertInvalid checks that a call is refused as invalid because of a field.
func assertInvalid(t *testing.T, a agent, in fields, field string) {
	t.Helper()
	got, err := a.client.Tools.Call(callContext(t), a.tool, a.request(t, in), client.CallOptions{})
	p, ok := errors.AsType[*v1.Problem](err)
	if !ok || p.Code != "invalid_argument" || !strings.Contains(p.Field+" "+p.Detail, field) {
		t.Errorf("call with %v = %+v, %v; want invalid argument because of %s", in, got, err, field)
	}
}

// assertError checks the ending, and the type and a part of the message of the error.
func assertError(t *testing.T, r v1.ToolResult, ending, kind, part string) {
	t.Helper()
	if r.Ending != ending || r.Error == nil || r.Error.Type != kind || !strings.Contains(r.Error.Message, part) {
		t.Errorf("ending %s, error %+v; want %s, %s with %q (%.300s)", r.Ending, r.Error, ending, kind, part, r.Output)
	}
}

// tools returns the tests of the list of tools.
func (g *gateway) tools() table {
	known := func(t *testing.T, s *harness.Server, l line) v1.Tool {
		t.Helper()
		list, err := s.Client.Tools.List(callContext(t), "gateway")
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range list {
			if tool.Name == lastOf(l) {
				return tool
			}
		}
		t.Fatalf("tools = %+v, want %s in them", list, lastOf(l))
		return v1.Tool{}
	}
	listed := func(description string, words ...string) func(t *testing.T, s *harness.Server, l line) {
		return func(t *testing.T, s *harness.Server, l line) {
			tool := known(t, s, l)
			if !tool.Enabled || !strings.HasPrefix(tool.Description, description) {
				t.Errorf("tool %+v, want it enabled with description %q", tool, description)
			}
			for _, w := range words {
				if !strings.Contains(string(tool.Input), `"`+w+`"`) {
					t.Errorf("input schema = %s, want %s in it", tool.Input, w)
				}
			}
		}
	}
	return table{
		"registry/bash": listed("Execute bash commands", "command", "args", "cwd"),
		"registry/filesystem": listed("File system operations", "operation", "path", "content", "encoding", "read", "write",
			"list", "stat", "delete"),
		"registry/http":    listed("HTTP requests", "method", "url", "headers", "body", "GET", "POST", "PUT", "DELETE"),
		"registry/browser": listed("Browse web pages", "url", "waitForSelector", "screenshot"),
	}
}
