package files

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

func TestTmpIsServed(t *testing.T) {
	s, dir := tree(t, map[string]string{"f": "in the workspace"})
	if i := ask(t, s, wire.OpWrite, wire.FileRequest{Path: "/tmp/a/f", Recursive: true},
		[]byte("in tmp")).info(t); i.Path != "/tmp/a/f" || i.UID != 1000 {
		t.Errorf("write = %+v, want path /tmp/a/f and user 1000", i)
	}
	r := ask(t, s, wire.OpRead, wire.FileRequest{Path: "/tmp/a/f"}, nil)
	if string(r.data) != "in tmp" || r.started.Path != "/tmp/a/f" || r.info(t).Path != "/tmp/a/f" {
		t.Errorf("read = %q of %+v, want %q of /tmp/a/f", r.data, r.started, "in tmp")
	}
	l := got[wire.Listing](t, ask(t, s, wire.OpList, wire.FileRequest{Path: "/tmp"}, nil))
	if len(l.Items) != 1 || l.Items[0].Path != "/tmp/a" {
		t.Errorf("list = %+v, want only /tmp/a", l)
	}
	if i := ask(t, s, wire.OpStat, wire.FileRequest{Path: "/tmp"}, nil).info(t); i.Path != "/tmp" || i.Type != "dir" {
		t.Errorf("stat = %+v, want the directory /tmp", i)
	}
	if i := ask(t, s, wire.OpMove, wire.FileRequest{Path: "/tmp/a/f", To: "/tmp/g"}, nil).info(t); i.Path != "/tmp/g" {
		t.Errorf("move = %+v, want path /tmp/g", i)
	}
	if r := got[wire.EditReply](t,
		send(t, s, wire.OpEdit, wire.EditRequest{FileRequest: wire.FileRequest{Path: "/tmp/g"}, Old: "in",
			New: "within"})); r.Info.Path != "/tmp/g" {
		t.Errorf("edit = %+v, want path /tmp/g", r)
	}
	if names, _ := globbed(t, s,
		wire.GlobRequest{FileRequest: wire.FileRequest{Path: "/tmp"}, Pattern: "*"}); strings.Join(names,
		" ") != "/tmp/a /tmp/g" {
		t.Errorf("glob = %q, want /tmp/a and /tmp/g", names)
	}
	if r := found(t, s, wire.SearchRequest{FileRequest: wire.FileRequest{Path: "/tmp"},
		Pattern: "within"}); brief(r) != "/tmp/g:1:1" {
		t.Errorf("search = %+v, want one match at /tmp/g:1:1", r)
	}
	for p, code := range map[string]string{
		"/tmp/../etc/passwd": wire.PermissionDenied, "/tmpfile": wire.PermissionDenied,
		"/tmp/out/passwd": wire.PermissionDenied, "/tmp/up": wire.PermissionDenied, "/tmp/f": wire.NotFound,
	} {
		must(t, ignoreExist(os.Symlink("/etc", filepath.Join(s.opt.Tmp, "out"))))
		must(t, ignoreExist(os.Symlink("../"+filepath.Base(dir)+"/f", filepath.Join(s.opt.Tmp, "up"))))
		if r := ask(t, s, wire.OpRead, wire.FileRequest{Path: p}, nil); r.code() != code {
			t.Errorf("read of %s: %+v, want %s", p, r.failure, code)
		} else if code == wire.PermissionDenied && p != "/tmpfile" &&
			!strings.HasSuffix(r.failure.Message, "leads out of /tmp") {
			t.Errorf("%s: message = %q, want suffix \"leads out of /tmp\"", p, r.failure.Message)
		}
	}
	for _, q := range []wire.FileRequest{{Path: "/tmp/g", To: "g"}, {Path: "f", To: "/tmp/f"}} {
		if r := ask(t, s, wire.OpMove, q, nil); r.code() != wire.FailedPrecondition || r.failure.Field != "to" {
			t.Errorf("move %+v: %+v, want %s of the field to", q, r.failure, wire.FailedPrecondition)
		}
	}
}

func ignoreExist(err error) error {
	if os.IsExist(err) {
		return nil
	}
	return err
}

func TestNoFollowRefusesLinks(t *testing.T) {
	s, dir := tree(t, map[string]string{"a/f": "text", "b": "b"})
	must(t, os.Symlink("a", filepath.Join(dir, "link")))
	for _, op := range []wire.Op{wire.OpRead, wire.OpWrite, wire.OpList, wire.OpStat, wire.OpMkdir, wire.OpMove,
		wire.OpRemove, wire.OpEdit, wire.OpGlob, wire.OpSearch} {
		q := wire.SearchRequest{FileRequest: wire.FileRequest{Path: "link/f", To: "c", NoFollow: true}, Pattern: "t"}
		if r := send(t, s, op, struct {
			wire.SearchRequest
			Old string `json:"old"`
		}{q, "t"}); r.code() != wire.PermissionDenied || !strings.Contains(r.failure.Message, "symbolic link") {
			t.Errorf("%s through a link: %+v; want %s that names the symbolic link", op, r.failure, wire.PermissionDenied)
		}
	}
	if r := ask(t, s, wire.OpMove, wire.FileRequest{Path: "b", To: "link/b", NoFollow: true},
		nil); r.code() != wire.PermissionDenied || r.failure.Field != "to" {
		t.Errorf("move through a link: %+v, want %s of the field to", r.failure, wire.PermissionDenied)
	}
	if r := ask(t, s, wire.OpRead, wire.FileRequest{Path: "a/f", NoFollow: true}, nil); string(r.data) != "text" {
		t.Errorf("read without a link = %q, %+v; want %q", r.data, r.failure, "text")
	}
}

func TestAliasNamesDirectory(t *testing.T) {
	s, _ := tree(t, map[string]string{"sub/f": "text"})
	names := map[string]string{"/home/user/projects": "/workspace", "/home/user/x/y": "/workspace/sub"}
	for range 2 { // claims can be repeated
		must(t, s.Alias(t.Context(), names))
	}
	if to, err := os.Readlink(filepath.Join(s.opt.Home, "projects")); to != "/workspace" || err != nil {
		t.Errorf("Readlink = %q, %v; want %q and no error", to, err, "/workspace")
	}
	st, err := os.Lstat(filepath.Join(s.opt.Home, "x", "y"))
	must(t, err)
	if owner := st.Sys().(*syscall.Stat_t).Uid; owner != 1000 {
		t.Errorf("link owner = %d, want 1000", owner)
	}
	for _, p := range []string{"/home/user/projects/sub/f", "/home/user/x/y/f"} {
		r := ask(t, s, wire.OpRead, wire.FileRequest{Path: p}, nil)
		if string(r.data) != "text" || r.started.Path != "sub/f" {
			t.Errorf("read of %s = %q of %q, %+v; want %q of sub/f", p, r.data, r.started.Path, r.failure, "text")
		}
	}
	for _, p := range []string{"/home/user/projects/../x", "/home/user/projectsx", "/home/user/z"} {
		if r := ask(t, s, wire.OpRead, wire.FileRequest{Path: p}, nil); r.code() != wire.PermissionDenied {
			t.Errorf("read of %s: %+v, want %s", p, r.failure, wire.PermissionDenied)
		}
	}
}

func TestInvalidAliasCreatesNothing(t *testing.T) {
	s, _ := tree(t, nil)
	many := map[string]string{}
	for i := range wire.MaxAlias + 1 {
		many[fmt.Sprintf("/home/user/%d", i)] = "/workspace"
	}
	for name, c := range map[string]struct {
		names map[string]string
		code  string
	}{
		"outside":      {map[string]string{"/etc/x": "/workspace"}, wire.InvalidArgument},
		"home itself":  {map[string]string{"/home/user": "/workspace"}, wire.InvalidArgument},
		"dots":         {map[string]string{"/home/user/../x": "/workspace"}, wire.InvalidArgument},
		"relative":     {map[string]string{"projects": "/workspace"}, wire.InvalidArgument},
		"to elsewhere": {map[string]string{"/home/user/a": "/etc"}, wire.InvalidArgument},
		"to dots":      {map[string]string{"/home/user/a": "/workspace/../etc"}, wire.InvalidArgument},
		"NUL":          {map[string]string{"/home/user/a\x00": "/workspace"}, wire.InvalidArgument},
		"in each other": {map[string]string{"/home/user/a": "/workspace", "/home/user/a/b": "/workspace/b"},
			wire.InvalidArgument},
		"too many": {many, wire.InvalidArgument},
		"taken": {map[string]string{"/home/user/a": "/workspace", "/home/user/taken": "/workspace"},
			wire.AlreadyExists},
		"a link above": {map[string]string{"/home/user/a": "/workspace", "/home/user/link/x": "/workspace"},
			wire.PermissionDenied},
	} {
		must(t, ignoreExist(os.Mkdir(filepath.Join(s.opt.Home, "taken"), 0o755)))
		must(t, ignoreExist(os.Symlink("/etc", filepath.Join(s.opt.Home, "link"))))
		err := s.Alias(t.Context(), c.names)
		f, ok := err.(*wire.Failure)
		if !ok || f.Code != c.code || f.Field != "alias" {
			t.Errorf("Alias with %s: %v, want %s of the field alias", name, err, c.code)
		}
		if _, err := os.Lstat(filepath.Join(s.opt.Home, "a")); err == nil {
			t.Errorf("Alias with %s is refused but an alias exists, want none", name)
		}
	}
}
