package mcp

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// The output of earlier calls as resources.
const (
	outputScheme   = "orchestrator://calls/"
	outputTemplate = outputScheme + "{id}/{stream}"
	// maxResource bounds one read, in bytes. Tools read the rest from an offset.
	maxResource = 256 << 10
	maxValues   = 100 // values of a completion, by the protocol
)

func outputURI(id, stream string) string { return outputScheme + url.PathEscape(id) + "/" + stream }

// outputLink returns the link to the rest of a call's output.
func outputLink(id string) *mcp.ResourceLink {
	return &mcp.ResourceLink{
		URI: outputURI(id, "stdout"), Name: "stdout", MIMEType: "text/plain",
		Description: "The whole standard output of this call.",
	}
}

func (s *Server) addResources() {
	s.sdk.AddResourceTemplate(&mcp.ResourceTemplate{
		Name: "call-output", Title: "Output of a call", URITemplate: outputTemplate, MIMEType: "text/plain",
		Description: "What an earlier call wrote to a stream, stdout or stderr, as long as it is kept.",
	}, s.readOutput)
}

// readOutput returns a stream of an earlier call, up to maxResource bytes.
func (s *Server) readOutput(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := req.Params.URI
	id, stream, ok := strings.Cut(strings.TrimPrefix(uri, outputScheme), "/")
	id, err := url.PathUnescape(id)
	if !ok || err != nil || stream != "stdout" && stream != "stderr" {
		return nil, mcp.ResourceNotFoundError(uri)
	}
	a := s.access(req)
	var b []byte
	meta := mcp.Meta{}
	for offset := int64(0); ; {
		o, err := s.engine.CallOutput(ctx, a.Principal, id,
			tool.OutputRequest{Stream: stream, Offset: offset, Limit: maxResource - int64(len(b))})
		if err != nil {
			return nil, s.protocolError(a, err, "failed to read output")
		}
		piece := []byte(o.Data)
		if o.Base64 != "" {
			if piece, err = base64.StdEncoding.DecodeString(o.Base64); err != nil {
				return nil, s.protocolError(a, fmt.Errorf("output of a call: %w", err), "failed to read output")
			}
		}
		b = append(b, piece...)
		if o.EOF || o.NextOffset <= offset {
			break
		}
		if len(b) >= maxResource {
			meta["orchestrator/truncated"], meta["orchestrator/next_offset"] = true, o.NextOffset
			break
		}
		offset = o.NextOffset
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{
		URI: uri, MIMEType: "text/plain", Text: clip.Valid(string(b)), Meta: meta,
	}}}, nil
}

// subscribe accepts subscriptions and does nothing: the output of an ended call does not change.
func (s *Server) subscribe(context.Context, *mcp.SubscribeRequest) error { return nil }

func (s *Server) unsubscribe(context.Context, *mcp.UnsubscribeRequest) error { return nil }

// complete completes the ids of the session's calls and the names of streams.
func (s *Server) complete(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	var of []string
	if ref := req.Params.Ref; ref != nil && ref.URI == outputTemplate {
		switch req.Params.Argument.Name {
		case "stream":
			of = []string{"stdout", "stderr"}
		case "id":
			if x, err := s.session(req.Session); err == nil {
				x.mu.Lock()
				of = slices.Clone(x.calls)
				x.mu.Unlock()
				slices.Reverse(of) // newest first
			}
		}
	}
	values := []string{}
	for _, v := range of {
		if strings.HasPrefix(v, req.Params.Argument.Value) {
			values = append(values, v)
		}
	}
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{
		Total: len(values), HasMore: len(values) > maxValues, Values: values[:min(len(values), maxValues)],
	}}, nil
}

func (s *Server) addPrompts() {
	s.sdk.AddPrompt(&mcp.Prompt{
		Name: "background", Title: "Run in the background",
		Description: "Runs a long command in the background and follows its output.",
		Arguments:   []*mcp.PromptArgument{{Name: "command", Description: "The command to run", Required: true}},
	}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		command := req.Params.Arguments["command"]
		if strings.TrimSpace(command) == "" {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams,
				Message: "argument command is empty: give the command to run"}
		}
		text := fmt.Sprintf(backgroundPrompt, command)
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{
			{Role: "user", Content: &mcp.TextContent{Text: text}},
		}}, nil
	})
}

const backgroundPrompt = "Run this command in the background (run_in_background), so that it can take its time:" +
	"\n\n%s\n\nThen read its output from the offset where the last reading ended until it has ended, " +
	"and say how it went. If it hangs, kill it by its id."
