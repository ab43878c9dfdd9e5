package guest

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// maxContext is the maximum number of lines before and after a match.
const maxContext = 10

// EditFile replaces text in a file, atomically. Errors: NotFound if the file or the text does not
// exist; FailedPrecondition if the text occurs more than once, the file is not text, or it changed
// during the edit.
func (c *Client) EditFile(ctx context.Context, q wire.EditRequest) (wire.EditReply, error) {
	return askChecked(ctx, c, wire.OpEdit, q, c.times.short, func(r *wire.EditReply) error {
		if r.Count < 1 || r.Line < 1 {
			return fmt.Errorf("invalid edit result: %d replacements from line %d", r.Count, r.Line)
		}
		return checkFile(&r.Info)
	})
}

// Glob lists files by name. It has no time limit for large trees, but the guest stops when ctx
// ends.
func (c *Client) Glob(ctx context.Context, q wire.GlobRequest) (wire.GlobReply, error) {
	l, err := askListing(ctx, c, wire.OpGlob, q, wire.MaxMatches)
	return wire.GlobReply(l), err
}

// Search searches files for a pattern. It has no time limit for large trees, but the guest stops
// when ctx ends.
func (c *Client) Search(ctx context.Context, q wire.SearchRequest) (wire.SearchReply, error) {
	raw, err := ask[struct {
		Matches   json.RawMessage `json:"matches"`
		Files     int             `json:"files"`
		Skipped   int             `json:"skipped"`
		Truncated bool            `json:"truncated"`
	}](ctx, c, wire.OpSearch, q, 0)
	if err != nil {
		return wire.SearchReply{}, err
	}
	if raw.Files < 0 || raw.Skipped < 0 {
		return wire.SearchReply{},
			protocolError(wire.OpSearch, "invalid search result: %d files, %d skipped", raw.Files, raw.Skipped)
	}
	matches, err := list(raw.Matches, wire.MaxMatches, checkMatch)
	if err != nil {
		return wire.SearchReply{}, protocolError(wire.OpSearch, "%v", err)
	}
	return wire.SearchReply{Matches: matches, Files: raw.Files, Skipped: raw.Skipped, Truncated: raw.Truncated}, nil
}

func checkMatch(m *wire.Match) error {
	if err := checkPath(m.Path); err != nil {
		return err
	}
	if m.Line < 1 || m.Column < 1 {
		return fmt.Errorf("invalid match at line %d, column %d", m.Line, m.Column)
	}
	if len(m.Before) > maxContext || len(m.After) > maxContext {
		return fmt.Errorf("match with too many lines of context: %d before, %d after", len(m.Before), len(m.After))
	}
	for _, lines := range [][]string{{m.Text}, m.Before, m.After} {
		for _, l := range lines {
			if len(l) > 3*wire.MaxLineBytes { // each invalid byte becomes U+FFFD
				return fmt.Errorf("match line too long: %d bytes", len(l))
			}
		}
	}
	return nil
}
