// Package expr compiles and evaluates the expressions of profiles and approval
// rules: CEL over JSON values, with optional fields and the string, list, set,
// map, math, encoding and regular expression extensions.
//
// A program cannot loop for ever, and both the expression and its input may be
// hostile: source, syntax tree, work, regular expressions and results are
// bounded, and nothing is reached but the variables that are given. The package
// starts no goroutine and holds no state; errors of an expression are of class
// InvalidArgument, those of a bound ResourceExhausted.
package expr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
	"github.com/containerd/errdefs"
)

// Bounds of expressions and of their evaluation.
const (
	// MaxSource is the longest expression, in bytes.
	MaxSource = 16 << 10
	// MaxCost bounds the work of one evaluation in the units of CEL, of which a
	// field access is one and ten bytes of text that are looked at another. Most
	// that cost as much take some 100 ms; what its units do not see, MaxTime ends.
	MaxCost = 1_000_000
	// MaxTime bounds the time of one evaluation.
	MaxTime = time.Second
	// MaxValues and MaxBytes bound a result: the values in it, and the bytes of
	// its strings and names.
	MaxValues = 200_000
	MaxBytes  = 64 << 20
	// MaxDepth is how deep a result may be nested.
	MaxDepth = 100

	maxNodes   = 10_000
	maxNesting = 100
	maxRange   = 10_000
	maxRegexp  = 1_000
	maxProduct = 64 << 20      // see heavy
	maxMemory  = MaxBytes / 10 // CEL counts ten bytes, or one value, as one
	measure    = 64            // how often a value that is made in a loop is measured
	checkEvery = 8             // one match over the longest text is tens of milliseconds
	maxQuote   = 80
)

// Expr is a compiled expression. It may be evaluated concurrently.
type Expr struct {
	source  string
	ast     *cel.Ast
	program cel.Program
}

// Compile compiles source, which may use the variables vars; they are of any
// type. The error names line, column and reason.
//
// Numbers follow JSON's own lack of a difference: a whole number of an input is
// an int, any other a double. double(x) makes a double of both.
func Compile(source string, vars ...string) (*Expr, error) {
	if len(source) > MaxSource {
		return nil, fmt.Errorf("the expression is %d bytes long: at most %d: %w", len(source), MaxSource, errdefs.ErrInvalidArgument)
	}
	if !utf8.ValidString(source) || strings.ContainsRune(source, 0) {
		return nil, fmt.Errorf("the expression is not valid UTF-8 or has a NUL byte: %w", errdefs.ErrInvalidArgument)
	}
	env, err := environment(vars)
	if err != nil {
		return nil, err
	}
	tree, issues := env.Compile(source)
	if err := issues.Err(); err != nil {
		return nil, syntax(issues)
	}
	program, err := env.Program(tree,
		cel.EvalOptions(cel.OptOptimize),
		cel.CostLimit(MaxCost),
		cel.MemoryLimit(maxMemory),
		cel.MemoryTracking(
			types.MemoryTrackerSampleInterval(measure),
			types.MemoryTrackerSizeCalculator(types.NewSizeCalculator(
				types.SizeCalculatorMaxDepth(MaxDepth), types.SizeCalculatorMaxTraversal(MaxValues))),
		),
		cel.InterruptCheckFrequency(checkEvery),
	)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", line(err.Error()), errdefs.ErrInvalidArgument)
	}
	return &Expr{source: source, ast: tree, program: program}, nil
}

// syntax is the first of what is wrong with a source, on one line.
func syntax(issues *cel.Issues) error {
	all := issues.Errors()
	if len(all) == 0 {
		return fmt.Errorf("%s: %w", line(issues.String()), errdefs.ErrInvalidArgument)
	}
	first := all[0]
	more := ""
	if len(all) > 1 {
		more = fmt.Sprintf(" (and %d more)", len(all)-1)
	}
	return fmt.Errorf("%d:%d: %s%s: %w", max(first.Location.Line(), 1), max(first.Location.Column(), 0)+1,
		line(first.Message), more, errdefs.ErrInvalidArgument)
}

// String is the source.
func (x *Expr) String() string { return x.source }

// Eval evaluates the expression. Variables and the result are plain values as
// encoding/json has them: map[string]any, []any, string, bool, nil and numbers,
// which in the result are int64 or float64. A whole float64 counts as an int.
// What is no JSON becomes its text: bytes are base64, times RFC 3339; an
// optional without a value is nil.
func (x *Expr) Eval(ctx context.Context, vars map[string]any) (any, error) {
	if vars == nil {
		vars = map[string]any{}
	}
	bounded, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	out, _, err := x.program.ContextEval(bounded, vars)
	if err != nil {
		if bounded.Err() != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("evaluating %q takes longer than %s: %w", quote(x.source), MaxTime, errdefs.ErrResourceExhausted)
		}
		return nil, x.failure(ctx, err)
	}
	var p plain
	v, err := p.value(out, 0)
	if err != nil {
		return nil, fmt.Errorf("the result of %q: %w", quote(x.source), err)
	}
	return v, nil
}

// failure says why an evaluation failed, and in which part of the source.
func (x *Expr) failure(ctx context.Context, err error) error {
	var cancelled interpreter.EvalCancelledError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("evaluate %q: %w", quote(x.source), context.Cause(ctx))
	case errors.As(err, &cancelled):
		return fmt.Errorf("evaluating %q takes too much work: %w", quote(x.source), errdefs.ErrResourceExhausted)
	}
	reason := line(err.Error())
	var at *types.Err
	if !errors.As(err, &at) || at.NodeID() == 0 {
		return fmt.Errorf("%s in %q: %w", reason, quote(x.source), errdefs.ErrInvalidArgument)
	}
	part, place := x.part(at.NodeID())
	return fmt.Errorf("%s%s in %q: %w", place, reason, quote(part), errdefs.ErrInvalidArgument)
}

// part is the text of a node of the syntax tree, and its place as "line:column: ".
func (x *Expr) part(id int64) (text, place string) {
	tree, text := x.ast.NativeRep(), x.source
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.ID() == id && e.Kind() != ast.UnspecifiedExprKind {
			if s, err := cel.ExprToString(e, tree.SourceInfo()); err == nil {
				text = s
			}
		}
	}))
	if at := tree.SourceInfo().GetStartLocation(id); at.Line() > 0 {
		place = fmt.Sprintf("%d:%d: ", at.Line(), at.Column()+1)
	}
	return text, place
}

// Bool evaluates a condition. Another type than bool is an error.
func (x *Expr) Bool(ctx context.Context, vars map[string]any) (bool, error) {
	v, err := x.Eval(ctx, vars)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, fmt.Errorf("%q gives %s, not true or false: %w", quote(x.source), kind(v), errdefs.ErrInvalidArgument)
	}
	return b, nil
}

// Number evaluates to a number. It is finite.
func (x *Expr) Number(ctx context.Context, vars map[string]any) (float64, error) {
	v, err := x.Eval(ctx, vars)
	if err != nil {
		return 0, err
	}
	switch n := v.(type) {
	case int64:
		return float64(n), nil
	case float64:
		return n, nil
	}
	return 0, fmt.Errorf("%q gives %s, not a number: %w", quote(x.source), kind(v), errdefs.ErrInvalidArgument)
}

// Text evaluates to a string.
func (x *Expr) Text(ctx context.Context, vars map[string]any) (string, error) {
	v, err := x.Eval(ctx, vars)
	if err != nil {
		return "", err
	}
	s, ok := v.(string)
	if !ok {
		return "", fmt.Errorf("%q gives %s, not a string: %w", quote(x.source), kind(v), errdefs.ErrInvalidArgument)
	}
	return s, nil
}

// JSON evaluates to JSON, with names in order.
func (x *Expr) JSON(ctx context.Context, vars map[string]any) (json.RawMessage, error) {
	v, err := x.Eval(ctx, vars)
	if err != nil {
		return nil, err
	}
	b, err := encode(v)
	if err != nil {
		return nil, fmt.Errorf("the result of %q: %w", quote(x.source), err)
	}
	return b, nil
}

func kind(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a bool"
	case string:
		return "a string"
	case int64, float64:
		return "a number"
	case []any:
		return "a list"
	}
	return "an object"
}

// line makes one line of a message that may have many.
func line(s string) string { return strings.Join(strings.Fields(s), " ") }

func quote(s string) string {
	s = line(s)
	if len(s) <= maxQuote {
		return s
	}
	cut := maxQuote
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
