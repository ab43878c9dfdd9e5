package profile

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/containerd/errdefs"
)

// Bounds of templates, in bytes.
const (
	maxTemplate = 16 << 10
	maxText     = 32 << 20
	maxMessage  = 16 << 10
)

// functions are the functions for templates, besides those of package template in templateFuncs.
var functions = template.FuncMap{
	"json":   toJSON,
	"join":   joinList,
	"lower":  strings.ToLower,
	"upper":  strings.ToUpper,
	"trim":   strings.TrimSpace,
	"indent": indent,
	"div":    divide,
	"int":    func(v any) (int64, error) { f, err := toNumber(v); return int64(f), err },
	"float":  decimal,

	"seconds": secondsOf,
}

var templateFuncs = []string{
	"and", "or", "not", "len", "index", "slice", "eq", "ne", "lt", "le", "gt", "ge", "print",
	"json", "join", "lower", "upper", "trim", "indent", "div", "int", "float",
	"seconds",
}

func toJSON(v any) (string, error) {
	b, err := encodeJSON(v)
	return string(b), err
}

func joinList(sep string, list any) (string, error) {
	switch list := list.(type) {
	case nil:
		return "", nil
	case []string:
		return strings.Join(list, sep), nil
	case []any:
		parts := make([]string, len(list))
		for i, v := range list {
			parts[i] = fmt.Sprint(v)
		}
		return strings.Join(parts, sep), nil
	}
	return "", errors.New("join takes a separator and a list")
}

// indent puts n spaces before every line that is not empty.
func indent(n int, s string) (string, error) {
	if n < 0 || n > 64 {
		return "", errors.New("indent takes 0 to 64 spaces")
	}
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if l != "" {
			lines[i] = strings.Repeat(" ", n) + l
		}
	}
	return strings.Join(lines, "\n"), nil
}

// secondsOf formats milliseconds: "2s", or "500ms" if they are not whole seconds.
func secondsOf(ms any) (string, error) {
	n, err := toNumber(ms)
	switch {
	case err != nil:
		return "", err
	case math.Mod(n, 1000) == 0:
		return strconv.FormatFloat(n/1000, 'f', -1, 64) + "s", nil
	}
	return strconv.FormatFloat(n, 'f', -1, 64) + "ms", nil
}

func toNumber(v any) (float64, error) {
	switch v := v.(type) {
	case int:
		return float64(v), nil
	case int64:
		return float64(v), nil
	case float64:
		return v, nil
	}
	return 0, errors.New("not a number")
}

func divide(a, b any) (float64, error) {
	x, err := toNumber(a)
	if err != nil {
		return 0, err
	}
	y, err := toNumber(b)
	if err == nil && y == 0 {
		err = errors.New("division by zero")
	}
	if err != nil {
		return 0, err
	}
	return x / y, nil
}

// decimal formats a number with a decimal point, such as 120.0 or 0.1.
func decimal(v any) (string, error) {
	f, err := toNumber(v)
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s, err
}

// textTemplate is a compiled template with a bound on the size of its result.
type textTemplate struct {
	t    *template.Template
	most int
	// usesResult reports that the template uses .result.
	usesResult bool
}

// newTemplate compiles a template that may use the given fields.
func newTemplate(source string, most int, names ...string) (*textTemplate, error) {
	if len(source) > maxTemplate {
		return nil, fmt.Errorf("is %d bytes long, more than %d", len(source), maxTemplate)
	}
	t, err := template.New("template").Funcs(functions).Parse(source)
	if err != nil {
		return nil, errors.New("is invalid: " + strings.TrimPrefix(err.Error(), "template: template:"))
	}
	if len(t.Templates()) > 1 {
		return nil, errors.New("must not define templates")
	}
	c := &textTemplate{t: t, most: most}
	if t.Tree == nil {
		return c, nil
	}
	w := walker{names: names, root: true}
	w.node(t.Root)
	c.usesResult = w.result
	return c, w.err
}

// run executes the template. A result over the bound is an error.
func (t *textTemplate) run(data map[string]any) (string, error) {
	w := &bounded{most: t.most}
	if err := t.t.Execute(w, data); err != nil {
		if errors.Is(err, errTooLong) {
			return "", fmt.Errorf("text is longer than %d bytes: %w", t.most, errdefs.ErrResourceExhausted)
		}
		return "", fmt.Errorf("execute template: %s: %w", strings.TrimPrefix(err.Error(), "template: "),
			errdefs.ErrInternal)
	}
	return w.String(), nil
}

var errTooLong = errors.New("too long")

type bounded struct {
	strings.Builder
	most int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > b.most {
		return 0, errTooLong
	}
	return b.Builder.Write(p)
}

// walker checks the nodes of a template and keeps the first error.
type walker struct {
	names  []string
	root   bool // dot is the data
	result bool
	err    error
}

func (w *walker) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *walker) node(n parse.Node) {
	if n == nil || reflect.ValueOf(n).IsNil() || w.err != nil {
		return
	}
	switch n := n.(type) {
	case *parse.ListNode:
		for _, c := range n.Nodes {
			w.node(c)
		}
	case *parse.ActionNode:
		w.node(n.Pipe)
	case *parse.IfNode:
		w.branch(&n.BranchNode, false)
	case *parse.RangeNode:
		w.branch(&n.BranchNode, true)
	case *parse.WithNode:
		w.branch(&n.BranchNode, true)
	case *parse.TemplateNode:
		w.fail("must not use other templates")
	case *parse.PipeNode:
		for _, c := range n.Cmds {
			for _, a := range c.Args {
				w.node(a)
			}
		}
	case *parse.ChainNode:
		w.node(n.Node)
	case *parse.IdentifierNode:
		if !slices.Contains(templateFuncs, n.Ident) {
			w.fail("calls unknown function %s: use %s", n.Ident, strings.Join(templateFuncs, ", "))
		}
	case *parse.FieldNode:
		if w.root {
			w.name(n.Ident[0])
		}
	case *parse.VariableNode:
		if n.Ident[0] == "$" && len(n.Ident) > 1 {
			w.name(n.Ident[1])
		}
	}
}

func (w *walker) name(name string) {
	if name == "result" {
		w.result = true
	}
	if !slices.Contains(w.names, name) {
		w.fail("uses unknown field .%s%s", name, nearest(name, w.names))
	}
}

// branch walks both branches. If moves is set, the dot changes in the first, as in range and with.
func (w *walker) branch(b *parse.BranchNode, moves bool) {
	w.node(b.Pipe)
	root := w.root
	w.root = root && !moves
	w.node(b.List)
	w.root = root
	w.node(b.ElseList)
}
