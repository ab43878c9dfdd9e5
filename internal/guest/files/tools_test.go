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
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// send runs one operation with any request.
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

// got decodes a reply. A refusal fails the test.
func got[T any](t *testing.T, r reply) (v T) {
	t.Helper()
	if r.failure != nil {
		t.Fatalf("request refused: %v, want a reply", r.failure)
	}
	must(t, json.Unmarshal(r.last, &v))
	return v
}

// tree creates files of user 1000. A name that ends with a slash is a directory.
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

func TestEditRunsAsUser(t *testing.T) {
	s, dir := tree(t, map[string]string{"a/f": "one two one", "foreign": "text"})
	q := wire.EditRequest{FileRequest: wire.FileRequest{Path: "/workspace/a/f"}, Old: "two", New: "2"}
	r := got[wire.EditReply](t, send(t, s, wire.OpEdit, q))
	if r.Count != 1 || r.Line != 1 || r.Info.Path != "a/f" || r.Info.UID != 1000 || r.Info.Size != 9 {
		t.Errorf("edit = %+v, want one change in line 1, a/f of user 1000 with 9 bytes", r)
	}
	for name, c := range map[string]struct {
		q    wire.EditRequest
		code string
		says string
	}{
		"absent": {wire.EditRequest{FileRequest: wire.FileRequest{Path: "a/f"}, Old: "x"}, wire.NotFound, "old"},
		"twice": {wire.EditRequest{FileRequest: wire.FileRequest{Path: "a/f"}, Old: "one"}, wire.FailedPrecondition,
			"2 times"},
		"empty":   {wire.EditRequest{FileRequest: wire.FileRequest{Path: "a/f"}}, wire.InvalidArgument, "empty"},
		"no file": {wire.EditRequest{FileRequest: wire.FileRequest{Path: "none"}, Old: "x"}, wire.NotFound, "none"},
		"a folder": {wire.EditRequest{FileRequest: wire.FileRequest{Path: "a"}, Old: "x"}, wire.FailedPrecondition,
			"regular"},
		"leads out": {wire.EditRequest{FileRequest: wire.FileRequest{Path: "../x"}, Old: "x"}, wire.PermissionDenied,
			"workspace"},
	} {
		r := send(t, s, wire.OpEdit, c.q)
		if r.code() != c.code || !strings.Contains(r.failure.Error(), c.says) {
			t.Errorf("edit %s: %+v, want %s with %q", name, r.failure, c.code, c.says)
		}
	}
	must(t, os.Chown(filepath.Join(dir, "foreign"), 0, 0))
	must(t, os.Chmod(filepath.Join(dir, "foreign"), 0o600))
	if r := send(t, s, wire.OpEdit,
		wire.EditRequest{FileRequest: wire.FileRequest{Path: "foreign"}, Old: "text"}); r.code() != wire.PermissionDenied {
		t.Errorf("edit of a file of root: %+v, want permission_denied", r.failure)
	}
}

func globbed(t *testing.T, s *Server, q wire.GlobRequest) ([]string, bool) {
	t.Helper()
	r := got[wire.GlobReply](t, send(t, s, wire.OpGlob, q))
	names := make([]string, 0, len(r.Items))
	for _, i := range r.Items {
		names = append(names, i.Path)
	}
	return names, r.Truncated
}

func TestGlobMatchesNames(t *testing.T) {
	s, dir := tree(t, map[string]string{
		"main.go": "", "README.md": "", ".hidden": "", ".git/config": "", "src/a.go": "", "src/b.ts": "",
		"src/deep/er/c.go": "", "src/.env": "",
		"odd [x].txt": "", "ñandú.go": "", "src/empty/": "",
	})
	must(t, os.Symlink("/etc", filepath.Join(dir, "out")))
	must(t, os.Symlink("src", filepath.Join(dir, "link")))
	for pattern, want := range map[string]string{
		"*.go": "main.go ñandú.go", "**/*.go": "main.go src/a.go src/deep/er/c.go ñandú.go",
		"src/*":  "src/a.go src/b.ts src/deep src/empty",
		"src/**": "src/a.go src/b.ts src/deep src/deep/er src/deep/er/c.go src/empty", "**/c.go": "src/deep/er/c.go",
		"*.{go,md}": "README.md main.go ñandú.go", "{src/a,main}.go": "main.go src/a.go", "src/[ab].??": "src/a.go src/b.ts",
		"src/[!a]*.ts":  "src/b.ts",
		`odd \[x\].txt`: "odd [x].txt", "?and?.go": "ñandú.go", ".hid*": ".hidden", "**/.env": "src/.env",
		".git/*": ".git/config", "src/deep/**/c.go": "src/deep/er/c.go",
		"none/*": "", "out/*": "", "link": "link", "./main.go": "main.go", "main.go/x": "", "src/**/er": "src/deep/er",
		"*/*/*/*.go": "src/deep/er/c.go",
	} {
		names, cut := globbed(t, s, wire.GlobRequest{Pattern: pattern})
		if strings.Join(names, " ") != want || cut {
			t.Errorf("%s: %q, truncated %v; want %q", pattern, names, cut, want)
		}
	}
	names, _ := globbed(t, s,
		wire.GlobRequest{FileRequest: wire.FileRequest{Path: "/workspace/src"}, Pattern: "*", Hidden: true})
	if strings.Join(names, " ") != "src/.env src/a.go src/b.ts src/deep src/empty" {
		t.Errorf("glob below a directory = %q, want all five names with .env", names)
	}
	names, cut := globbed(t, s, wire.GlobRequest{Pattern: "**/*.go", Max: 2})
	if len(names) != 2 || !cut {
		t.Errorf("glob with a maximum of 2 = %q, truncated %v; want two names, truncated", names, cut)
	}
}

func TestInvalidPatternsAreRefused(t *testing.T) {
	s, _ := tree(t, map[string]string{"f": "x"})
	for name, q := range map[string]wire.GlobRequest{
		"empty": {}, "absolute": {Pattern: "/etc/*"}, "open class": {Pattern: "[a"}, "open braces": {Pattern: "{a,b"},
		"a backslash": {Pattern: `a\`},
		"NUL":         {Pattern: "a\x00"}, "long": {Pattern: strings.Repeat("*", 2000)}, "backward": {Pattern: "[z-a]"},
		"a negative max": {Pattern: "*", Max: -1}, "a large max": {Pattern: "*", Max: 1001},
	} {
		if r := send(t, s, wire.OpGlob, q); r.code() != wire.InvalidArgument || r.failure.Field == "" {
			t.Errorf("glob %s: %+v, want %s that names a field", name, r.failure, wire.InvalidArgument)
		}
	}
	for name, q := range map[string]wire.SearchRequest{
		"empty": {}, "open": {Pattern: "("}, "backreference": {Pattern: `(a)\1`},
		"huge": {Pattern: strings.Repeat("(.{1000})", 100)}, "nested": {Pattern: "((a{30}){30}){30}"},
		"long": {Pattern: strings.Repeat("a", 5000)}, "lines": {Pattern: "a\nb", Literal: true},
		"before": {Pattern: "a", Before: 11}, "after": {Pattern: "a", After: -1},
		"glob": {Pattern: "a", Glob: "[a"}, "max": {Pattern: "a", Max: 5000},
	} {
		if r := send(t, s, wire.OpSearch, q); r.code() != wire.InvalidArgument || r.failure.Field == "" {
			t.Errorf("search %s: %+v, want %s that names a field", name, r.failure, wire.InvalidArgument)
		}
	}
	for _, op := range []wire.Op{wire.OpGlob, wire.OpSearch} {
		for p, code := range map[string]string{"none": wire.NotFound, "../x": wire.PermissionDenied} {
			if r := send(t, s, op, wire.SearchRequest{FileRequest: wire.FileRequest{Path: p}, Pattern: "a"}); r.code() != code {
				t.Errorf("%s in %s: %+v, want %s", op, p, r.failure, code)
			}
		}
	}
}

func found(t *testing.T, s *Server, q wire.SearchRequest) wire.SearchReply {
	t.Helper()
	return got[wire.SearchReply](t, send(t, s, wire.OpSearch, q))
}

// brief returns path:line:column of each match.
func brief(r wire.SearchReply) string {
	all := make([]string, 0, len(r.Matches))
	for _, m := range r.Matches {
		all = append(all, fmt.Sprintf("%s:%d:%d", m.Path, m.Line, m.Column))
	}
	return strings.Join(all, " ")
}

func TestSearchFindsLines(t *testing.T) {
	s, dir := tree(t, map[string]string{
		"a.go": "package a\n\nfunc Foo() {}\n", "b/b.go": "// foo\r\nvar foo = 1\r\n", "b/c.txt": "foo", ".env": "foo=1\n",
		"bin": "foo\x00", "late": "foo\n" + strings.Repeat("x", 1<<20) + "\x00",
		"bad": "f\xffoo foo\n",
	})
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "passwd")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	must(t, os.WriteFile(filepath.Join(dir, "secret"), []byte("foo"), 0o600)) // owned by root
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
		"in a folder": {wire.SearchRequest{FileRequest: wire.FileRequest{Path: "/workspace/b"}, Pattern: "foo",
			Glob: "*.txt"}, "b/c.txt:1:1"},
		"none": {wire.SearchRequest{Pattern: "nowhere"}, ""},
	} {
		r := found(t, s, c.q)
		if brief(r) != c.want || r.Truncated {
			t.Errorf("%s: %s, truncated %v; want %s", name, brief(r), r.Truncated, c.want)
		}
	}
	r := found(t, s, wire.SearchRequest{Pattern: "foo"})
	if r.Skipped != 3 || r.Files != 7 { // bin, late and secret
		t.Errorf("search = %d files, %d skipped; want 7 files, 3 skipped", r.Files, r.Skipped)
	}
	if last := r.Matches[len(r.Matches)-1]; last.Text != "f\uFFFDoo foo" {
		t.Errorf("text of the last match = %q, want %q", last.Text, "f\uFFFDoo foo")
	}
}

func TestSearchReturnsContext(t *testing.T) {
	s, _ := tree(t, map[string]string{"f": "1\n2 x\n3 x\n4\n5\n6\n7 x"})
	r := found(t, s, wire.SearchRequest{Pattern: "x", Before: 1, After: 2})
	want := []wire.Match{
		{Path: "f", Line: 2, Column: 3, Text: "2 x", Before: []string{"1"}, After: []string{"3 x", "4"}},
		{Path: "f", Line: 3, Column: 3, Text: "3 x", Before: []string{"2 x"}, After: []string{"4", "5"}},
		{Path: "f", Line: 7, Column: 3, Text: "7 x", Before: []string{"6"}},
	}
	if !slices.EqualFunc(r.Matches, want,
		func(a, b wire.Match) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }) {
		t.Errorf("matches = %+v, want %+v", r.Matches, want)
	}
	r = found(t, s, wire.SearchRequest{Pattern: "x", After: 2, Max: 1})
	if len(r.Matches) != 1 || len(r.Matches[0].After) != 2 || !r.Truncated {
		t.Errorf("search with a maximum of 1 = %+v; want one match with two lines after it, truncated", r)
	}
	r = found(t, s, wire.SearchRequest{Pattern: "x", Max: 3})
	if len(r.Matches) != 3 || r.Truncated {
		t.Errorf("search with a maximum of 3 = %+v; want all three matches, not truncated", r)
	}
}

func TestResultsAreLimited(t *testing.T) {
	long := strings.Repeat("é", 3<<20) // a single line over the limit
	s, _ := tree(t, map[string]string{
		"many": strings.Repeat(strings.Repeat("<", 900)+"\n", 3000), "long": "x" + long + "needle\nshort needle\n",
		"cut": strings.Repeat("é", 600) + "\n",
	})
	r := send(t, s, wire.OpSearch,
		wire.SearchRequest{FileRequest: wire.FileRequest{Path: "many"}, Pattern: "<", Before: 10, After: 10})
	if reply := got[wire.SearchReply](t, r); !reply.Truncated || len(reply.Matches) == 0 || len(r.last) > wire.MaxHeader {
		t.Errorf("search = %d matches in %d bytes, truncated %v; want some in at most %d bytes, truncated",
			len(reply.Matches), len(r.last), reply.Truncated, wire.MaxHeader)
	}
	if reply := found(t, s, wire.SearchRequest{FileRequest: wire.FileRequest{Path: "long"},
		Pattern: "needle"}); brief(reply) != "long:2:7" || !reply.Truncated {
		t.Errorf("search in long = %s, truncated %v; want long:2:7, truncated", brief(reply), reply.Truncated)
	}
	reply := found(t, s, wire.SearchRequest{FileRequest: wire.FileRequest{Path: "cut"}, Pattern: "é"})
	if text := reply.Matches[0].Text; text != strings.Repeat("é", wire.MaxLineBytes/2) {
		t.Errorf("text of the match = %d bytes, end %q; want %d bytes of é", len(text), text[len(text)-8:], wire.MaxLineBytes)
	}
	names, dir := map[string]string{}, strings.Repeat("<", 200)
	for i := range 700 {
		names[fmt.Sprintf("%s/%s/%s%d", dir, dir, dir, i)] = ""
	}
	s, _ = tree(t, names)
	r = send(t, s, wire.OpGlob, wire.GlobRequest{Pattern: "**"})
	if reply := got[wire.GlobReply](t, r); !reply.Truncated || len(reply.Items) == 0 || len(r.last) > wire.MaxHeader {
		t.Errorf("glob = %d names in %d bytes, truncated %v; want some in at most %d bytes, truncated",
			len(reply.Items), len(r.last), reply.Truncated, wire.MaxHeader)
	}
}

// A search that would take long ends when the host disconnects.
func TestSearchStopsWhenHostDisconnects(t *testing.T) {
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
		t.Fatal("search continues after a minute, want it ended")
	}
}

// While another process replaces directories by links to the outside, nothing outside is found or
// changed.
func TestSwappedLinksDoNotEscape(t *testing.T) {
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
			}{wire.SearchRequest{FileRequest: wire.FileRequest{Path: path, NoFollow: i%2 == 0}, Pattern: "secret"}, "inside",
				"changed"}
			if op == wire.OpGlob {
				q.Pattern = "**"
			}
			if op == wire.OpEdit {
				q.Path = path + "/f"
			}
			if r := send(t, s, op, q); strings.Contains(string(r.last), "secret") ||
				strings.Contains(string(r.last), filepath.Base(outside)+"/") {
				t.Fatalf("%s of %s = %s, want nothing from outside", op, path, r.last)
			}
		}
	}
	close(stop)
	swapping.Wait()
	for _, name := range []string{"f", "sub/f"} {
		if b, err := os.ReadFile(filepath.Join(outside, name)); string(b) != "inside secret" || err != nil {
			t.Errorf("%s outside = %q, %v; want %q and no error", name, b, err, "inside secret")
		}
	}
}

// FuzzGlob checks that each pattern compiles quickly or is refused, and that a plain name matches
// only itself.
func FuzzGlob(f *testing.F) {
	for _, p := range []string{"**/*.go", "{a,b}{c,d}", "[!a-z]", `\*`, "a/**/b", "[[:alpha:]]", "{{{,}}}", "[]-]",
		"**{**/,a}**"} {
		f.Add(p, "a/b.go")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		g, err := newGlob("pattern", pattern)
		if err != nil {
			if w, ok := err.(*wire.Failure); !ok || w.Code != wire.InvalidArgument {
				t.Fatalf("newGlob(%q): %v, want %s", pattern, err, wire.InvalidArgument)
			}
			return
		}
		match := g.re.MatchString(name)
		plain := strings.TrimPrefix(pattern, "./")
		if !strings.ContainsAny(plain, `*?[]{}\,`) && match != (name == plain) {
			t.Fatalf("%q matches %q = %v, want %v", pattern, name, match, !match)
		}
		if match && g.base != "" && !strings.HasPrefix(name, g.base+"/") {
			t.Fatalf("%q matches %q, want only names in %q", pattern, name, g.base)
		}
		if match && g.depth > 0 && g.base == "" && strings.Count(name, "/")+1 != g.depth {
			t.Fatalf("%q matches %q, want only names at depth %d", pattern, name, g.depth)
		}
	})
}

// FuzzSearch compares the matches with those in the text split into lines.
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
				t.Fatalf("newFinder(%q): %v, want %s", pattern, err, wire.InvalidArgument)
			}
			return
		}
		err = fd.scan(t.Context(), &lines{r: strings.NewReader(text), longest: fd.longest}, "f")
		if binary := strings.Contains(text, "\x00"); binary != (err != nil) {
			t.Fatalf("scan(%q): %v; want an error: %v", text, err, binary)
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
			t.Fatalf("scan found %d matches, want %d", len(fd.matches), min(want, wire.MaxMatches))
		}
	})
}

// BenchmarkScan measures one search in memory, in lines of 60 bytes.
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
