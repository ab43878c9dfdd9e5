package files

import (
	"cmp"
	"context"
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
)

// place is the folder that a request is about.
type place struct {
	dir      string // where it is
	prefix   string // what requests call it
	noFollow bool
}

// place finds out which folder a request is about, and puts the names of aliases
// right. It decides by the words of the path only; that it stays in the folder is
// up to safefile.
func (s *Server) place(q *wire.FileRequest) (place, error) {
	q.Path, q.To = s.real(q.Path), s.real(q.To)
	pl := place{dir: s.opt.Dir, prefix: wire.Workspace, noFollow: q.NoFollow}
	if isIn(q.Path, wire.Tmp) {
		pl.dir, pl.prefix = s.opt.Tmp, wire.Tmp
	}
	if q.To != "" && isIn(q.To, wire.Tmp) != isIn(q.Path, wire.Tmp) {
		return place{}, wire.Failf(wire.FailedPrecondition, "to", "%q is in another file system than %q: write it there and remove it here", q.To, q.Path)
	}
	return pl, nil
}

func isIn(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// info is what the host is told of a file: outside the workspace its path is an
// absolute one.
func (pl place) info(i safefile.Info) wire.FileInfo {
	i.Path = pl.path(i.Path)
	return wire.FileInfo(i)
}

func (pl place) path(p string) string {
	if pl.prefix == wire.Workspace || path.IsAbs(p) {
		return p
	}
	return path.Join(pl.prefix, p)
}

// name puts the folder's own name into an error.
func (pl place) name(err error) error {
	const workspace = "the workspace"
	e, ok := errors.AsType[*safefile.Error](err)
	if !ok || pl.prefix == wire.Workspace {
		return err
	}
	if strings.HasSuffix(e.Message, workspace) || strings.HasSuffix(e.Message, workspace+" itself") {
		i := strings.LastIndex(e.Message, workspace)
		e.Message = e.Message[:i] + pl.prefix + e.Message[i+len(workspace):]
	}
	return err
}

// alias is a further name of a folder.
type alias struct{ name, target string }

// real is the path that a name below an alias stands for.
func (s *Server) real(p string) string {
	all := s.alias.Load()
	if all == nil || !path.IsAbs(p) {
		return p
	}
	for _, a := range *all {
		if isIn(p, a.name) {
			return a.target + p[len(a.name):]
		}
	}
	return p
}

// Alias makes links below the home directory, as the user: each key is a name
// there, each value a folder below the workspace. Either all are there
// afterwards, or none was made and the error is a *wire.Failure. Those that are
// there already are left.
func (s *Server) Alias(ctx context.Context, names map[string]string) error {
	all, err := checkAlias(names)
	if err != nil || len(all) == 0 {
		return err
	}
	home := place{dir: s.opt.Home, prefix: wire.Home, noFollow: true}
	var made []string
	err = s.in(ctx, home, func(r *safefile.Root) error {
		for _, a := range all {
			fresh, err := r.Symlink(a.name, a.target)
			if err != nil {
				return err
			}
			if fresh {
				made = append(made, a.name)
			}
		}
		return nil
	})
	if err != nil {
		home.noFollow = false // or the links could not be named
		_ = s.in(context.WithoutCancel(ctx), home, func(r *safefile.Root) error {
			for _, name := range made {
				_ = r.Remove(context.WithoutCancel(ctx), name, false)
			}
			return nil
		})
	}
	if e, ok := errors.AsType[*safefile.Error](err); ok {
		return wire.Failf(code(e.Class), "alias", "%s", e.Message)
	}
	if err != nil {
		return wire.Failf(wire.Unavailable, "alias", "%v", err)
	}
	s.alias.Store(&all)
	return nil
}

// checkAlias refuses what is not a name below the home directory of a place
// below the workspace.
func checkAlias(names map[string]string) ([]alias, error) {
	bad := func(format string, args ...any) ([]alias, error) {
		return nil, wire.Failf(wire.InvalidArgument, "alias", format, args...)
	}
	if len(names) > wire.MaxAlias {
		return bad("has %d names, at most %d are allowed", len(names), wire.MaxAlias)
	}
	var all []alias
	for name, target := range names {
		switch {
		case len(name) > wire.MaxPathBytes || len(target) > wire.MaxPathBytes:
			return bad("has a name of more than %d bytes", wire.MaxPathBytes)
		case strings.IndexByte(name+target, 0) >= 0:
			return bad("%.200q holds a NUL byte", name)
		case path.Clean(name) != name || !strings.HasPrefix(name, wire.Home+"/"):
			return bad("%.200q is not a clean path below %s", name, wire.Home)
		case path.Clean(target) != target || !isIn(target, wire.Workspace):
			return bad("%.200q stands for %.200q, which is not a clean path in %s", name, target, wire.Workspace)
		}
		all = append(all, alias{name: name, target: target})
	}
	slices.SortFunc(all, func(a, b alias) int { return cmp.Compare(a.name, b.name) })
	for _, a := range all {
		for _, b := range all {
			if a != b && isIn(b.name, a.name) {
				return bad("%.200q is below %.200q, which is a name itself", b.name, a.name)
			}
		}
	}
	return all, nil
}
