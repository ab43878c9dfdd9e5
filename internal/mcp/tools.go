package mcp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Keys in _meta that belong to this server.
const (
	metaName    = "orchestrator/name"
	metaEffects = "orchestrator/effects"
	metaTrust   = "orchestrator/trust"
	metaKey     = "orchestrator/idempotency-key"
	metaCall    = "orchestrator/call"
	metaEnding  = "orchestrator/ending"
	metaSandbox = "orchestrator/sandbox"
	metaRule    = "orchestrator/rule"
	metaAsked   = "orchestrator/approval"
	metaRest    = "orchestrator/rest"
	metaError   = "orchestrator/error"
)

// names maps the MCP names of tools to the engine's, for one profile.
type names struct {
	profile   string
	byMCPName map[string]string
}

// mcpName returns a tool's MCP name: letters, digits, '_' and '-'.
func mcpName(tool string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		}
		return '_'
	}, tool)
}

// mcpNames assigns every tool a unique MCP name. If two names collide, a tool with exactly that
// name keeps it, and the others get an additional '_'.
func mcpNames(tools []v1.Tool) map[string]string {
	of := make(map[string]string, len(tools))
	for _, t := range tools {
		if mcpName(t.Name) == t.Name {
			of[t.Name] = t.Name
		}
	}
	for _, t := range tools {
		n := mcpName(t.Name)
		if n == t.Name {
			continue
		}
		for of[n] != "" {
			n += "_"
		}
		of[n] = t.Name
	}
	return of
}

// listTools answers tools/list with a page of the caller's tools. The cursor is the last tool of
// the previous page.
func (s *Server) listTools(ctx context.Context, a Access, p *mcp.ListToolsParams) (*mcp.ListToolsResult, error) {
	tools, err := s.engine.Tools(ctx, a.Principal, a.Profile)
	if err != nil {
		return nil, s.protocolError(a, err, "failed to list tools")
	}
	cursor := ""
	if p != nil {
		cursor = p.Cursor
	}
	return toolsPage(tools, cursor, s.opts.PageSize)
}

func toolsPage(tools []v1.Tool, cursor string, size int) (*mcp.ListToolsResult, error) {
	called := map[string]string{} // by the engine's names
	for n, tool := range mcpNames(tools) {
		called[tool] = n
	}
	tools = slices.DeleteFunc(slices.Clone(tools), func(t v1.Tool) bool { return !t.Enabled })
	if cursor != "" {
		last, err := base64.RawURLEncoding.DecodeString(cursor)
		i := slices.IndexFunc(tools, func(t v1.Tool) bool { return t.Name == string(last) })
		if err != nil || i < 0 {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "unknown cursor: list from the start"}
		}
		tools = tools[i+1:]
	}
	res := &mcp.ListToolsResult{Tools: []*mcp.Tool{}}
	if len(tools) > size {
		tools = tools[:size]
		res.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(tools[size-1].Name))
	}
	for _, t := range tools {
		res.Tools = append(res.Tools, describe(t, called[t.Name]))
	}
	return res, nil
}

func describe(t v1.Tool, called string) *mcp.Tool {
	open := slices.ContainsFunc(t.Effects, func(e string) bool { return strings.Contains(e, "network") })
	out := &mcp.Tool{
		Name: called, Title: t.Title, Description: t.Description, InputSchema: t.Input,
		Annotations: &mcp.ToolAnnotations{
			Title: t.Title, ReadOnlyHint: t.ReadOnly, DestructiveHint: &t.Destructive, IdempotentHint: t.Idempotent,
			OpenWorldHint: &open,
		},
		Meta: mcp.Meta{metaName: t.Name, metaEffects: t.Effects, metaTrust: t.Trust},
	}
	if len(t.Input) == 0 {
		out.InputSchema = json.RawMessage(`{"type":"object"}`)
	}
	if out.Description == "" {
		out.Description = "The tool " + t.Name + "."
	}
	// Clients validate structured content against the schema, which must be an object.
	if isObject(t.Output) {
		out.OutputSchema = t.Output
	}
	return out
}

func isObject(schema json.RawMessage) bool {
	var s struct {
		Type string `json:"type"`
	}
	return len(schema) > 0 && json.Unmarshal(schema, &s) == nil && s.Type == "object"
}

// resolve returns the engine's name of a tool.
func (s *Server) resolve(
	ctx context.Context, x *session, a Access, called string,
) (tool string, known bool, err error) {
	profile := a.Principal.Token + "/" + a.Principal.Profile + "/" + a.Profile
	x.mu.Lock()
	if x.names.profile == profile {
		tool, known = x.names.byMCPName[called]
	}
	x.mu.Unlock()
	if known {
		return tool, true, nil
	}
	tools, err := s.engine.Tools(ctx, a.Principal, a.Profile)
	if err != nil {
		return "", false, err
	}
	of := mcpNames(tools)
	x.mu.Lock()
	x.names = names{profile: profile, byMCPName: of}
	x.mu.Unlock()
	tool, known = of[called]
	return tool, known, nil
}

func unknownTool(called string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
		Message: fmt.Sprintf("unknown tool %s: see tools/list", quote(called, 100))}
}
