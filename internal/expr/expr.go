// Package expr compiles and evaluates the expressions of profiles and approval rules. The language
// is CEL over JSON values, with optional fields and the extensions for strings, lists, sets, maps,
// math, encodings and regular expressions.
//
// Expressions and inputs may be hostile. Source, syntax tree, work, regular expressions and results
// are bounded, programs always terminate, and they access only the given variables. The package
// starts no goroutine. Errors of an expression have class InvalidArgument, exceeded bounds
// ResourceExhausted.
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
	// MaxSource is the maximum size of an expression in bytes.
	MaxSource = 16 << 10
	// MaxCost bounds the work of one evaluation in units of CEL: one per field access or ten bytes
	// of text. An evaluation of this cost usually takes about 100 ms. MaxTime bounds work that the
	// units do not cover.
	MaxCost = 1_000_000
	// MaxTime is the maximum time of one evaluation.
	MaxTime = time.Second
	// MaxValues and MaxBytes bound a result: its number of values, and the bytes of its strings and
	// names.
	MaxValues = 200_000
	MaxBytes  = 64 << 20
	// MaxDepth is the maximum nesting of a result.
	MaxDepth = 100

	maxNodes   = 10_000
	maxNesting = 100
	maxRange   = 10_000
	maxRegexp  = 1_000
	maxProduct = 64 << 20      // see heavy
	maxMemory  = MaxBytes / 10 // in units of CEL: ten bytes or one value
	measure    = 64            // iterations between two size measurements
	checkEvery = 8             // iterations; one match of the longest text takes tens of milliseconds
	maxQuote   = 80
)

// Expr is a compiled expression. It is safe for concurrent use.
type Expr struct {
	source  string
	ast     *cel.Ast
	program cel.Program
}

// Compile compiles source, which may use the variables vars of any type. The error has line, column
// and reason.
//
// A whole number in an input is an int, any other number a double, because JSON does not
// distinguish them. double(x) converts both to double.
func Compile(source string, vars ...string) (*Expr, error) {
	if len(source) > MaxSource {
		return nil, fmt.Errorf("expression is %d bytes long, more than %d: %w", len(source), MaxSource,
			errdefs.ErrInvalidArgument)
	}
	if !utf8.ValidString(source) || strings.ContainsRune(source, 0) {
		return nil, fmt.Errorf("expression is not valid UTF-8 or contains a NUL byte: %w", errdefs.ErrInvalidArgument)
	}
	env, err := environment(vars)
	if err != nil {
		return nil, err
	}
	tree, issues := env.Compile(source)
	if err := issues.Err(); err != nil {
		return nil, syntaxError(issues)
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

// syntaxError returns the first error of a source, on one line.
func syntaxError(issues *cel.Issues) error {
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

// String returns the source.
func (x *Expr) String() string { return x.source }

// Eval evaluates the expression. Variables and result are plain values as in encoding/json:
// map[string]any, []any, string, bool, nil and numbers. Numbers in the result are int64 or float64;
// a whole float64 in a variable is an int. Other types become text: bytes as base64, times as RFC
// 3339. An optional without a value becomes nil.
func (x *Expr) Eval(ctx context.Context, vars map[string]any) (any, error) {
	if vars == nil {
		vars = map[string]any{}
	}
	bounded, cancel := context.WithTimeout(ctx, MaxTime)
	defer cancel()
	out, _, err := x.program.ContextEval(bounded, vars)
	if err != nil {
		if bounded.Err() != nil && ctx.Err() == nil {
			return nil, fmt.Errorf("evaluate %q: took longer than %s: %w", quote(x.source), MaxTime,
				errdefs.ErrResourceExhausted)
		}
		return nil, x.failure(ctx, err)
	}
	var p plain
	v, err := p.value(out, 0)
	if err != nil {
		return nil, fmt.Errorf("result of %q: %w", quote(x.source), err)
	}
	return v, nil
}

// failure returns the error of an evaluation, with the part of the source that failed.
func (x *Expr) failure(ctx context.Context, err error) error {
	var cancelled interpreter.EvalCancelledError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("evaluate %q: %w", quote(x.source), context.Cause(ctx))
	case errors.As(err, &cancelled):
		return fmt.Errorf("evaluate %q: too much work: %w", quote(x.source), errdefs.ErrResourceExhausted)
	}
	reason := line(err.Error())
	var at *types.Err
	if !errors.As(err, &at) || at.NodeID() == 0 {
		return fmt.Errorf("%s in %q: %w", reason, quote(x.source), errdefs.ErrInvalidArgument)
	}
	part, place := x.part(at.NodeID())
	return fmt.Errorf("%s%s in %q: %w", place, reason, quote(part), errdefs.ErrInvalidArgument)
}

// part returns the text of a node of the syntax tree, and its position as "line:column: ".
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

// Bool evaluates to a bool. It returns an error for any other type.
func (x *Expr) Bool(ctx context.Context, vars map[string]any) (bool, error) {
	v, err := x.Eval(ctx, vars)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, fmt.Errorf("%q gives %s, not true or false: %w", quote(x.source), kind(v),
			errdefs.ErrInvalidArgument)
	}
	return b, nil
}

// Number evaluates to a finite number. It returns an error for any other type.
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

// Text evaluates to a string. It returns an error for any other type.
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

// JSON evaluates to JSON with sorted names.
func (x *Expr) JSON(ctx context.Context, vars map[string]any) (json.RawMessage, error) {
	v, err := x.Eval(ctx, vars)
	if err != nil {
		return nil, err
	}
	b, err := encode(v)
	if err != nil {
		return nil, fmt.Errorf("result of %q: %w", quote(x.source), err)
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

// line joins the lines of a message.
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
