//go:build integration

// Package mcp tests what an agent's MCP client gets from the real program on real containers: tools
// on standard input and output, with and without a server, and over HTTP. It also runs the public
// conformance suite.
package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

var seed harness.Seed

func TestMain(m *testing.M) {
	code := m.Run()
	if err := seed.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// profile is the profile of the scenarios: it asks about "git push".
const profile = "phase2"

// client is a client's session with the program and its server.
type client struct {
	*mcp.ClientSession
	elicited chan *mcp.ElicitParams
	process  *os.Process // a program that serves this client only
}

// options returns a client whose user answers with decision; "" has no user.
func options(elicited chan *mcp.ElicitParams, decision string) *mcp.ClientOptions {
	if decision == "" {
		return nil
	}
	return &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult,
		error) {
		elicited <- r.Params
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"decision": decision}}, nil
	}}
}

// stdio starts `orchestrator mcp` and connects to it.
func stdio(t *testing.T, s *harness.Server, decision string, args ...string) *client {
	t.Helper()
	cmd := exec.Command(harness.Need(t, harness.EnvBin), append([]string{"mcp", "--log-level", "info"}, args...)...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "ORCHESTRATOR_") && !strings.HasPrefix(e, "DOCKER_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "ORCHESTRATOR_CONFIG="+s.Config())
	cmd.Stderr = os.Stderr
	c := dial(t, &mcp.CommandTransport{Command: cmd, TerminateDuration: harness.Long}, decision)
	c.process = cmd.Process
	return c
}

// overHTTP connects to a server's /mcp over its socket.
func overHTTP(t *testing.T, s *harness.Server, decision, query string) *client {
	t.Helper()
	dialer := &net.Dialer{}
	way := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", s.Socket())
	}}
	t.Cleanup(way.CloseIdleConnections)
	return dial(t, &mcp.StreamableClientTransport{
		Endpoint: "http://orchestrator/mcp" + query, HTTPClient: &http.Client{Transport: way},
	}, decision)
}

// dial connects a client whose user answers approval requests with decision.
func dial(t *testing.T, way mcp.Transport, decision string) *client {
	t.Helper()
	c := &client{elicited: make(chan *mcp.ElicitParams, 4)}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Long)
	defer cancel()
	var err error
	c.ClientSession, err = mcp.NewClient(&mcp.Implementation{Name: "scenario", Version: "1"},
		options(c.elicited, decision)).Connect(ctx, way, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// call calls a tool and returns its structured output and its text.
func (c *client) call(t *testing.T, tool string, args map[string]any) (out map[string]any, text string, isError bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Long)
	defer cancel()
	r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		t.Fatalf("call of %s with %v: %v", tool, args, err)
	}
	if b, err := json.Marshal(r.StructuredContent); err == nil {
		_ = json.Unmarshal(b, &out) // absent in refusals
	}
	if len(r.Content) > 0 {
		if c, ok := r.Content[0].(*mcp.TextContent); ok {
			text = c.Text
		}
	}
	return out, text, r.IsError
}

// each runs a scenario for every way to the tools, in parallel.
func each(t *testing.T, decision string, run func(t *testing.T, c *client)) {
	t.Helper()
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Seed: &seed})
	t.Run("over HTTP", func(t *testing.T) {
		t.Parallel()
		run(t, overHTTP(t, s, decision, "?profile="+profile))
	})
	t.Run("by a server", func(t *testing.T) {
		t.Parallel()
		run(t, stdio(t, s, decision, "--profile", profile))
	})
	t.Run("without a server", func(t *testing.T) {
		t.Parallel()
		alone := harness.New(t, harness.Options{Runtime: "oci", Seed: &seed})
		run(t, stdio(t, alone, decision, "--profile", profile, "--no-server"))
	})
}

// checkIDNames checks that the result of a background command and the input that takes its id name
// each other, because they call it differently.
func checkIDNames(t *testing.T, tool *mcp.Tool) {
	t.Helper()
	schema, word := tool.InputSchema, "background_task_id"
	switch tool.Name {
	case "system_bash":
		schema, word = tool.OutputSchema, "shell_id"
	case "system_output", "system_kill":
	default:
		return
	}
	if b, err := json.Marshal(schema); err != nil || !strings.Contains(string(b), word) {
		t.Errorf("schema of %s = %s, %v; want %s in it", tool.Name, b, err, word)
	}
}

// TestAgentUsesOneSandbox checks that calls of a session share a sandbox, and that invalid and
// forbidden ones are refused.
func TestAgentUsesOneSandbox(t *testing.T) {
	each(t, "", func(t *testing.T, c *client) {
		var tools []string
		for tool, err := range c.Tools(t.Context(), nil) {
			if err != nil {
				t.Fatal(err)
			}
			tools = append(tools, tool.Name)
			checkIDNames(t, tool)
		}
		for _, want := range []string{"system_bash", "system_kill", "system_output", "system_shells"} {
			if !slices.Contains(tools, want) {
				t.Fatalf("tools = %v, want %s in them", tools, want)
			}
		}
		if _, text, isError := c.call(t, "system_bash",
			map[string]any{"command": `python3 -c 'print("hel" + "lo")' > /workspace/said`}); isError {
			t.Fatalf("writing a file: %q, want success", text)
		}
		if _, text, isError := c.call(t, "system_bash", map[string]any{"command": "cat /workspace/said"}); isError ||
			!strings.Contains(text, "hello") {
			t.Errorf("reading the file in another call: %q, want hello", text)
		}
		if _, text, isError := c.call(t, "system_bash", map[string]any{"command": "rm -rf /"}); !isError {
			t.Errorf("rm -rf / succeeded: %q, want it refused", text)
		}
		if _, _, isError := c.call(t, "system_bash", map[string]any{"comand": "ls"}); !isError {
			t.Error("a call with an unknown field succeeded, want an error")
		}
	})
}

// TestBackgroundCommandOutputAndKill reads the output of a background command in pieces, and kills
// it.
func TestBackgroundCommandOutputAndKill(t *testing.T) {
	each(t, "", func(t *testing.T, c *client) {
		word := "mcp" + strings.ToLower(rand.Text())
		out, text, isError := c.call(t, "system_bash", map[string]any{
			"command":           "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.05; done # " + word,
			"run_in_background": true,
		})
		id, _ := out["background_task_id"].(string)
		if isError || id == "" {
			t.Fatalf("background command: %q, %v; want its id", text, out)
		}
		var offset float64
		var read string
		harness.Eventually(t, harness.Long, "ten lines are read in several calls", func() bool {
			out, text, isError := c.call(t, "system_output", map[string]any{"shell_id": id, "offset": offset, "wait_ms": 1000})
			if isError {
				t.Fatalf("system_output: %q, want output", text)
			}
			if out["offset"] != offset {
				t.Fatalf("offset of the output = %v, want %v", out["offset"], offset)
			}
			read += fmt.Sprint(out["data"])
			offset, _ = out["next_offset"].(float64)
			return strings.Count(read, "\n") >= 10
		})
		for i, line := range strings.Split(strings.TrimSpace(read), "\n")[:9] {
			if line != fmt.Sprintf("line %d", i+1) {
				t.Errorf("line %[1]d is %[2]q, want line %[1]d", i+1, line)
			}
		}
		if out, text, _ := c.call(t, "system_shells", nil); !strings.Contains(fmt.Sprint(out), id) {
			t.Errorf("system_shells = %v, %q; want %s in it", out, text, id)
		}
		if len(harness.Marked(word)) == 0 {
			t.Error("the command does not run on the host, want its process")
		}
		if out, text, _ := c.call(t, "system_kill", map[string]any{"shell_id": id}); out["success"] != true {
			t.Errorf("system_kill = %v, %q; want success", out, text)
		}
		gone(t, word)
		if out, text, _ := c.call(t, "system_kill", map[string]any{"shell_id": "nobody"}); out["success"] != false ||
			!strings.Contains(fmt.Sprint(out["message"]), "not found") {
			t.Errorf("system_kill of an unknown shell = %v, %q; want not found", out, text)
		}
	})
}

// gone waits until no process has the word in its command line.
func gone(t *testing.T, word string) {
	t.Helper()
	harness.Eventually(t, harness.Short, "the command is gone", func() bool { return len(harness.Marked(word)) == 0 })
}

// start begins a call of a long command and waits until the command runs.
func (c *client) start(ctx context.Context, t *testing.T, word string) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		p := &mcp.CallToolParams{
			Name: "system_bash", Arguments: map[string]any{"command": "echo begun; sleep 1000 & sleep 1001; echo " + word},
		}
		p.SetProgressToken(word)
		r, err := c.CallTool(ctx, p)
		if err == nil {
			err = fmt.Errorf("the call ended with %+v", r.Meta)
		}
		ended <- err
	}()
	harness.Eventually(t, harness.Long, "the command runs", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the call ended with %v, want it running until it is cancelled", err)
		default:
		}
		return len(harness.Marked(word)) > 0
	})
	return ended
}

// TestCancelledCallKillsProcesses checks that a cancelled call kills what its command has started.
func TestCancelledCallKillsProcesses(t *testing.T) {
	each(t, "", func(t *testing.T, c *client) {
		word := "mcp" + strings.ToLower(rand.Text())
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := c.start(ctx, t, word)
		cancel()
		gone(t, word)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled call: %v, want context canceled", err)
		}
		// The client does not wait after it cancels, and the shell with the word may die a moment
		// before its children.
		harness.Eventually(t, harness.Short, "no process of the command is left in the session", func() bool {
			out, _, _ := c.call(t, "system_bash", map[string]any{"command": "pgrep sleep; echo over"})
			return out["stdout"] == "over\n"
		})
	})
}

// TestKilledClientLeavesNothing kills the program that serves a client, with and without a server.
func TestKilledClientLeavesNothing(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Seed: &seed})
	for what, args := range map[string][]string{"by a server": nil, "without a server": {"--no-server"}} {
		t.Run(what, func(t *testing.T) {
			at := s
			if args != nil {
				at = harness.New(t, harness.Options{Runtime: "oci", Seed: &seed})
			}
			word := "mcp" + strings.ToLower(rand.Text())
			c := stdio(t, at, "", append(args, "--profile", profile)...)
			c.start(context.WithoutCancel(t.Context()), t, word)
			if err := c.process.Kill(); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, harness.Long, "the command is gone", func() bool { return len(harness.Marked(word)) == 0 })
		})
	}
}

// TestClosedHTTPConnectionKillsCommand checks that a command ends with the connection of its call.
func TestClosedHTTPConnectionKillsCommand(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Seed: &seed})
	var mu sync.Mutex
	var conns []net.Conn
	cut := false
	dialer := &net.Dialer{}
	way := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		mu.Lock()
		defer mu.Unlock()
		if cut {
			return nil, errors.New("the line is cut")
		}
		c, err := dialer.DialContext(ctx, "unix", s.Socket())
		conns = append(conns, c)
		return c, err
	}}
	c := dial(t, &mcp.StreamableClientTransport{
		Endpoint: "http://orchestrator/mcp", HTTPClient: &http.Client{Transport: way}, MaxRetries: -1,
	}, "")
	word := "mcp" + strings.ToLower(rand.Text())
	ended := c.start(t.Context(), t, word)
	mu.Lock()
	cut = true
	for _, conn := range conns {
		conn.Close()
	}
	mu.Unlock()
	gone(t, word)
	if err := <-ended; err == nil {
		t.Error("the call over a closed connection succeeded, want an error")
	}
}

// TestSessionEndRemovesSandbox checks that closing a session removes its sandbox.
func TestSessionEndRemovesSandbox(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Seed: &seed})
	for what, begin := range map[string]func() *client{
		"over HTTP": func() *client { return overHTTP(t, s, "", "") }, "by a server": func() *client {
			return stdio(t, s,
				"")
		},
	} {
		c := begin()
		if _, text, isError := c.call(t, "system_bash", map[string]any{"command": "true"}); isError {
			t.Fatalf("%s: system_bash: %s, want no error", what, text)
		}
		leases := func() int {
			ctx, cancel := context.WithTimeout(context.Background(), harness.Short)
			defer cancel()
			all, err := s.Client.Sandboxes(ctx, false)
			if err != nil {
				t.Fatal(err)
			}
			return len(all)
		}
		if leases() != 1 {
			t.Errorf("%s: the session has %d sandboxes, want 1", what, leases())
		}
		c.Close()
		harness.Eventually(t, harness.Short, what+": its sandbox is gone", func() bool { return leases() == 0 })
	}
}

// TestUserApprovesInClient checks that a command runs after the user has approved it in the client.
func TestUserApprovesInClient(t *testing.T) {
	each(t, "approve", func(t *testing.T, c *client) {
		_, text, isError := c.call(t, "system_bash", map[string]any{"command": "git push origin main"})
		if isError {
			t.Errorf("approved call: %q, want success", text)
		}
		asked(t, c)
	})
}

// TestUserDeniesInClient checks that a command does not run after the user has denied it in the
// client.
func TestUserDeniesInClient(t *testing.T) {
	each(t, "deny", func(t *testing.T, c *client) {
		_, text, isError := c.call(t, "system_bash", map[string]any{"command": "git push origin main"})
		if !isError || !strings.Contains(text, "denied by") || !strings.Contains(text, "elicitation:scenario") {
			t.Errorf("denied call: %q, want a denial by elicitation:scenario", text)
		}
		asked(t, c)
	})
}

// asked checks the question that the user saw.
func asked(t *testing.T, c *client) {
	t.Helper()
	select {
	case p := <-c.elicited:
		if !strings.Contains(p.Message, `Command: "git push origin main"`) {
			t.Errorf("approval request %q, want the command in it", p.Message)
		}
	default:
		t.Error("the user was not asked to approve, want one request")
	}
}
