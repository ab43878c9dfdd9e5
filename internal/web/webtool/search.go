package webtool

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/search"
)

type webSearchInput struct {
	Query string `json:"query" jsonschema:"what to search for"`
	Count int    `json:"count,omitempty" jsonschema:"at most this many results, up to 20"`
}

// WebSearchOutput is a list of results with their sources.
type WebSearchOutput struct {
	Query   string          `json:"query"`
	Results []search.Result `json:"results"`
	Count   int             `json:"count"`
	// Provider is the search provider. Dropped counts results without a source.
	Provider string `json:"provider"`
	Dropped  int    `json:"dropped,omitempty"`
}

var webSearch = tool.Define(tool.Tool{
	Name: "web.search", Title: "Search the web", Trust: 1, ReadOnly: true, Idempotent: true,
	Description: "Searches the web. Every result has the address of its source.",
	Effects:     []tool.Effect{tool.CallsNetwork},
}, func(in *webSearchInput) (tool.Prepared, error) {
	switch {
	case strings.TrimSpace(in.Query) == "":
		return tool.Prepared{}, tool.Invalid("query", "is empty")
	case utf8.RuneCountInString(in.Query) > search.MaxQuery:
		return tool.Prepared{}, tool.Invalid("query", "is %d characters long: at most %d", utf8.RuneCountInString(in.Query),
			search.MaxQuery)
	case strings.ContainsFunc(in.Query, func(r rune) bool { return r < ' ' && r != '\t' && r != '\n' || r == 0x7f }):
		return tool.Prepared{}, tool.Invalid("query", "has a control character")
	case in.Count < 0 || in.Count > search.MaxResults:
		return tool.Prepared{}, tool.Invalid("count", "is %d: from 1 to %d", in.Count, search.MaxResults)
	}
	return tool.Prepared{}, nil
}, runWebSearch)

func runWebSearch(ctx context.Context, caps tool.Caps, w Web, in *webSearchInput) (
	out WebSearchOutput, o tool.Outcome, err error,
) {
	p := w.Search
	if p == nil {
		return out, o, usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"no search provider is configured: an operator sets web.search.provider to searxng, brave or serper, "+
				"and its url or key_file, in the service's configuration",
		)
	}
	n, began := p.Results(in.Count), time.Now()
	x := Exchange{Secrets: p.Secrets()}
	if x.Request, err = p.Request(in.Query, n); err != nil {
		return out, o, err
	}
	limit, err := timeout(caps, 0, time.Duration(x.Request.TimeoutMS)*time.Millisecond)
	if err != nil {
		return out, o, err
	}
	x.Request.TimeoutMS = limit.Milliseconds()
	if x.Scope.Limit, err = reach.Compile(p.Rules()); err != nil {
		return out, o, err
	}
	a, err := ask(ctx, w.Exchanger, x)
	if l := late(err, limit); l != nil {
		return out, *l, tool.ErrNoOutput
	}
	if err != nil {
		return out, o, err
	}
	out = WebSearchOutput{Query: in.Query, Provider: p.Name()}
	if out.Results, out.Dropped, err = p.Read(a, n); err != nil {
		return out, o, err
	}
	out.Count = len(out.Results)
	return out, tool.Outcome{Duration: time.Since(began)}, nil
}
