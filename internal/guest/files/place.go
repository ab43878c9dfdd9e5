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

// place is the directory that a request refers to.
type place struct {
	dir      string // path in this file system
	prefix   string // path in requests
	noFollow bool
}

// place returns the directory of a request and resolves aliases in its paths. It looks only at the
// text of the path; package safefile keeps the operation inside the directory.
func (s *Server) place(q *wire.FileRequest) (place, error) {
	q.Path, q.To = s.real(q.Path), s.real(q.To)
	pl := place{dir: s.opt.Dir, prefix: wire.Workspace, noFollow: q.NoFollow}
	if isIn(q.Path, wire.Tmp) {
		pl.dir, pl.prefix = s.opt.Tmp, wire.Tmp
	}
	if q.To != "" && isIn(q.To, wire.Tmp) != isIn(q.Path, wire.Tmp) {
		return place{}, wire.Failf(wire.FailedPrecondition, "to",
			"%q is in another file system than %q: copy the file and remove the original", q.To, q.Path)
	}
	return pl, nil
}

func isIn(p, folder string) bool { return p == folder || strings.HasPrefix(p, folder+"/") }

// info returns a file's description for the host. Outside the workspace, its path is absolute.
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

// name replaces "the workspace" in an error by the directory's name.
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

// alias is an additional name of a directory.
type alias struct{ name, target string }

// real resolves an alias at the start of a path.
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

// Alias creates symbolic links below the home directory, as the user: each key is a path there,
// each value a directory below the workspace. It creates all links or none; its error is then a
// *wire.Failure. Existing links with the same target are kept.
func (s *Server) Alias(ctx context.Context, names map[string]string) error {
	all, err := checkAlias(names)
	if err != nil || len(all) == 0 {
		return err
	}
	home := place{dir: s.opt.Home, prefix: wire.Home, noFollow: true}
	var made []string
	err = s.withRoot(ctx, home, func(r *safefile.Root) error {
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
		home.noFollow = false // otherwise the path of a link could not be removed
		_ = s.withRoot(context.WithoutCancel(ctx), home, func(r *safefile.Root) error {
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

// checkAlias checks that each name is below the home directory and each target below the workspace.
func checkAlias(names map[string]string) ([]alias, error) {
	bad := func(format string, args ...any) ([]alias, error) {
		return nil, wire.Failf(wire.InvalidArgument, "alias", format, args...)
	}
	if len(names) > wire.MaxAlias {
		return bad("has %d names: the maximum is %d", len(names), wire.MaxAlias)
	}
	var all []alias
	for name, target := range names {
		switch {
		case len(name) > wire.MaxPathBytes || len(target) > wire.MaxPathBytes:
			return bad("has a name of more than %d bytes", wire.MaxPathBytes)
		case strings.IndexByte(name+target, 0) >= 0:
			return bad("%.200q contains a NUL byte", name)
		case path.Clean(name) != name || !strings.HasPrefix(name, wire.Home+"/"):
			return bad("%.200q is not a clean path below %s", name, wire.Home)
		case path.Clean(target) != target || !isIn(target, wire.Workspace):
			return bad("%.200q has the target %.200q, which is not a clean path in %s", name, target, wire.Workspace)
		}
		all = append(all, alias{name: name, target: target})
	}
	slices.SortFunc(all, func(a, b alias) int { return cmp.Compare(a.name, b.name) })
	for _, a := range all {
		for _, b := range all {
			if a != b && isIn(b.name, a.name) {
				return bad("%.200q is below %.200q, which is an alias too", b.name, a.name)
			}
		}
	}
	return all, nil
}
