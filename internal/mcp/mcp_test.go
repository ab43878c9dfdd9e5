package mcp

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

func TestListToolsDescribesTools(t *testing.T) {
	cs, _ := connect(t, Options{Engine: newFake(), Access: operator, PageSize: 1}, nil)
	var got []*mcp.Tool
	for tool, err := range cs.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, tool)
	}
	called := make([]string, 0, len(got))
	for _, tool := range got {
		called = append(called, tool.Name)
	}
	if diff := cmp.Diff([]string{"system_bash", "fs_read", "web_fetch"}, called); diff != "" {
		t.Errorf("tools over three pages, without the one that is off (-want +got):\n%s", diff)
	}
	bash := got[0]
	switch {
	case bash.Title != "Bash" || bash.Description != "Runs a command.":
		t.Errorf("title = %q, description = %q; want %q and %q", bash.Title, bash.Description, "Bash", "Runs a command.")
	case bash.Annotations == nil || bash.Annotations.ReadOnlyHint || !*bash.Annotations.DestructiveHint ||
		*bash.Annotations.OpenWorldHint:
		t.Errorf("annotations = %+v, want only a destructive hint", bash.Annotations)
	case bash.OutputSchema == nil:
		t.Error("the output schema is missing, want one")
	}
	if in, ok := bash.InputSchema.(map[string]any); !ok || in["type"] != "object" || in["required"] == nil {
		t.Errorf("input schema = %v, want an object with required fields", bash.InputSchema)
	}
	if a := got[1].Annotations; !a.ReadOnlyHint || !a.IdempotentHint {
		t.Errorf("annotations of a read-only tool = %+v, want read-only and idempotent hints", a)
	}
	if a := got[2].Annotations; !*a.OpenWorldHint {
		t.Errorf("annotations of a network tool = %+v, want an open-world hint", a)
	}
	if got[0].Meta[metaName] != "system.bash" {
		t.Errorf("_meta = %v, want %s: system.bash", got[0].Meta, metaName)
	}
	if _, err := cs.ListTools(t.Context(),
		&mcp.ListToolsParams{Cursor: "nonsense"}); codeOf(err) != jsonrpc.CodeInvalidParams {
		t.Errorf("ListTools with an unknown cursor: %v, want code %d", err, jsonrpc.CodeInvalidParams)
	}
}

func codeOf(err error) int64 {
	if e, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return e.Code
	}
	return 0
}

func TestNamingKeepsNamesUnique(t *testing.T) {
	got := mcpNames([]v1.Tool{{Name: "web.fetch"}, {Name: "web_fetch"}, {Name: "web fetch"}, {Name: "run"}})
	want := map[string]string{"web_fetch": "web_fetch", "web_fetch_": "web.fetch", "web_fetch__": "web fetch",
		"run": "run"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mcpNames (-want +got):\n%s", diff)
	}
}

func TestCallReturnsTextAndStructure(t *testing.T) {
	cs, _ := connect(t, Options{Engine: newFake(), Access: operator}, nil)
	r, err := cs.CallTool(t.Context(), bash("echo hello"))
	if err != nil {
		t.Fatal(err)
	}
	if got := textOf(t, r); got != "hello" || r.IsError {
		t.Errorf("result = %q, error %t; want hello, no error", got, r.IsError)
	}
	if diff := cmp.Diff(map[string]any{"stdout": "hello", "exit_code": 0.0}, r.StructuredContent); diff != "" {
		t.Errorf("structured content (-want +got):\n%s", diff)
	}
	if r.Meta[metaCall] != "call-1" || r.Meta[metaEnding] != "exited" || r.Meta[metaSandbox] != "sb-1" {
		t.Errorf("_meta = %v, want call call-1, ending exited, sandbox sb-1", r.Meta)
	}
}

func TestRefusalIsErrorResult(t *testing.T) {
	cs, _ := connect(t, Options{Engine: newFake(), Access: operator}, nil)
	r, err := cs.CallTool(t.Context(), bash("refuse rm"))
	if err != nil {
		t.Fatal(err)
	}
	want := "SafetyViolation: rm is refused"
	if got := textOf(t, r); !r.IsError || got != want || r.Meta[metaRule] != "never-rm" {
		t.Errorf("result = %q, error %t, _meta %v; want error %q with rule never-rm", got, r.IsError, r.Meta, want)
	}
}

func TestFailedCallIsReportedToModel(t *testing.T) {
	cs, _ := connect(t, Options{Engine: newFake(), Access: Access{Principal: caller.Principal{Caller: "ben"}}}, nil)
	for what, c := range map[string]struct {
		params *mcp.CallToolParams
		want   string
	}{
		"a missing field": {&mcp.CallToolParams{Name: "system_bash", Arguments: map[string]any{}},
			"input.command is missing"},
		"arguments missing": {&mcp.CallToolParams{Name: "system_bash"}, "input.command is missing"},
		"an inner error":    {bash("break it"), "tool call failed: the service could not do this; its log says why"},
		"no room":           {bash("full house"), ""},
	} {
		r, err := cs.CallTool(t.Context(), c.params)
		if err != nil {
			t.Errorf("%s: CallTool: %v, want an error result", what, err)
			continue
		}
		got := textOf(t, r)
		if !r.IsError || c.want != "" && got != c.want || strings.Contains(got, "secret") {
			t.Errorf("%s: result = %q, error %t; want error %q without secrets", what, got, r.IsError, c.want)
		}
	}
}

func TestUnknownToolIsProtocolError(t *testing.T) {
	f := newFake()
	cs, _ := connect(t, Options{Engine: f, Access: operator}, nil)
	_, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "rm\x1b[2J"})
	if codeOf(err) != jsonrpc.CodeInvalidParams || !strings.Contains(err.Error(), `unknown tool "rm\x1b[2J"`) {
		t.Errorf("CallTool: %v, want code %d and the tool's name escaped", err, jsonrpc.CodeInvalidParams)
	}
	if len(f.sessions()) != 1 {
		t.Errorf("the engine got %d calls, want 1 to audit the refusal", len(f.sessions()))
	}
}

func TestIdempotencyKeyComesFromMeta(t *testing.T) {
	f := newFake()
	cs, _ := connect(t, Options{Engine: f, Access: operator}, nil)
	p := bash("echo once")
	p.Meta = mcp.Meta{metaKey: "k1"}
	if _, err := cs.CallTool(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if f.by[0].Key != "k1" || f.by[0].Via != "mcp" || f.by[0].Caller != "anna" {
		t.Errorf("called by %+v, want anna via mcp with key k1", f.by[0])
	}
	p.Meta = mcp.Meta{metaKey: 1}
	if _, err := cs.CallTool(t.Context(), p); codeOf(err) != jsonrpc.CodeInvalidParams {
		t.Errorf("CallTool with a key that is a number: %v, want code %d", err, jsonrpc.CodeInvalidParams)
	}
}

func TestSessionKeepsNameAndEnds(t *testing.T) {
	f := newFake()
	cs, s := connect(t, Options{Engine: f, Access: operator}, nil)
	other, _ := connect(t, Options{Engine: f, Access: operator}, nil)
	for _, c := range []*mcp.ClientSession{cs, cs, other} {
		if _, err := c.CallTool(t.Context(), bash("echo x")); err != nil {
			t.Fatal(err)
		}
	}
	got := f.sessions()
	if got[0] != got[1] || got[0] == got[2] || !strings.HasPrefix(got[0], "mcp-") {
		t.Errorf("sessions of two calls of one client and one of another = %v, want mcp- and a session per client", got)
	}
	cs.Close()
	eventually(t, "the end of the session", func() bool { return len(f.hasEnded()) == 1 })
	if f.hasEnded()[0] != got[0] {
		t.Errorf("ended %v, want %s", f.hasEnded(), got[0])
	}
	closeServer(t, s)
}

func TestUnusedSessionEndsNothing(t *testing.T) {
	f := newFake()
	cs, s := connect(t, Options{Engine: f, Access: operator}, nil)
	cs.Close()
	closeServer(t, s)
	if len(f.hasEnded()) != 0 {
		t.Errorf("ended sessions = %v, want none", f.hasEnded())
	}
}

func TestCanceledCallEndsCommand(t *testing.T) {
	f := newFake()
	cs, _ := connect(t, Options{Engine: f, Access: operator}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	called := make(chan error, 1)
	go func() {
		_, err := cs.CallTool(ctx, bash("wait for it"))
		called <- err
	}()
	within(t, f.running, "a running command")
	cancel()
	within(t, f.killed, "the end of the command")
	if err := within(t, called, "the end of the call"); !errors.Is(err, context.Canceled) {
		t.Errorf("the call ended with %v, want %v", err, context.Canceled)
	}
	if _, err := cs.CallTool(t.Context(), bash("echo still there")); err != nil {
		t.Errorf("CallTool after a cancelled call: %v", err)
	}
}

func TestServerCloseEndsCalls(t *testing.T) {
	f := newFake()
	cs, s := connect(t, Options{Engine: f, Access: operator}, nil)
	go func() { _, _ = cs.CallTool(context.Background(), bash("wait for it")) }()
	within(t, f.running, "a running command")
	closeServer(t, s)
	if err := within(t, f.killed, "the end of the command"); !errors.Is(err, errStopping) {
		t.Errorf("the command ended because of %v, want %v", err, errStopping)
	}
}

func TestProgressGrowsWithTheOutput(t *testing.T) {
	var mu sync.Mutex
	var got []*mcp.ProgressNotificationParams
	told := make(chan struct{}, 64)
	cs, _ := connect(t, Options{Engine: newFake(), Access: operator}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, r.Params)
			told <- struct{}{}
		},
	})
	p := bash("lines")
	p.SetProgressToken("tok")
	if _, err := cs.CallTool(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	within(t, told, "progress")
	mu.Lock()
	defer mu.Unlock()
	last := -1.0
	for _, n := range got {
		if n.Progress <= last || n.ProgressToken != "tok" {
			t.Errorf("progress %v of token %v, want more than %v of token tok", n.Progress, n.ProgressToken, last)
		}
		last = n.Progress
	}
}

func TestProgressShowsLastLine(t *testing.T) {
	for _, c := range []struct {
		pieces []string
		want   string
	}{
		{[]string{"one\n"}, "one"},
		{[]string{"one\ntwo\n"}, "two"},
		{[]string{"one\ntw", "o"}, "two"},
		{[]string{"one\ntwo\n", "three"}, "three"},
		{[]string{"one", "\n", "two"}, "two"},
		{[]string{"\x1b[2Jred\x00\u202e\xff\n"}, "[2Jred"},
		{[]string{strings.Repeat("x", 5000)}, strings.Repeat("x", maxLine) + "…"},
		{[]string{"", "a", ""}, "a"},
	} {
		p := &progress{wake: make(chan struct{}, 1)}
		for _, b := range c.pieces {
			p.output([]byte(b))
		}
		if got := plain(string(p.line), maxLine); got != c.want {
			t.Errorf("%q shows %q, want %q", c.pieces, got, c.want)
		}
	}
}

func TestCallOutputIsResource(t *testing.T) {
	cs, _ := connect(t, Options{Engine: newFake(), Access: operator}, nil)
	r, err := cs.CallTool(t.Context(), bash("long output"))
	if err != nil {
		t.Fatal(err)
	}
	link, ok := r.Content[1].(*mcp.ResourceLink)
	if !ok {
		t.Fatalf("content = %v, want a link second", r.Content)
	}
	res, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: link.URI})
	if err != nil || res.Contents[0].Text != "first second" {
		t.Errorf("ReadResource = %v, %v; want %q", res, err, "first second")
	}
	c, err := cs.Complete(t.Context(), &mcp.CompleteParams{
		Ref:      &mcp.CompleteReference{Type: "ref/resource", URI: outputTemplate},
		Argument: mcp.CompleteParamsArgument{Name: "id", Value: "call"},
	})
	if err != nil || !cmp.Equal(c.Completion.Values, []string{"call-1"}) {
		t.Errorf("completion = %v, %v; want call-1", c, err)
	}
	for _, uri := range []string{outputURI("nobody", "stdout"), outputURI("call-1", "stdlog"), outputScheme + "x"} {
		if _, err := cs.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("ReadResource(%s) succeeded, want an error", uri)
		}
	}
}

func TestBackgroundPrompt(t *testing.T) {
	cs, _ := connect(t, Options{Engine: newFake(), Access: operator}, nil)
	r, err := cs.GetPrompt(t.Context(),
		&mcp.GetPromptParams{Name: "background", Arguments: map[string]string{"command": "make all"}})
	if err != nil || !strings.Contains(r.Messages[0].Content.(*mcp.TextContent).Text, "make all") {
		t.Errorf("GetPrompt = %v, %v; want the command in it", r, err)
	}
	if _, err := cs.GetPrompt(t.Context(),
		&mcp.GetPromptParams{Name: "background"}); codeOf(err) != jsonrpc.CodeInvalidParams {
		t.Errorf("GetPrompt without a command: %v, want code %d", err, jsonrpc.CodeInvalidParams)
	}
}
