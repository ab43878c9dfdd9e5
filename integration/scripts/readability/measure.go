package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The limits. A larger value is a finding.
const (
	maxExportedMethods = 40  // per type
	maxPackageFiles    = 30  // per directory, without tests
	maxFunctionLines   = 60  // without tables, that is composite literals
	maxFileLines       = 500 // without tests
	maxCommentColumns  = 100
	maxMarkdownColumns = 100 // without tables, code blocks and links
)

// banned matches an opening that the style guide bans, at the start of a sentence.
var banned = regexp.MustCompile(`^(Who|What|Whoever|Whatever|One that|Nobody) [a-z]`)

// riddle matches "is no" before a word. The group is set for fixed expressions ("longer").
var riddle = regexp.MustCompile(`\bis no (longer|more|such|need)?`)

// verb matches a verb of package fmt.
var verb = regexp.MustCompile(`%[-+# 0]*[0-9.]*[a-zA-Z]`)

// letter matches the text that a failure message has beside its verbs.
var letter = regexp.MustCompile(`[A-Za-z]`)

// measure returns the findings in the given files.
func measure(paths []string) (findings, error) {
	found := findings{}
	files := map[string]int{}
	methods := map[string]int{}
	for _, p := range paths {
		info, err := os.Lstat(p)
		if err != nil || !info.Mode().IsRegular() {
			continue // deleted in the working tree, or a link
		}
		switch {
		case strings.HasSuffix(p, ".md"):
			err = measureMarkdown(found, p)
		case strings.HasSuffix(p, ".go") && !strings.Contains(p, "/testdata/"):
			if !strings.HasSuffix(p, "_test.go") {
				files[path.Dir(p)]++
			}
			err = measureGo(found, methods, p)
		}
		if err != nil {
			return nil, err
		}
	}
	over(found, "package-files", files, maxPackageFiles)
	over(found, "exported-methods", methods, maxExportedMethods)
	return found, nil
}

func over(found findings, rule string, sizes map[string]int, limit int) {
	for place, n := range sizes {
		if n > limit {
			found.add(rule, place, n)
		}
	}
}

func measureGo(found findings, methods map[string]int, p string) error {
	src, err := os.ReadFile(p)
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, p, src, parser.ParseComments)
	if err != nil {
		return err
	}
	if ast.IsGenerated(f) {
		return nil
	}
	for _, group := range f.Comments {
		measureComment(found, p, group)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if n.Kind == token.STRING && isRiddle(n.Value) {
				found.add("is-no-in-message", p, 1)
			}
		case *ast.CallExpr:
			if isBareFailure(n) {
				found.add("bare-failure-message", p, 1)
			}
		}
		return true
	})
	test := strings.HasSuffix(p, "_test.go")
	if n := fset.File(f.Pos()).LineCount(); n > maxFileLines && !test {
		found.add("file-lines", p, n)
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := functionLines(fset, fn); n > maxFunctionLines {
			found.add("function-lines", p+":"+fn.Name.Name, n)
		}
		if fn.Recv != nil && fn.Name.IsExported() && !test {
			methods[path.Dir(p)+"."+receiver(fn.Recv.List[0].Type)]++
		}
	}
	return nil
}

// isBareFailure reports whether a call fails a test with values only, so that its reader learns
// neither what was called nor what was wanted.
func isBareFailure(call *ast.CallExpr) bool {
	fn, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || (fn.Sel.Name != "Errorf" && fn.Sel.Name != "Fatalf") || len(call.Args) == 0 {
		return false
	}
	if on, ok := fn.X.(*ast.Ident); !ok || (on.Name != "t" && on.Name != "b" && on.Name != "tb") {
		return false
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return false
	}
	format, err := strconv.Unquote(literal.Value)
	return err == nil && !letter.MatchString(verb.ReplaceAllString(format, ""))
}

// functionLines counts the lines of a function without those inside its composite literals: a table
// may be long.
func functionLines(fset *token.FileSet, fn *ast.FuncDecl) int {
	lines := func(n ast.Node) int { return fset.Position(n.End()).Line - fset.Position(n.Pos()).Line }
	total := lines(fn) + 1
	ast.Inspect(fn, func(n ast.Node) bool {
		if lit, ok := n.(*ast.CompositeLit); ok {
			total -= lines(lit)
			return false
		}
		return true
	})
	return total
}

func receiver(t ast.Expr) string {
	switch t := t.(type) {
	case *ast.StarExpr:
		return receiver(t.X)
	case *ast.IndexExpr:
		return receiver(t.X)
	case *ast.Ident:
		return t.Name
	}
	return "?"
}

func measureComment(found findings, p string, group *ast.CommentGroup) {
	start := true
	for _, c := range group.List {
		for line := range strings.Lines(c.Text) {
			line = strings.TrimRight(line, "\n")
			if strings.HasPrefix(line, "//go:") || strings.HasPrefix(line, "//nolint") {
				continue
			}
			if utf8.RuneCountInString(line) > maxCommentColumns && !strings.Contains(line, "://") {
				found.add("comment-columns", p, 1)
			}
			text := strings.TrimSpace(strings.TrimPrefix(line, "//"))
			if start && banned.MatchString(text) {
				found.add("banned-opening", p, 1)
			}
			if isRiddle(text) {
				found.add("is-no-in-comment", p, 1)
			}
			start = text == "" || strings.HasSuffix(text, ".")
		}
	}
}

func isRiddle(text string) bool {
	for _, m := range riddle.FindAllStringSubmatch(text, -1) {
		if m[1] == "" {
			return true
		}
	}
	return false
}

func measureMarkdown(found findings, p string) error {
	src, err := os.ReadFile(p)
	if err != nil {
		return err
	}
	code, start := false, true
	for line := range strings.Lines(string(src)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			code = !code
			continue
		}
		if code || strings.HasPrefix(line, "|") {
			continue
		}
		if utf8.RuneCountInString(line) > maxMarkdownColumns && strings.Count(line, ". ") > 0 {
			found.add("markdown-columns", p, 1)
		}
		text := strings.TrimLeft(line, "-*# 0123456789.>")
		if start && banned.MatchString(text) {
			found.add("banned-opening", p, 1)
		}
		if isRiddle(text) {
			found.add("is-no-in-comment", p, 1)
		}
		start = line == "" || strings.HasSuffix(line, ".")
	}
	return nil
}
