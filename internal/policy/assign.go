package policy

import (
	"slices"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// arithm walks the code inside arithmetic. Variables that it assigns become unknown.
func (r *evaluation) arithm(sc *scope, x syntax.ArithmExpr) {
	if x == nil {
		return
	}
	r.enter()
	defer r.leave()
	switch x := x.(type) {
	case *syntax.BinaryArithm:
		r.assigned(sc, x.X)
		r.arithm(sc, x.X)
		r.arithm(sc, x.Y)
	case *syntax.UnaryArithm:
		r.assigned(sc, x.X)
		r.arithm(sc, x.X)
	case *syntax.ParenArithm:
		r.arithm(sc, x.X)
	case *syntax.FlagsArithm:
		r.arithm(sc, x.X)
	case *syntax.Word:
		if x != nil {
			r.text(sc, x)
		}
	}
}

func (r *evaluation) assigned(sc *scope, x syntax.ArithmExpr) {
	if w, ok := x.(*syntax.Word); ok && w != nil {
		if name := w.Lit(); name != "" {
			if _, set := sc.vars[name]; set {
				sc.set(name, variable{text: string(anyName)})
			}
		}
	}
}

// assign carries out an assignment.
func (r *evaluation) assign(sc *scope, a *syntax.Assign) {
	if a.Index != nil {
		r.arithm(sc, a.Index)
	}
	if a.Name == nil {
		if a.Value != nil {
			r.text(sc, a.Value)
		}
		return
	}
	name := a.Name.Value
	old := sc.vars[name]
	v := variable{exported: old.exported}
	switch {
	case a.Array != nil:
		v.isList = true
		if a.Append {
			v.list = append(v.list, old.list...)
		}
		for _, e := range a.Array.Elems {
			if e.Index != nil {
				r.arithm(sc, e.Index)
			}
			if e.Value == nil {
				continue
			}
			for _, f := range r.word(sc, e.Value, nil) {
				v.list = append(v.list, f.text)
			}
		}
		r.step(len(v.list))
	case a.Index != nil:
		r.text(sc, a.Value)
		v.isList, v.list = true, []string{string(anyText)}
	default:
		if a.Naked && a.Value == nil {
			return
		}
		v.text = r.text(sc, a.Value).text
		if a.Append {
			if old.isList {
				v.isList, v.list = true, slices.Concat(old.list, []string{v.text})
			} else if v.text = old.text + v.text; len(v.text) > maxText {
				v.text = string(anyText)
			}
			r.step(len(v.text) / 64)
		}
	}
	r.walkEnvCode(name, v.text, r.where(a))
	sc.set(name, v)
}

// declare handles export, declare, local and similar builtins.
func (r *evaluation) declare(sc *scope, c *syntax.DeclClause) {
	exports := c.Variant.Value == "export"
	reference := c.Variant.Value == "nameref"
	r.judgeBuiltin(c.Variant.Value, r.where(c))
	for _, a := range c.Args {
		if a.Naked && a.Name == nil {
			flag := r.text(sc, a.Value).text
			exports = exports || strings.HasPrefix(flag, "-") && strings.Contains(flag, "x")
			reference = reference || strings.HasPrefix(flag, "-") && strings.ContainsAny(flag, "nulc")
			continue
		}
		r.assign(sc, a)
		if a.Name == nil {
			continue
		}
		if v, ok := sc.vars[a.Name.Value]; ok {
			v.exported = v.exported || exports
			if reference {
				v = variable{text: string(anyText), exported: v.exported}
			}
			sc.set(a.Name.Value, v)
		}
	}
}
