package policy

import (
	"maps"
	"path"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// span is a range of bytes in the outer command.
type span struct{ start, end int }

// field is a word as a program receives it.
type field struct {
	text string // may contain marks
	at   span
	bare bool // contains unquoted unknown text: may be several words, or none
	// guess: text is the likely value; the environment may change it.
	guess bool
	// feeds lists the programs whose output is part of the word or of the file it names.
	feeds []string
}

// variable is the known value of a shell variable.
type variable struct {
	text     string
	list     []string // elements of an array
	isList   bool
	exported bool
}

// scope is the state of one shell.
type scope struct {
	vars    map[string]variable
	funcs   map[string]*syntax.FuncDecl
	aliases map[string]string
	zero    string   // $0
	params  []string // $1, $2, ...
	cwd     string   // "" is the directory where the command starts
	ifs     string
	// exports: set -a is active.
	exports bool
	loops   int
}

func newScope() *scope { return &scope{ifs: " \t\n"} }

// fork returns the scope of a subshell, with copies of the maps.
func (r *evaluation) fork(s *scope) *scope {
	r.step(1 + len(s.vars) + len(s.funcs) + len(s.aliases))
	c := *s
	c.vars, c.funcs, c.aliases = maps.Clone(s.vars), maps.Clone(s.funcs), maps.Clone(s.aliases)
	return &c
}

func (s *scope) set(name string, v variable) {
	if s.vars == nil {
		s.vars = map[string]variable{}
	}
	if old, ok := s.vars[name]; ok && old.exported || s.exports {
		v.exported = true
	}
	s.vars[name] = v
	if name == "IFS" && !v.isList {
		s.ifs = v.text
	}
}

// merge adds the variables, functions and aliases that another branch has set. Values that differ
// become unknown.
func (r *evaluation) merge(s, other *scope) {
	r.step(1 + len(s.vars) + len(other.vars))
	for name, v := range other.vars {
		if old, ok := s.vars[name]; !ok || !old.same(v) {
			s.set(name, variable{text: string(anyText), exported: v.exported || old.exported})
		}
	}
	for name := range s.vars {
		if _, ok := other.vars[name]; !ok {
			s.set(name, variable{text: string(anyText)})
		}
	}
	for name, f := range other.funcs {
		s.define(name, f)
	}
	for name, a := range other.aliases {
		s.alias(name, a)
	}
	if s.cwd != other.cwd {
		s.cwd = string(anyText)
	}
	if s.ifs != other.ifs {
		s.ifs = string(anyText)
	}
}

func (v variable) same(o variable) bool {
	if v.text != o.text || v.isList != o.isList || len(v.list) != len(o.list) {
		return false
	}
	for i := range v.list {
		if v.list[i] != o.list[i] {
			return false
		}
	}
	return true
}

func (s *scope) define(name string, f *syntax.FuncDecl) {
	if s.funcs == nil {
		s.funcs = map[string]*syntax.FuncDecl{}
	}
	s.funcs[name] = f
}

func (s *scope) alias(name, text string) {
	if s.aliases == nil {
		s.aliases = map[string]string{}
	}
	s.aliases[name] = text
}

// lookup returns the value of a variable. ok is false if the command does not set it.
func (s *scope) lookup(name string) (variable, bool) {
	if v, ok := s.vars[name]; ok {
		return v, true
	}
	switch name {
	case "HOME":
		return variable{text: "~", exported: true}, true
	case "PWD":
		if s.cwd == "" {
			return variable{text: ".", exported: true}, true
		}
		return variable{text: s.cwd, exported: true}, true
	case "IFS":
		return variable{text: " \t\n"}, true
	}
	return variable{}, false
}

// clean returns a path in the form that globs are compared with: without "//", "/./" and "/../",
// with "~" for the home directory and "." for the directory where the command starts. cwd is the
// directory set by cd.
func clean(p, cwd string) string {
	if p == "" {
		return p
	}
	if cwd != "" && p[0] != '/' && p[0] != '~' && p[0] != '-' && p[0] != anyText {
		p = cwd + "/" + p
	}
	if !strings.Contains(p, "/") {
		return p
	}
	if !certain(p) && strings.Contains(p, "..") {
		return string(anyText)
	}
	switch {
	case strings.HasPrefix(p, "~"):
		home, rest, _ := strings.Cut(p, "/")
		rest = path.Clean(rest)
		switch {
		case rest == ".":
			return home
		case rest == ".." || strings.HasPrefix(rest, "../"):
			return string(anyText)
		}
		return home + "/" + rest
	case strings.HasPrefix(p, "./") && len(p) > 2 && p[2] == anyText:
		return "./" + path.Clean(p[2:])
	}
	return path.Clean(p)
}
