package files

import (
	"path"
	"regexp"
	"regexp/syntax"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// Bounds of what is compiled: a pattern comes from a model, and neither its
// program nor the time of one match may grow beyond the guest's means.
const (
	maxGlobBytes    = 1 << 10
	maxPatternBytes = 4 << 10
	// maxCost is how many instructions a search's program has at most, about.
	maxCost = 4000
	// The work of one match is about cost times the bytes of a line.
	matchWork = 1 << 28
	leastLine = 64 << 10
	mostLine  = 1 << 20
)

// glob is a compiled pattern of names: *, ?, [class], {a,b}, ** for any number
// of folders, and \ before a character that is to be itself. It is a regular
// expression, because that takes linear time whatever the pattern.
type glob struct {
	re *regexp.Regexp
	// base is the folder that all matches are in, "" for none.
	base string
	// depth is how many parts a match has below base; 0: any number.
	depth int
	// hidden says that the pattern itself asks for a name with a dot.
	hidden bool
}

func newGlob(field, pattern string) (*glob, error) {
	pattern = strings.TrimPrefix(pattern, "./")
	switch {
	case pattern == "":
		return nil, wire.Failf(wire.InvalidArgument, field, "is empty")
	case len(pattern) > maxGlobBytes:
		return nil, wire.Failf(wire.InvalidArgument, field, "is longer than %d bytes", maxGlobBytes)
	case strings.IndexByte(pattern, 0) >= 0:
		return nil, wire.Failf(wire.InvalidArgument, field, "contains a NUL byte")
	case pattern[0] == '/':
		return nil, wire.Failf(wire.InvalidArgument, field, "is absolute: it matches paths relative to the folder that is looked into")
	}
	expr, err := globExpr(pattern)
	if err != nil {
		return nil, wire.Failf(wire.InvalidArgument, field, "is no pattern: %v", err)
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, wire.Failf(wire.InvalidArgument, field, "is no pattern: %v", err)
	}
	g := &glob{re: re}
	g.plan(pattern)
	return g, nil
}

// plan finds out where matches can be at all.
func (g *glob) plan(pattern string) {
	rest := pattern
	for {
		part, more, deeper := strings.Cut(rest, "/")
		if !deeper || part == "" || part == "." || part == ".." || strings.ContainsAny(part, `*?[{\`) {
			break
		}
		g.base, rest = path.Join(g.base, part), more
	}
	g.hidden = strings.HasPrefix(rest, ".") || strings.Contains(rest, "/.") || strings.Contains(rest, "{.") || strings.Contains(rest, ",.")
	if !strings.Contains(rest, "**") && !strings.ContainsAny(rest, `{[\`) {
		g.depth = strings.Count(rest, "/") + 1
	}
}

// below says whether a match may be in the folder rel, counted from base.
func (g *glob) below(rel string) bool {
	return g.depth == 0 || strings.Count(rel, "/")+1 < g.depth
}

type globError string

func (e globError) Error() string { return string(e) }

// globExpr translates a pattern.
func globExpr(pattern string) (string, error) {
	var b strings.Builder
	b.WriteString(`\A(?s:`)
	open := 0
	for i := 0; i < len(pattern); i++ {
		c := pattern[i]
		switch {
		case strings.HasPrefix(pattern[i:], "**"):
			expr, n := globStars(pattern, i, open > 0)
			b.WriteString(expr)
			i += n - 1
		case c == '*':
			b.WriteString(`[^/]*`)
		case c == '?':
			b.WriteString(`[^/]`)
		case c == '[':
			class, n, err := globClass(pattern[i:])
			if err != nil {
				return "", err
			}
			b.WriteString(class)
			i += n - 1
		case c == '{':
			open++
			b.WriteString(`(?:`)
		case c == '}' && open > 0:
			open--
			b.WriteString(`)`)
		case c == ',' && open > 0:
			b.WriteString(`|`)
		case c == '\\':
			if i++; i == len(pattern) {
				return "", globError("it ends with a backslash")
			}
			b.WriteString(quoteByte(pattern[i]))
		default:
			b.WriteString(quoteByte(c))
		}
	}
	if open > 0 {
		return "", globError("a { is not closed")
	}
	b.WriteString(`)\z`)
	return b.String(), nil
}

// globStars translates the two stars at i, and says how much it took. They stand
// for folders only where they are a part by themselves.
func globStars(pattern string, i int, inside bool) (string, int) {
	end := i + 2
	starts := i == 0 || pattern[i-1] == '/' || inside && strings.IndexByte("{,", pattern[i-1]) >= 0
	switch {
	case starts && end < len(pattern) && pattern[end] == '/':
		return `(?:[^/]+/)*`, 3
	case starts && (end == len(pattern) || inside && strings.IndexByte("},", pattern[end]) >= 0):
		return `.+`, 2
	}
	return `[^/]*`, 2
}

// quoteByte leaves the bytes of a longer character to stand beside each other.
func quoteByte(c byte) string { return regexp.QuoteMeta(string([]byte{c})) }

// globClass translates the class that s begins with, and says how long it is.
func globClass(s string) (string, int, error) {
	var b strings.Builder
	i, not := 1, ""
	if i < len(s) && (s[i] == '!' || s[i] == '^') {
		not = "^"
		i++
	}
	b.WriteString("[" + not)
	if not != "" {
		b.WriteString("/")
	}
	for first := true; ; first = false {
		switch {
		case i >= len(s):
			return "", 0, globError("a [ is not closed")
		case s[i] == ']' && !first:
			b.WriteString("]")
			return b.String(), i + 1, nil
		case s[i] == '/':
			return "", 0, globError("a / in a class matches nothing")
		case s[i] == '-' && !first && i+1 < len(s) && s[i+1] != ']':
			b.WriteString("-")
		default:
			if s[i] == '\\' && i+1 < len(s) && s[i+1] != '/' {
				i++
			}
			if strings.IndexByte(`[]^-&~\`, s[i]) >= 0 {
				b.WriteByte('\\')
			}
			b.WriteByte(s[i])
		}
		i++
	}
}

// expression is what a search looks for.
type expression struct {
	re      *regexp.Regexp
	needle  needle
	longest int // bytes of a line that are looked at
}

// find is where it is in a line, or nil.
func (e *expression) find(line []byte) []int {
	if !e.needle.in(line) {
		return nil
	}
	return e.re.FindIndex(line)
}

func newExpression(q *wire.SearchRequest) (*expression, error) {
	bad := func(format string, args ...any) (*expression, error) {
		return nil, wire.Failf(wire.InvalidArgument, "pattern", format, args...)
	}
	switch {
	case q.Pattern == "":
		return bad("is empty")
	case len(q.Pattern) > maxPatternBytes:
		return bad("is longer than %d bytes", maxPatternBytes)
	case q.Literal && strings.ContainsAny(q.Pattern, "\n\r"):
		return bad("spans lines, and a search looks at one line at a time")
	}
	expr, flags := q.Pattern, syntax.Perl
	if q.Literal {
		expr = regexp.QuoteMeta(expr)
	}
	if q.IgnoreCase {
		expr = "(?i)" + expr
	}
	tree, err := syntax.Parse(expr, flags)
	if err != nil {
		return bad("is no regular expression of RE2: %v", err)
	}
	size := cost(tree)
	if size > maxCost {
		return bad("is too large a regular expression: ask for fewer repetitions")
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return bad("is no regular expression of RE2: %v", err)
	}
	return &expression{re: re, needle: newNeedle(tree), longest: min(max(matchWork/size, leastLine), mostLine)}, nil
}

// cost is about how many instructions an expression takes, known before they
// are made. It stops counting somewhere beyond maxCost.
func cost(re *syntax.Regexp) int {
	n := 1
	for _, sub := range re.Sub {
		if n += cost(sub); n > maxCost {
			return n
		}
	}
	switch re.Op {
	case syntax.OpLiteral:
		n += len(re.Rune)
	case syntax.OpCharClass:
		n += len(re.Rune) / 64
	case syntax.OpRepeat:
		n *= max(re.Min, re.Max, 1)
	}
	return n
}
