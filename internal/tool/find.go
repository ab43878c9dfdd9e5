package tool

import (
	"context"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

type globInput struct {
	Pattern    string `json:"pattern" jsonschema:"*, ?, [class], {a,b}, and ** for any number of folders"`
	Path       string `json:"path,omitempty" jsonschema:"the folder to begin in; /workspace unless set"`
	Hidden     bool   `json:"hidden,omitempty" jsonschema:"also names that begin with a dot"`
	MaxResults int    `json:"max_results,omitempty"`
}

// GlobOutput lists files by path.
type GlobOutput struct {
	Files     []FileState `json:"files"`
	Truncated bool        `json:"truncated"`
}

var fsGlob = Define(Tool{
	Name: "fs.glob", Title: "Find files by name", Trust: 1, ReadOnly: true, Idempotent: true,
	Description: "Lists files of the sandbox's workspace whose paths match a pattern.",
	Effects:     []Effect{ReadsFiles},
}, func(in *globInput) (Prepared, error) {
	if in.Pattern == "" {
		return Prepared{}, Invalid("pattern", "is empty")
	}
	if err := checkResults(in.MaxResults); err != nil {
		return Prepared{}, err
	}
	return Prepared{NeedsSandbox: true}, nil
}, func(ctx context.Context, caps Caps, f Files, in *globInput) (GlobOutput, Outcome, error) {
	r, err := caps.request(in.Path)
	if err != nil {
		return GlobOutput{}, Outcome{}, err
	}
	got, err := f.Glob(ctx, wire.GlobRequest{FileRequest: r, Pattern: in.Pattern, Hidden: in.Hidden, Max: in.MaxResults})
	if err != nil {
		return GlobOutput{}, Outcome{}, err
	}
	out := GlobOutput{Files: make([]FileState, 0, len(got.Items)), Truncated: got.Truncated}
	for _, i := range got.Items {
		out.Files = append(out.Files, fileState(i))
	}
	return out, Outcome{}, nil
})

func checkResults(n int) error {
	if n < 0 || n > wire.MaxMatches {
		return Invalid("max_results", "is %d: from 0 to %d", n, wire.MaxMatches)
	}
	return nil
}

type searchInput struct {
	Pattern    string `json:"pattern" jsonschema:"a regular expression (RE2)"`
	Path       string `json:"path,omitempty" jsonschema:"a folder or a file; /workspace unless set"`
	Literal    bool   `json:"literal,omitempty" jsonschema:"pattern is plain text"`
	IgnoreCase bool   `json:"ignore_case,omitempty"`
	Glob       string `json:"glob,omitempty" jsonschema:"only files whose path matches"`
	Hidden     bool   `json:"hidden,omitempty" jsonschema:"also names that begin with a dot"`
	Before     int    `json:"before,omitempty" jsonschema:"lines of context before a match"`
	After      int    `json:"after,omitempty" jsonschema:"lines of context after a match"`
	MaxResults int    `json:"max_results,omitempty"`
}

// SearchOutput lists matching lines.
type SearchOutput struct {
	Matches   []SearchMatch `json:"matches"`
	Files     int           `json:"files" jsonschema:"how many files were looked at"`
	Skipped   int           `json:"skipped" jsonschema:"how many were not, being no text"`
	Truncated bool          `json:"truncated"`
}

// SearchMatch is one line.
type SearchMatch struct {
	Path   string   `json:"path"`
	Line   int      `json:"line"`
	Column int      `json:"column"`
	Text   string   `json:"text"`
	Before []string `json:"before,omitempty"`
	After  []string `json:"after,omitempty"`
}

// maxContext is the maximum number of context lines on each side of a match.
const maxContext = 10

var fsSearch = Define(Tool{
	Name: "fs.search", Title: "Search in files", Trust: 1, ReadOnly: true, Idempotent: true,
	Description: "Looks for a regular expression in the files of the sandbox's workspace.",
	Effects:     []Effect{ReadsFiles},
}, func(in *searchInput) (Prepared, error) {
	switch {
	case in.Pattern == "":
		return Prepared{}, Invalid("pattern", "is empty")
	case in.Before < 0 || in.Before > maxContext:
		return Prepared{}, Invalid("before", "is %d: from 0 to %d", in.Before, maxContext)
	case in.After < 0 || in.After > maxContext:
		return Prepared{}, Invalid("after", "is %d: from 0 to %d", in.After, maxContext)
	}
	if err := checkResults(in.MaxResults); err != nil {
		return Prepared{}, err
	}
	return Prepared{NeedsSandbox: true}, nil
}, func(ctx context.Context, caps Caps, f Files, in *searchInput) (SearchOutput, Outcome, error) {
	r, err := caps.request(in.Path)
	if err != nil {
		return SearchOutput{}, Outcome{}, err
	}
	got, err := f.Search(ctx, wire.SearchRequest{
		FileRequest: r, Pattern: in.Pattern, Literal: in.Literal, IgnoreCase: in.IgnoreCase, Glob: in.Glob, Hidden: in.Hidden,
		Before: in.Before, After: in.After, Max: in.MaxResults,
	})
	if err != nil {
		return SearchOutput{}, Outcome{}, err
	}
	out := SearchOutput{Matches: make([]SearchMatch, 0, len(got.Matches)), Files: got.Files, Skipped: got.Skipped,
		Truncated: got.Truncated}
	for _, m := range got.Matches {
		out.Matches = append(out.Matches, SearchMatch(m))
	}
	return out, Outcome{}, nil
})
