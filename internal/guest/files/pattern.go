package files

import (
	"path"
	"regexp"
	"regexp/syntax"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// Limits of patterns. They come from models, so the size of a compiled pattern and the time of one
// match must be limited.
const (
	maxGlobBytes    = 1 << 10
	maxPatternBytes = 4 << 10
	// maxCost approximately limits the number of instructions of a search's program.
	maxCost = 4000
	// The work of one match is about cost times the bytes of a line.
	matchWork = 1 << 28
	leastLine = 64 << 10
	mostLine  = 1 << 20
)

// glob is a compiled file name pattern: *, ?, [class], {a,b}, ** for any number of directories, and
// \ to escape a character. It is compiled to a regular expression, which needs linear time for
// every pattern.
type glob struct {
	re *regexp.Regexp
	// base is the directory that contains all matches, or "".
	base string
	// depth is the number of path elements of a match below base, or 0 for any number.
	depth int
	// hidden is set if the pattern itself contains a name with a leading dot.
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
		return nil, wire.Failf(wire.InvalidArgument, field, "is absolute: use a pattern relative to the searched directory")
	}
	expr, err := globExpr(pattern)
	if err != nil {
		return nil, wire.Failf(wire.InvalidArgument, field, "is not a valid pattern: %v", err)
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, wire.Failf(wire.InvalidArgument, field, "is not a valid pattern: %v", err)
	}
	g := &glob{re: re}
	g.plan(pattern)
	return g, nil
}

// plan sets base, hidden and depth.
func (g *glob) plan(pattern string) {
	rest := pattern
	for {
		part, more, deeper := strings.Cut(rest, "/")
		if !deeper || part == "" || part == "." || part == ".." || strings.ContainsAny(part, `*?[{\`) {
			break
		}
		g.base, rest = path.Join(g.base, part), more
	}
	g.hidden = strings.HasPrefix(rest, ".") || strings.Contains(rest, "/.") || strings.Contains(rest, "{.") ||
		strings.Contains(rest, ",.")
	if !strings.Contains(rest, "**") && !strings.ContainsAny(rest, `{[\`) {
		g.depth = strings.Count(rest, "/") + 1
	}
}

// below reports whether the directory rel, relative to base, can contain matches.
func (g *glob) below(rel string) bool {
	return g.depth == 0 || strings.Count(rel, "/")+1 < g.depth
}

type globError string

func (e globError) Error() string { return string(e) }

// globExpr translates a pattern to a regular expression.
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
				return "", globError("ends with a backslash")
			}
			b.WriteString(quoteByte(pattern[i]))
		default:
			b.WriteString(quoteByte(c))
		}
	}
	if open > 0 {
		return "", globError("missing } after {")
	}
	b.WriteString(`)\z`)
	return b.String(), nil
}

// globStars translates the two stars at i and returns the number of bytes that it used. They match
// directories only if they are a complete path element.
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

// quoteByte escapes one byte. The bytes of a multi-byte character remain adjacent.
func quoteByte(c byte) string { return regexp.QuoteMeta(string([]byte{c})) }

// globClass translates the class at the start of s and returns its length.
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
			return "", 0, globError("missing ] after [")
		case s[i] == ']' && !first:
			b.WriteString("]")
			return b.String(), i + 1, nil
		case s[i] == '/':
			return "", 0, globError("a character class cannot contain /")
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

// expression is a compiled search pattern.
type expression struct {
	re      *regexp.Regexp
	needle  needle
	longest int // bytes of a line that are searched
}

// find returns the position of the first match in a line, or nil.
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
		return bad("contains a line break, but lines are searched one at a time")
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
		return bad("is not a valid RE2 regular expression: %v", err)
	}
	size := cost(tree)
	if size > maxCost {
		return bad("is too complex: use fewer repetitions")
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return bad("is not a valid RE2 regular expression: %v", err)
	}
	return &expression{re: re, needle: newNeedle(tree), longest: min(max(matchWork/size, leastLine), mostLine)}, nil
}

// cost estimates the number of instructions of an expression before it is compiled. It stops
// counting beyond maxCost.
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
	default:
	}
	return n
}
