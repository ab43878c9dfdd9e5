package argv

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Check says whether argv may run; nil is yes. It looks at names only: paths
// are taken as if the program ran in Root.
func (r Rules) Check(argv []string) *Refusal {
	c := checker{rules: r}
	return c.check(argv)
}

// CheckHere is Check where the program is about to run, in cwd: symbolic links
// on the way to a path must not leave Root either.
func (r Rules) CheckHere(argv []string, cwd string) *Refusal {
	c := checker{rules: r, cwd: cwd, here: true}
	if r.Root != "" {
		root, err := filepath.EvalSymlinks(r.Root)
		if err != nil {
			return &Refusal{Class: ClassPath, Message: "the workspace is not there"}
		}
		c.real = root
		if at, err := resolve(cwd); err != nil || !below(c.real, at) {
			return &Refusal{Class: ClassPath, Message: "the working directory is outside the workspace"}
		}
	}
	return c.check(argv)
}

type checker struct {
	rules Rules
	cwd   string
	here  bool
	real  string // Root without links

	name     string
	program  Program
	index    int
	operands int
	pattern  bool // the first operand is no pattern any more
}

func (c *checker) refuse(class, format string, args ...any) *Refusal {
	return &Refusal{Class: class, Program: c.name, Message: fmt.Sprintf(format, args...), Index: c.index}
}

func (c *checker) check(argv []string) *Refusal {
	if len(argv) == 0 || argv[0] == "" {
		return &Refusal{Class: ClassEmpty, Message: "there is no command"}
	}
	total := 0
	for _, a := range argv {
		total += len(a) + 1
	}
	if len(argv) > MaxArgs || total > MaxBytes {
		return &Refusal{Class: ClassLimit, Message: "there are too many arguments, or they are too long"}
	}
	for i, a := range argv {
		if strings.IndexByte(a, 0) >= 0 {
			return &Refusal{Class: ClassArgument, Message: "an argument holds a NUL byte", Index: i}
		}
	}
	c.name = show(argv[0])
	p, ok := c.rules.Programs[argv[0]]
	if !ok {
		return c.refuse(ClassAllowList, "command %s is not allowed. Allowed: %s", strconv.Quote(c.name), strings.Join(c.rules.Names(), ", "))
	}
	c.program = p
	if c.program.SingleDash {
		return c.singleDash(argv)
	}
	return c.flags(argv)
}

// flags goes through an argument vector as getopt_long would.
func (c *checker) flags(argv []string) *Refusal {
	c.pattern = c.hasPatternFlag(argv)
	rest := false
	for c.index = 1; c.index < len(argv); c.index++ {
		a := argv[c.index]
		var no *Refusal
		switch {
		case rest || len(a) < 2 || a[0] != '-':
			no = c.operand(a)
		case c.program.FlagsFirst && c.operands > 0:
			no = c.late(a, argv)
		case a == "--":
			rest = true
		case a[1] == '-':
			no = c.long(a, argv)
		default:
			no = c.cluster(a, argv)
		}
		if no != nil {
			return no
		}
	}
	return nil
}

// late is for an operand of a FlagsFirst program that looks like a flag.
func (c *checker) late(a string, argv []string) (no *Refusal) {
	at := c.index
	switch {
	case a == "--":
	case a[1] == '-':
		no = c.long(a, argv)
	default:
		no = c.cluster(a, argv)
	}
	if c.index = at; no != nil { // whatever it took for a value is an operand too
		return no
	}
	return c.operand(a)
}

// hasPatternFlag: a flag gives the pattern or script, so that no operand does.
func (c *checker) hasPatternFlag(argv []string) bool {
	if len(c.program.PatternFlags) == 0 {
		return false
	}
	for i := 1; i < len(argv); i++ {
		a := argv[i]
		switch {
		case a == "--":
			return false
		case len(a) < 2 || a[0] != '-':
			if c.program.FlagsFirst {
				return false
			}
		case a[1] == '-':
			name, _, glued := strings.Cut(a, "=")
			if f := find(c.program.PatternFlags, name); f != "" {
				return true
			}
			if !glued && (find(c.program.ValueFlags, name) != "" || find(c.program.PathFlags, name) != "") {
				i++
			}
		default:
			for j := 1; j < len(a); j++ {
				short := "-" + a[j:j+1]
				if has(c.program.PatternFlags, short) {
					return true
				}
				if c.takes(short) {
					if j+1 == len(a) {
						i++
					}
					break
				}
			}
		}
	}
	return false
}

func (c *checker) takes(flag string) bool {
	return has(c.program.ValueFlags, flag) || has(c.program.PathFlags, flag)
}

func has(list []string, s string) bool {
	for _, l := range list {
		if l == s || strings.HasSuffix(l, "*") && strings.HasPrefix(s, l[:len(l)-1]) {
			return true
		}
	}
	return false
}

// find gives the long flag of list that name is, or is a prefix of.
func find(list []string, name string) string {
	if has(list, name) {
		return name
	}
	if len(name) > 2 {
		for _, l := range list {
			if strings.HasPrefix(l, "--") && strings.HasPrefix(l, name) {
				return l
			}
		}
	}
	return ""
}

func (c *checker) long(a string, argv []string) *Refusal {
	p := &c.program
	name, value, glued := strings.Cut(a, "=")
	exact := has(p.ValueFlags, name) || has(p.PathFlags, name)
	if f := find(p.DenyFlags, name); f != "" && (!exact || f == name) {
		return c.refuse(ClassArgument, "%s does not take %s here: by it the program would do more than read the workspace", c.name, f)
	}
	isPath, isValue := find(p.PathFlags, name) != "", find(p.ValueFlags, name) != ""
	isPattern := find(p.PatternFlags, name) != "" && p.Script != ""
	switch {
	case !glued && (isPath || isValue) && c.index+1 < len(argv):
		c.index++
		value = argv[c.index]
	case !glued:
		return nil
	}
	switch {
	case isPattern:
		return c.script(value)
	case isValue && !isPath:
		return nil
	}
	return c.path(value)
}

func (c *checker) cluster(a string, argv []string) *Refusal {
	p := &c.program
	for j := 1; j < len(a); j++ {
		short := "-" + a[j:j+1]
		if has(p.DenyFlags, short) {
			return c.refuse(ClassArgument, "%s does not take %s here: by it the program would do more than read the workspace", c.name, show(short))
		}
		if !c.takes(short) {
			continue
		}
		value := a[j+1:]
		if value == "" {
			if c.index+1 == len(argv) {
				return nil
			}
			c.index++
			value = argv[c.index]
		}
		switch {
		case has(p.PatternFlags, short) && p.Script != "":
			return c.script(value)
		case has(p.PathFlags, short):
			return c.path(value)
		}
		return nil
	}
	// A value may be glued to a flag that nobody named.
	if at := strings.IndexAny(a, "/~"); at > 0 {
		if dots := strings.Index(a, ".."); dots > 0 && dots < at {
			at = dots
		}
		return c.path(a[at:])
	}
	return nil
}

// singleDash goes through the words of find.
func (c *checker) singleDash(argv []string) *Refusal {
	p := &c.program
	for c.index = 1; c.index < len(argv); c.index++ {
		a := argv[c.index]
		switch {
		case has(p.DenyFlags, a):
			return c.refuse(ClassArgument, "%s does not take %s here: by it the program would do more than read the workspace", c.name, show(a))
		case has(p.PathFlags, a):
			if c.index++; c.index < len(argv) {
				if no := c.path(argv[c.index]); no != nil {
					return no
				}
			}
		case has(p.ValueFlags, a):
			c.index++
		case len(a) > 1 && a[0] == '-':
			if strings.ContainsAny(a, "/~") {
				return c.refuse(ClassArgument, "%s is no flag of %s", show(a), c.name)
			}
		case a == "(" || a == ")" || a == "!" || a == ",":
		default:
			if no := c.operand(a); no != nil {
				return no
			}
		}
	}
	return nil
}

func (c *checker) operand(a string) *Refusal {
	p := &c.program
	for _, d := range p.DenyOperands {
		if strings.HasPrefix(a, d) {
			return c.refuse(ClassArgument, "%s does not take an argument that begins with %s here", c.name, show(d))
		}
	}
	c.operands++
	if p.MaxOperands > 0 && c.operands > p.MaxOperands {
		return c.refuse(ClassArgument, "%s takes at most %d file here: another one it would write", c.name, p.MaxOperands)
	}
	first := c.operands == 1 && !c.pattern
	switch p.Operands {
	case Text:
		return nil
	case None:
		return c.refuse(ClassArgument, "%s takes no argument here", c.name)
	case Assignments:
		if name, _, ok := strings.Cut(a, "="); !ok || name == "" || strings.Contains(name, "/") {
			return c.refuse(ClassArgument, "%s runs no program here: only NAME=value may follow", c.name)
		}
		return nil
	case PatternFirst:
		if first && p.Script == "" {
			return nil
		}
	}
	if first && p.Script != "" {
		return c.script(a)
	}
	return c.path(a)
}

// path says whether a path is in Root.
func (c *checker) path(p string) *Refusal {
	root := c.rules.Root
	if root == "" || p == "" || p == "-" {
		return nil
	}
	out := c.refuse(ClassPath, "path %s is outside the workspace", strconv.Quote(show(p)))
	if p[0] == '~' {
		return out
	}
	full := p
	if !path.IsAbs(p) {
		base := root
		if c.here {
			base = c.cwd
		}
		full = base + "/" + p
	}
	if !below(root, path.Clean(full)) && !c.here {
		return out
	}
	if !c.here {
		return nil
	}
	// "a/../b" leaves by way of what a links to: the system's reading counts.
	at, err := resolve(full)
	if err != nil || !below(c.real, at) {
		return out
	}
	if info, err := os.Lstat(at); c.program.FilesOnly && err == nil && info.IsDir() {
		return c.refuse(ClassPath, "%s takes no folder here: links in it may lead outside the workspace", c.name)
	}
	return nil
}

func below(root, p string) bool {
	return p == root || root == "/" || strings.HasPrefix(p, root+"/")
}

// maxLinks is what the kernel follows too.
const maxLinks = 40

// resolve follows the links of a path as the kernel would; what does not exist
// stays as it is written.
func resolve(p string) (string, error) {
	todo := strings.Split(p, "/")
	at := "/"
	links := 0
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, name)
		info, err := os.Lstat(next)
		if err != nil || info.Mode()&os.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("resolve: too many links")
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", fmt.Errorf("resolve: %w", err)
		}
		if path.IsAbs(target) {
			at = "/"
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return at, nil
}

// show bounds a text for a message, and keeps it printable.
func show(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "?")
	}
	return s
}
