package files

import (
	"context"
	"encoding/json"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
)

// handleTool is Handle for edit, glob and search.
func (s *Server) handleTool(ctx context.Context, op wire.Op, body json.RawMessage, c *wire.Conn) error {
	var reply any
	var err error
	switch op {
	case wire.OpEdit:
		reply, err = tool(ctx, body, s.edit)
	case wire.OpGlob:
		err = s.watched(ctx, c, func(ctx context.Context) (err error) {
			reply, err = tool(ctx, body, s.glob)
			return err
		})
	case wire.OpSearch:
		err = s.watched(ctx, c, func(ctx context.Context) (err error) {
			reply, err = tool(ctx, body, s.search)
			return err
		})
	default:
	}
	if err != nil {
		return refuse(c, err)
	}
	return c.Reply(reply)
}

func tool[In, Out any](ctx context.Context, body json.RawMessage,
	do func(context.Context, In) (Out, error)) (Out, error) {
	var q In
	if err := wire.Decode(body, &q); err != nil {
		var none Out
		return none, err
	}
	return do(ctx, q)
}

func (s *Server) edit(ctx context.Context, q wire.EditRequest) (wire.EditReply, error) {
	pl, err := s.place(&q.FileRequest)
	if err != nil {
		return wire.EditReply{}, err
	}
	var done safefile.Edited
	err = s.withRoot(ctx, pl, func(r *safefile.Root) (err error) {
		done, err = r.Edit(ctx, q.Path, safefile.Edit{Old: q.Old, New: q.New, All: q.All, MaxBytes: wire.MaxEditBytes})
		return err
	})
	return wire.EditReply{Count: done.Count, Line: done.Line, Info: pl.info(done.Info)}, err
}

// look is like withRoot, but waits while too many others run.
func (s *Server) look(ctx context.Context, pl place, f func(*safefile.Root) error) error {
	select {
	case s.looking <- struct{}{}:
		defer func() { <-s.looking }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return s.withRoot(ctx, pl, f)
}

// matchLimit returns the limit for n requested matches.
func matchLimit(n int) (int, error) {
	if n < 0 || n > wire.MaxMatches {
		return 0, wire.Failf(wire.InvalidArgument, "max", "must be from 0 to %d", wire.MaxMatches)
	}
	if n == 0 {
		n = wire.MaxMatches
	}
	return n, nil
}

func dotted(rel string) bool { return path.Base(rel)[0] == '.' }

func (s *Server) glob(ctx context.Context, q wire.GlobRequest) (wire.GlobReply, error) {
	reply := wire.GlobReply{Items: []wire.FileInfo{}}
	limit, err := matchLimit(q.Max)
	if err != nil {
		return reply, err
	}
	g, err := newGlob("pattern", q.Pattern)
	if err != nil {
		return reply, err
	}
	pl, err := s.place(&q.FileRequest)
	if err != nil {
		return reply, err
	}
	hidden, left := q.Hidden || g.hidden, replyRoom
	options := safefile.WalkOptions{Max: wire.MaxWalk, Enter: func(rel string) bool {
		return (hidden || !dotted(rel)) && g.below(rel)
	}}
	err = s.look(ctx, pl, func(r *safefile.Root) error {
		if err := isFolder(ctx, r, q.Path); err != nil || missing(ctx, r, q.Path, g.base) {
			return err
		}
		whole, err := r.Walk(ctx, path.Join(q.Path, g.base), options, func(e *safefile.Entry) error {
			if !hidden && dotted(e.Rel) || !g.re.MatchString(path.Join(g.base, e.Rel)) {
				return nil
			}
			info, err := e.Info()
			if err != nil {
				return nil //nolint:nilerr // removed since
			}
			item := pl.info(info)
			if reply.Truncated = len(reply.Items) == limit || !left.take(item); reply.Truncated {
				return fs.SkipAll
			}
			reply.Items = append(reply.Items, item)
			return nil
		})
		reply.Truncated = reply.Truncated || !whole
		return err
	})
	slices.SortFunc(reply.Items, func(a, b wire.FileInfo) int { return strings.Compare(a.Path, b.Path) })
	return reply, err
}

// isFolder returns an error if p is not a directory.
func isFolder(ctx context.Context, r *safefile.Root, p string) error {
	_, _, err := r.List(ctx, p, 0, nil)
	return err
}

// missing reports whether p has no directory base, so that nothing matches.
func missing(ctx context.Context, r *safefile.Root, p, base string) bool {
	if base == "" {
		return false
	}
	return isFolder(ctx, r, path.Join(p, base)) != nil
}
