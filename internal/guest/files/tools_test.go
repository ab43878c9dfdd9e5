package files

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// send carries out one operation whose request is any.
func send(t *testing.T, s *Server, op wire.Op, q any) reply {
	t.Helper()
	host, guest := pair(t)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer host.Close()
	raw, err := json.Marshal(q)
	must(t, err)
	wg.Go(func() {
		defer guest.Close()
		_ = s.Handle(context.Background(), op, raw, wire.NewConn(guest))
	})
	return answerOf(t, wire.NewConn(host))
}

// got decodes a reply that is not a refusal.
func got[T any](t *testing.T, r reply) (v T) {
	t.Helper()
	if r.failure != nil {
		t.Fatalf("refused: %v", r.failure)
	}
	must(t, json.Unmarshal(r.last, &v))
	return v
}

// tree makes files of user 1000; a name that ends with a slash is a folder.
func tree(t *testing.T, files map[string]string) (*Server, string) {
	t.Helper()
	dir := workspace(t)
	for name, text := range files {
		p := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		if strings.HasSuffix(name, "/") {
			must(t, os.MkdirAll(p, 0o755))
			continue
		}
		must(t, os.WriteFile(p, []byte(text), 0o644))
	}
	must(t, exec.Command("chown", "-R", "1000:1000", dir).Run())
	tmp := workspace(t)
	home := workspace(t)
	s := New(Options{Dir: dir, Tmp: tmp, Home: home})
	t.Cleanup(s.Close)
	return s, dir
}

func TestAnEditIsTheUsers(t *testing.T) {
	s, dir := tree(t, map[string]string{"a/f": "one two one", "foreign": "text"})
	q := wire.EditRequest{FileRequest: wire.FileRequest{Path: "/workspace/a/f"}, Old: "two", New: "2"}
	r := got[wire.EditReply](t, send(t, s, wire.OpEdit, q))
	if r.Count != 1 || r.Line != 1 || r.Info.Path != "a/f" || r.Info.UID != 1000 || r.Info.Size != 9 {
		t.Errorf("%+v", r)
	}
	for name, c := range map[string]struct {
		q    wire.EditRequest
		code string
		says string
	}{
		"absent":    {wire.EditRequest{FileRequest: wire.FileRequest{Path: "a/f"}, Old: "x"}, wire.NotFound, "old"},
		"twice":     {wire.EditRequest{FileRequest: wire.FileRequest{Path: "a/f"}, Old: "one"}, wire.FailedPrecondition, "2 times"},
		"empty":     {wire.EditRequest{FileRequest: wire.FileRequest{Path: "a/f"}}, wire.InvalidArgument, "empty"},
		"no file":   {wire.EditRequest{FileRequest: wire.FileRequest{Path: "none"}, Old: "x"}, wire.NotFound, "none"},
		"a folder":  {wire.EditRequest{FileRequest: wire.FileRequest{Path: "a"}, Old: "x"}, wire.FailedPrecondition, "regular"},
		"leads out": {wire.EditRequest{FileRequest: wire.FileRequest{Path: "../x"}, Old: "x"}, wire.PermissionDenied, "workspace"},
	} {
		r := send(t, s, wire.OpEdit, c.q)
		if r.code() != c.code || !strings.Contains(r.failure.Error(), c.says) {
			t.Errorf("%s: %+v", name, r.failure)
		}
	}
	must(t, os.Chown(filepath.Join(dir, "foreign"), 0, 0))
	must(t, os.Chmod(filepath.Join(dir, "foreign"), 0o600))
	if r := send(t, s, wire.OpEdit, wire.EditRequest{FileRequest: wire.FileRequest{Path: "foreign"}, Old: "text"}); r.code() != wire.PermissionDenied {
		t.Errorf("a file of root's: %+v", r.failure)
	}
}

func globbed(t *testing.T, s *Server, q wire.GlobRequest) ([]string, bool) {
	t.Helper()
	r := got[wire.GlobReply](t, send(t, s, wire.OpGlob, q))
	var names []string
	for _, i := range r.Items {
		names = append(names, i.Path)
	}
	return names, r.Truncated
}

func TestFilesAreFoundByName(t *testing.T) {
	s, dir := tree(t, map[string]string{
		"main.go": "", "README.md": "", ".hidden": "", ".git/config": "", "src/a.go": "", "src/b.ts": "", "src/deep/er/c.go": "", "src/.env": "",
		"odd [x].txt": "", "ñandú.go": "", "src/empty/": "",
	})
	must(t, os.Symlink("/etc", filepath.Join(dir, "out")))
	must(t, os.Symlink("src", filepath.Join(dir, "link")))
	for pattern, want := range map[string]string{
		"*.go": "main.go ñandú.go", "**/*.go": "main.go src/a.go src/deep/er/c.go ñandú.go", "src/*": "src/a.go src/b.ts src/deep src/empty",
		"src/**": "src/a.go src/b.ts src/deep src/deep/er src/deep/er/c.go src/empty", "**/c.go": "src/deep/er/c.go",
		"*.{go,md}": "README.md main.go ñandú.go", "{src/a,main}.go": "main.go src/a.go", "src/[ab].??": "src/a.go src/b.ts", "src/[!a]*.ts": "src/b.ts",
		`odd \[x\].txt`: "odd [x].txt", "?and?.go": "ñandú.go", ".hid*": ".hidden", "**/.env": "src/.env", ".git/*": ".git/config", "src/deep/**/c.go": "src/deep/er/c.go",
		"none/*": "", "out/*": "", "link": "link", "./main.go": "main.go", "main.go/x": "", "src/**/er": "src/deep/er", "*/*/*/*.go": "src/deep/er/c.go",
	} {
		names, cut := globbed(t, s, wire.GlobRequest{Pattern: pattern})
		if strings.Join(names, " ") != want || cut {
			t.Errorf("%s: %q, truncated %v; want %q", pattern, names, cut, want)
		}
	}
	names, _ := globbed(t, s, wire.GlobRequest{FileRequest: wire.FileRequest{Path: "/workspace/src"}, Pattern: "*", Hidden: true})
	if strings.Join(names, " ") != "src/.env src/a.go src/b.ts src/deep src/empty" {
		t.Errorf("below a folder: %q", names)
	}
	names, cut := globbed(t, s, wire.GlobRequest{Pattern: "**/*.go", Max: 2})
	if len(names) != 2 || !cut {
		t.Errorf("two of four: %q, truncated %v", names, cut)
	}
}

func TestBadPatternsAreRefused(t *testing.T) {
	s, _ := tree(t, map[string]string{"f": "x"})
	for name, q := range map[string]wire.GlobRequest{
		"empty": {}, "absolute": {Pattern: "/etc/*"}, "open class": {Pattern: "[a"}, "open braces": {Pattern: "{a,b"}, "a backslash": {Pattern: `a\`},
		"NUL": {Pattern: "a\x00"}, "long": {Pattern: strings.Repeat("*", 2000)}, "backward": {Pattern: "[z-a]"}, "a negative max": {Pattern: "*", Max: -1}, "a large max": {Pattern: "*", Max: 1001},
	} {
		if r := send(t, s, wire.OpGlob, q); r.code() != wire.InvalidArgument || r.failure.Field == "" {
			t.Errorf("glob %s: %+v", name, r.failure)
		}
	}
	for name, q := range map[string]wire.SearchRequest{
		"empty": {}, "open": {Pattern: "("}, "backreference": {Pattern: `(a)\1`}, "huge": {Pattern: strings.Repeat("(.{1000})", 100)}, "nested": {Pattern: "((a{30}){30}){30}"},
		"long": {Pattern: strings.Repeat("a", 5000)}, "lines": {Pattern: "a\nb", Literal: true}, "before": {Pattern: "a", Before: 11}, "after": {Pattern: "a", After: -1},
		"glob": {Pattern: "a", Glob: "[a"}, "max": {Pattern: "a", Max: 5000},
	} {
		if r := send(t, s, wire.OpSearch, q); r.code() != wire.InvalidArgument || r.failure.Field == "" {
			t.Errorf("search %s: %+v", name, r.failure)
		}
	}
	for _, op := range []wire.Op{wire.OpGlob, wire.OpSearch} {
		for p, code := range map[string]string{"none": wire.NotFound, "../x": wire.PermissionDenied} {
			if r := send(t, s, op, wire.SearchRequest{FileRequest: wire.FileRequest{Path: p}, Pattern: "a"}); r.code() != code {
				t.Errorf("%s in %s: %+v", op, p, r.failure)
			}
		}
	}
}

func found(t *testing.T, s *Server, q wire.SearchRequest) wire.SearchReply {
	t.Helper()
	return got[wire.SearchReply](t, send(t, s, wire.OpSearch, q))
}

// brief is path:line:column of every match.
func brief(r wire.SearchReply) string {
	var all []string
	for _, m := range r.Matches {
		all = append(all, fmt.Sprintf("%s:%d:%d", m.Path, m.Line, m.Column))
	}
	return strings.Join(all, " ")
}

func TestLinesAreFound(t *testing.T) {
	s, dir := tree(t, map[string]string{
		"a.go": "package a\n\nfunc Foo() {}\n", "b/b.go": "// foo\r\nvar foo = 1\r\n", "b/c.txt": "foo", ".env": "foo=1\n", "bin": "foo\x00", "late": "foo\n" + strings.Repeat("x", 1<<20) + "\x00",
		"bad": "f\xffoo foo\n",
	})
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "passwd")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("foo"), 0o600)) // of root
	for name, c := range map[string]struct {
		q    wire.SearchRequest
		want string
	}{
		"plain":       {wire.SearchRequest{Pattern: "foo"}, "b/b.go:1:4 b/b.go:2:5 b/c.txt:1:1 bad:1:6"},
		"no case":     {wire.SearchRequest{Pattern: "foo", IgnoreCase: true, Glob: "*.go"}, "a.go:3:6 b/b.go:1:4 b/b.go:2:5"},
		"literal":     {wire.SearchRequest{Pattern: "Foo()", Literal: true}, "a.go:3:6"},
		"a class":     {wire.SearchRequest{Pattern: `\bvar\s+\w+ = \d$`}, "b/b.go:2:1"},
		"anchors":     {wire.SearchRequest{Pattern: "^foo$"}, "b/c.txt:1:1"},
		"glob path":   {wire.SearchRequest{Pattern: "foo", Glob: "b/*.txt"}, "b/c.txt:1:1"},
		"hidden":      {wire.SearchRequest{Pattern: "foo=", Hidden: true}, ".env:1:1"},
		"dotted glob": {wire.SearchRequest{Pattern: "foo=", Glob: ".env"}, ".env:1:1"},
		"in a file":   {wire.SearchRequest{FileRequest: wire.FileRequest{Path: "b/c.txt"}, Pattern: "o"}, "b/c.txt:1:2"},
		"in a folder": {wire.SearchRequest{FileRequest: wire.FileRequest{Path: "/workspace/b"}, Pattern: "foo", Glob: "*.txt"}, "b/c.txt:1:1"},
		"none":        {wire.SearchRequest{Pattern: "nowhere"}, ""},
	} {
		r := found(t, s, c.q)
		if brief(r) != c.want || r.Truncated {
			t.Errorf("%s: %s, truncated %v; want %s", name, brief(r), r.Truncated, c.want)
		}
	}
	r := found(t, s, wire.SearchRequest{Pattern: "foo"})
	if r.Skipped != 3 || r.Files != 7 { // bin, late and secret of all that are no links
		t.Errorf("%d files, %d skipped", r.Files, r.Skipped)
	}
	if last := r.Matches[len(r.Matches)-1]; last.Text != "f\uFFFDoo foo" {
		t.Errorf("shown as %q", last.Text)
	}
}

func TestMatchesHaveTheirSurroundings(t *testing.T) {
	s, _ := tree(t, map[string]string{"f": "1\n2 x\n3 x\n4\n5\n6\n7 x"})
	r := found(t, s, wire.SearchRequest{Pattern: "x", Before: 1, After: 2})
	want := []wire.Match{
		{Path: "f", Line: 2, Column: 3, Text: "2 x", Before: []string{"1"}, After: []string{"3 x", "4"}},
		{Path: "f", Line: 3, Column: 3, Text: "3 x", Before: []string{"2 x"}, After: []string{"4", "5"}},
		{Path: "f", Line: 7, Column: 3, Text: "7 x", Before: []string{"6"}},
	}
	if !slices.EqualFunc(r.Matches, want, func(a, b wire.Match) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }) {
		t.Errorf("%+v", r.Matches)
	}
	r = found(t, s, wire.SearchRequest{Pattern: "x", After: 2, Max: 1})
	if len(r.Matches) != 1 || len(r.Matches[0].After) != 2 || !r.Truncated {
		t.Errorf("the first: %+v", r)
	}
	r = found(t, s, wire.SearchRequest{Pattern: "x", Max: 3})
	if len(r.Matches) != 3 || r.Truncated {
		t.Errorf("exactly as many as there are: %+v", r)
	}
}

func TestAnswersAreBounded(t *testing.T) {
	long := strings.Repeat("é", 3<<20) // one line, longer than is looked at
	s, _ := tree(t, map[string]string{
		"many": strings.Repeat(strings.Repeat("<", 900)+"\n", 3000), "long": "x" + long + "needle\nshort needle\n", "cut": strings.Repeat("é", 600) + "\n",
	})
	r := send(t, s, wire.OpSearch, wire.SearchRequest{FileRequest: wire.FileRequest{Path: "many"}, Pattern: "<", Before: 10, After: 10})
	if reply := got[wire.SearchReply](t, r); !reply.Truncated || len(reply.Matches) == 0 || len(r.last) > wire.MaxHeader {
		t.Errorf("%d matches in %d bytes, truncated %v", len(reply.Matches), len(r.last), reply.Truncated)
	}
	if reply := found(t, s, wire.SearchRequest{FileRequest: wire.FileRequest{Path: "long"}, Pattern: "needle"}); brief(reply) != "long:2:7" || !reply.Truncated {
		t.Errorf("%s, truncated %v", brief(reply), reply.Truncated)
	}
	reply := found(t, s, wire.SearchRequest{FileRequest: wire.FileRequest{Path: "cut"}, Pattern: "é"})
	if text := reply.Matches[0].Text; text != strings.Repeat("é", wire.MaxLineBytes/2) {
		t.Errorf("%d bytes of a line: %q", len(text), text[len(text)-8:])
	}
	names, dir := map[string]string{}, strings.Repeat("<", 200)
	for i := range 700 {
		names[fmt.Sprintf("%s/%s/%s%d", dir, dir, dir, i)] = ""
	}
	s, _ = tree(t, names)
	r = send(t, s, wire.OpGlob, wire.GlobRequest{Pattern: "**"})
	if reply := got[wire.GlobReply](t, r); !reply.Truncated || len(reply.Items) == 0 || len(r.last) > wire.MaxHeader {
		t.Errorf("%d names in %d bytes, truncated %v", len(reply.Items), len(r.last), reply.Truncated)
	}
}

// A host that gives up ends a search that would go on for long.
func TestASearchEndsWithItsHost(t *testing.T) {
	s, dir := tree(t, map[string]string{"deep/": ""})
	for i := range 8 {
		f, err := os.Create(filepath.Join(dir, fmt.Sprint(i)))
		must(t, err)
		must(t, f.Truncate(wire.MaxSearchBytes))
		must(t, f.Close())
	}
	host, guest := pair(t)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	raw, err := json.Marshal(wire.SearchRequest{Pattern: "x"})
	must(t, err)
	go func() { done <- s.Handle(ctx, wire.OpSearch, raw, wire.NewConn(guest)) }()
	must(t, host.Close())
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}

// While somebody swaps folders for links that lead out, nothing from outside is
// found, and nothing there is changed.
func TestNothingOutsideIsReachedWhileTheTreeChanges(t *testing.T) {
	s, dir := tree(t, map[string]string{"a/sub/f": "inside", "a/f": "inside"})
	outside := workspace(t)
	must(t, os.MkdirAll(filepath.Join(outside, "sub"), 0o755))
	for _, name := range []string{"f", "sub/f"} {
		must(t, os.WriteFile(filepath.Join(outside, name), []byte("inside secret"), 0o666))
		must(t, os.Chown(filepath.Join(outside, name), 1000, 1000))
	}
	must(t, os.Symlink(outside, filepath.Join(dir, "link")))
	must(t, exec.Command("chown", "-hR", "1000:1000", dir, outside).Run())
	stop := make(chan struct{})
	var swapping sync.WaitGroup
	swapping.Go(func() {
		a, b := filepath.Join(dir, "a"), filepath.Join(dir, "link")
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
			}
		}
	})
	for i := range 200 {
		path := []string{".", "a", "a/sub"}[i%3]
		for _, op := range []wire.Op{wire.OpSearch, wire.OpGlob, wire.OpEdit} {
			q := struct {
				wire.SearchRequest
				Old string `json:"old"`
				New string `json:"new"`
			}{wire.SearchRequest{FileRequest: wire.FileRequest{Path: path, NoFollow: i%2 == 0}, Pattern: "secret"}, "inside", "changed"}
			if op == wire.OpGlob {
				q.Pattern = "**"
			}
			if op == wire.OpEdit {
				q.Path = path + "/f"
			}
			if r := send(t, s, op, q); strings.Contains(string(r.last), "secret") || strings.Contains(string(r.last), filepath.Base(outside)+"/") {
				t.Fatalf("%s of %s: %s", op, path, r.last)
			}
		}
	}
	close(stop)
	swapping.Wait()
	for _, name := range []string{"f", "sub/f"} {
		if b, err := os.ReadFile(filepath.Join(outside, name)); string(b) != "inside secret" || err != nil {
			t.Errorf("outside, %s is %q, %v", name, b, err)
		}
	}
}

func TestTmpIsServedToo(t *testing.T) {
	s, dir := tree(t, map[string]string{"f": "in the workspace"})
	if i := ask(t, s, wire.OpWrite, wire.FileRequest{Path: "/tmp/a/f", Recursive: true}, []byte("in tmp")).info(t); i.Path != "/tmp/a/f" || i.UID != 1000 {
		t.Errorf("%+v", i)
	}
	r := ask(t, s, wire.OpRead, wire.FileRequest{Path: "/tmp/a/f"}, nil)
	if string(r.data) != "in tmp" || r.started.Path != "/tmp/a/f" || r.info(t).Path != "/tmp/a/f" {
		t.Errorf("%q, %+v", r.data, r.started)
	}
	l := got[wire.Listing](t, ask(t, s, wire.OpList, wire.FileRequest{Path: "/tmp"}, nil))
	if len(l.Items) != 1 || l.Items[0].Path != "/tmp/a" {
		t.Errorf("%+v", l)
	}
	if i := ask(t, s, wire.OpStat, wire.FileRequest{Path: "/tmp"}, nil).info(t); i.Path != "/tmp" || i.Type != "dir" {
		t.Errorf("%+v", i)
	}
	if i := ask(t, s, wire.OpMove, wire.FileRequest{Path: "/tmp/a/f", To: "/tmp/g"}, nil).info(t); i.Path != "/tmp/g" {
		t.Errorf("%+v", i)
	}
	if r := got[wire.EditReply](t, send(t, s, wire.OpEdit, wire.EditRequest{FileRequest: wire.FileRequest{Path: "/tmp/g"}, Old: "in", New: "within"})); r.Info.Path != "/tmp/g" {
		t.Errorf("%+v", r)
	}
	if names, _ := globbed(t, s, wire.GlobRequest{FileRequest: wire.FileRequest{Path: "/tmp"}, Pattern: "*"}); strings.Join(names, " ") != "/tmp/a /tmp/g" {
		t.Errorf("%q", names)
	}
	if r := found(t, s, wire.SearchRequest{FileRequest: wire.FileRequest{Path: "/tmp"}, Pattern: "within"}); brief(r) != "/tmp/g:1:1" {
		t.Errorf("%+v", r)
	}
	for p, code := range map[string]string{
		"/tmp/../etc/passwd": wire.PermissionDenied, "/tmpfile": wire.PermissionDenied, "/tmp/out/passwd": wire.PermissionDenied, "/tmp/up": wire.PermissionDenied, "/tmp/f": wire.NotFound,
	} {
		must(t, ignoreExist(os.Symlink("/etc", filepath.Join(s.opt.Tmp, "out"))))
		must(t, ignoreExist(os.Symlink("../"+filepath.Base(dir)+"/f", filepath.Join(s.opt.Tmp, "up"))))
		if r := ask(t, s, wire.OpRead, wire.FileRequest{Path: p}, nil); r.code() != code {
			t.Errorf("%s: %+v", p, r.failure)
		} else if code == wire.PermissionDenied && p != "/tmpfile" && !strings.HasSuffix(r.failure.Message, "leads out of /tmp") {
			t.Errorf("%s: it says %q", p, r.failure.Message)
		}
	}
	for _, q := range []wire.FileRequest{{Path: "/tmp/g", To: "g"}, {Path: "f", To: "/tmp/f"}} {
		if r := ask(t, s, wire.OpMove, q, nil); r.code() != wire.FailedPrecondition || r.failure.Field != "to" {
			t.Errorf("%+v: %+v", q, r.failure)
		}
	}
}

func ignoreExist(err error) error {
	if os.IsExist(err) {
		return nil
	}
	return err
}

func TestNoLinkIsFollowedWhenAskedNotTo(t *testing.T) {
	s, dir := tree(t, map[string]string{"a/f": "text", "b": "b"})
	must(t, os.Symlink("a", filepath.Join(dir, "link")))
	for _, op := range []wire.Op{wire.OpRead, wire.OpWrite, wire.OpList, wire.OpStat, wire.OpMkdir, wire.OpMove, wire.OpRemove, wire.OpEdit, wire.OpGlob, wire.OpSearch} {
		q := wire.SearchRequest{FileRequest: wire.FileRequest{Path: "link/f", To: "c", NoFollow: true}, Pattern: "t"}
		if r := send(t, s, op, struct {
			wire.SearchRequest
			Old string `json:"old"`
		}{q, "t"}); r.code() != wire.PermissionDenied || !strings.Contains(r.failure.Message, "symbolic link") {
			t.Errorf("%s: %+v", op, r.failure)
		}
	}
	if r := ask(t, s, wire.OpMove, wire.FileRequest{Path: "b", To: "link/b", NoFollow: true}, nil); r.code() != wire.PermissionDenied || r.failure.Field != "to" {
		t.Errorf("to a link: %+v", r.failure)
	}
	if r := ask(t, s, wire.OpRead, wire.FileRequest{Path: "a/f", NoFollow: true}, nil); string(r.data) != "text" {
		t.Errorf("without a link: %+v", r.failure)
	}
}

func TestFoldersHaveFurtherNames(t *testing.T) {
	s, _ := tree(t, map[string]string{"sub/f": "text"})
	names := map[string]string{"/home/user/projects": "/workspace", "/home/user/x/y": "/workspace/sub"}
	for range 2 { // a claim may come again
		must(t, s.Alias(t.Context(), names))
	}
	if to, err := os.Readlink(filepath.Join(s.opt.Home, "projects")); to != "/workspace" || err != nil {
		t.Errorf("it leads to %q, %v", to, err)
	}
	st, err := os.Lstat(filepath.Join(s.opt.Home, "x", "y"))
	must(t, err)
	if owner := st.Sys().(*syscall.Stat_t).Uid; owner != 1000 {
		t.Errorf("it belongs to %d", owner)
	}
	for _, p := range []string{"/home/user/projects/sub/f", "/home/user/x/y/f"} {
		r := ask(t, s, wire.OpRead, wire.FileRequest{Path: p}, nil)
		if string(r.data) != "text" || r.started.Path != "sub/f" {
			t.Errorf("%s: %q, %+v", p, r.data, r.failure)
		}
	}
	for _, p := range []string{"/home/user/projects/../x", "/home/user/projectsx", "/home/user/z"} {
		if r := ask(t, s, wire.OpRead, wire.FileRequest{Path: p}, nil); r.code() != wire.PermissionDenied {
			t.Errorf("%s: %+v", p, r.failure)
		}
	}
}

func TestBadNamesMakeNone(t *testing.T) {
	s, _ := tree(t, nil)
	many := map[string]string{}
	for i := range wire.MaxAlias + 1 {
		many[fmt.Sprintf("/home/user/%d", i)] = "/workspace"
	}
	for name, c := range map[string]struct {
		names map[string]string
		code  string
	}{
		"outside":       {map[string]string{"/etc/x": "/workspace"}, wire.InvalidArgument},
		"home itself":   {map[string]string{"/home/user": "/workspace"}, wire.InvalidArgument},
		"dots":          {map[string]string{"/home/user/../x": "/workspace"}, wire.InvalidArgument},
		"relative":      {map[string]string{"projects": "/workspace"}, wire.InvalidArgument},
		"to elsewhere":  {map[string]string{"/home/user/a": "/etc"}, wire.InvalidArgument},
		"to dots":       {map[string]string{"/home/user/a": "/workspace/../etc"}, wire.InvalidArgument},
		"NUL":           {map[string]string{"/home/user/a\x00": "/workspace"}, wire.InvalidArgument},
		"in each other": {map[string]string{"/home/user/a": "/workspace", "/home/user/a/b": "/workspace/b"}, wire.InvalidArgument},
		"too many":      {many, wire.InvalidArgument},
		"taken":         {map[string]string{"/home/user/a": "/workspace", "/home/user/taken": "/workspace"}, wire.AlreadyExists},
		"a link above":  {map[string]string{"/home/user/a": "/workspace", "/home/user/link/x": "/workspace"}, wire.PermissionDenied},
	} {
		must(t, ignoreExist(os.Mkdir(filepath.Join(s.opt.Home, "taken"), 0o755)))
		must(t, ignoreExist(os.Symlink("/etc", filepath.Join(s.opt.Home, "link"))))
		err := s.Alias(t.Context(), c.names)
		f, ok := err.(*wire.Failure)
		if !ok || f.Code != c.code || f.Field != "alias" {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := os.Lstat(filepath.Join(s.opt.Home, "a")); err == nil {
			t.Errorf("%s: a link stays", name)
		}
	}
}

// FuzzGlob: whatever the pattern, it compiles quickly or is refused, and one that
// is a plain name matches just that.
func FuzzGlob(f *testing.F) {
	for _, p := range []string{"**/*.go", "{a,b}{c,d}", "[!a-z]", `\*`, "a/**/b", "[[:alpha:]]", "{{{,}}}", "[]-]", "**{**/,a}**"} {
		f.Add(p, "a/b.go")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		g, err := newGlob("pattern", pattern)
		if err != nil {
			if w, ok := err.(*wire.Failure); !ok || w.Code != wire.InvalidArgument {
				t.Fatal(err)
			}
			return
		}
		match := g.re.MatchString(name)
		plain := strings.TrimPrefix(pattern, "./")
		if !strings.ContainsAny(plain, `*?[]{}\,`) && match != (name == plain) {
			t.Fatalf("%q matches %q: %v", pattern, name, match)
		}
		if match && g.base != "" && !strings.HasPrefix(name, g.base+"/") {
			t.Fatalf("%q matches %q, which is not in %q", pattern, name, g.base)
		}
		if match && g.depth > 0 && g.base == "" && strings.Count(name, "/")+1 != g.depth {
			t.Fatalf("%q matches %q, which is not at depth %d", pattern, name, g.depth)
		}
	})
}

// FuzzSearch compares with what splitting the text into lines finds.
func FuzzSearch(f *testing.F) {
	f.Add("a\nb\r\nc", "b", true)
	f.Add("x\x00", "x", false)
	f.Add("\r", ".", false)
	f.Add("(((", "(", false)
	f.Add("Kelvin \u212A\nſtreet\nSTREET", "(?i)(k|s)?treet", false)
	f.Add("aXbYc\nABC\n\xff", `(?i)a(x|b){1,2}.*C+`, false)
	f.Fuzz(func(t *testing.T, text, pattern string, literal bool) {
		q := wire.SearchRequest{Pattern: pattern, Literal: literal, Before: 1, After: 1}
		fd, err := newFinder(&q)
		if err != nil {
			if w, ok := err.(*wire.Failure); !ok || w.Code != wire.InvalidArgument {
				t.Fatal(err)
			}
			return
		}
		err = fd.scan(t.Context(), &lines{r: strings.NewReader(text), longest: fd.longest}, "f")
		if binary := strings.Contains(text, "\x00"); binary != (err != nil) {
			t.Fatalf("%q: %v", text, err)
		}
		if err != nil || len(text) > leastLine {
			return
		}
		want := 0
		for line := range strings.Lines(text) {
			if fd.re.MatchString(strings.TrimSuffix(strings.TrimSuffix(line, "\r\n"), "\n")) {
				want++
			}
		}
		if len(fd.matches) != min(want, wire.MaxMatches) {
			t.Fatalf("%d of %d", len(fd.matches), want)
		}
	})
}

// BenchmarkScan is the speed of one search in memory, of lines of 60 bytes.
func BenchmarkScan(b *testing.B) {
	text := strings.Repeat("the quick brown fox jumps over the lazy dog, again and again\n", 1<<14)
	for _, pattern := range []string{"needle", `\bfox\s+walks\b`, "(?i)NEEDLE"} {
		b.Run(pattern, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				fd, err := newFinder(&wire.SearchRequest{Pattern: pattern})
				if err != nil {
					b.Fatal(err)
				}
				if err := fd.scan(b.Context(), &lines{r: strings.NewReader(text), longest: fd.longest}, "f"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
