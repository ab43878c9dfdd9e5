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

// Check returns nil if argv may run. It does no I/O: relative paths are taken as relative to Root,
// and links are not resolved.
func (r Rules) Check(argv []string) *Refusal {
	c := checker{rules: r}
	return c.check(argv)
}

// CheckHere is like Check for a program about to run in cwd. It also resolves symbolic links: paths
// must be in Root after that.
func (r Rules) CheckHere(argv []string, cwd string) *Refusal {
	c := checker{rules: r, cwd: cwd, resolveLinks: true}
	if r.Root != "" {
		root, err := filepath.EvalSymlinks(r.Root)
		if err != nil {
			return &Refusal{Class: ClassPath, Message: "the workspace does not exist"}
		}
		c.realRoot = root
		if at, err := resolve(cwd); err != nil || !isWithin(c.realRoot, at) {
			return &Refusal{Class: ClassPath, Message: "the working directory is outside the workspace"}
		}
	}
	return c.check(argv)
}

// checker is the state of one check.
type checker struct {
	rules        Rules
	cwd          string
	resolveLinks bool
	realRoot     string // Root with links resolved

	name         string
	program      Program
	index        int
	operands     int
	patternGiven bool // a flag gave the pattern, so the first operand is not one
}

// refusedFlag is the format of the message for DenyFlags.
const refusedFlag = "%s: flag %s is not allowed, because it does more than read the workspace"

func (c *checker) refuse(class, format string, args ...any) *Refusal {
	return &Refusal{Class: class, Program: c.name, Message: fmt.Sprintf(format, args...), Index: c.index}
}

func (c *checker) check(argv []string) *Refusal {
	if len(argv) == 0 || argv[0] == "" {
		return &Refusal{Class: ClassEmpty, Message: "the command is empty"}
	}
	total := 0
	for _, a := range argv {
		total += len(a) + 1
	}
	if len(argv) > MaxArgs || total > MaxBytes {
		return &Refusal{Class: ClassLimit, Message: "too many arguments, or arguments too long"}
	}
	for i, a := range argv {
		if strings.IndexByte(a, 0) >= 0 {
			return &Refusal{Class: ClassArgument, Message: "an argument contains a NUL byte", Index: i}
		}
	}
	c.name = display(argv[0])
	p, ok := c.rules.Programs[argv[0]]
	if !ok {
		return c.refuse(ClassAllowList, "command %s is not allowed. Allowed: %s", strconv.Quote(c.name),
			strings.Join(c.rules.Names(), ", "))
	}
	c.program = p
	if c.program.SingleDash {
		return c.singleDash(argv)
	}
	return c.flags(argv)
}

// flags checks an argument vector in the way getopt_long parses it.
func (c *checker) flags(argv []string) *Refusal {
	c.patternGiven = c.hasPatternFlag(argv)
	rest := false
	for c.index = 1; c.index < len(argv); c.index++ {
		a := argv[c.index]
		var no *Refusal
		switch {
		case rest || len(a) < 2 || a[0] != '-':
			no = c.operand(a)
		case c.program.FlagsFirst && c.operands > 0:
			no = c.lateFlag(a, argv)
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

// lateFlag checks an operand of a FlagsFirst program that looks like a flag.
func (c *checker) lateFlag(a string, argv []string) (no *Refusal) {
	at := c.index
	switch {
	case a == "--":
	case a[1] == '-':
		no = c.long(a, argv)
	default:
		no = c.cluster(a, argv)
	}
	if c.index = at; no != nil { // a word taken as value is an operand too
		return no
	}
	return c.operand(a)
}

// hasPatternFlag reports whether a flag gives the pattern or script, so that no operand does.
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
				if c.takesValue(short) {
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

func (c *checker) takesValue(flag string) bool {
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

// find returns the long flag of list that name equals or abbreviates, or "".
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
		return c.refuse(ClassArgument, refusedFlag, c.name, f)
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
			return c.refuse(ClassArgument, refusedFlag, c.name, display(short))
		}
		if !c.takesValue(short) {
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
	// An unlisted flag may have a path attached.
	if at := strings.IndexAny(a, "/~"); at > 0 {
		if dots := strings.Index(a, ".."); dots > 0 && dots < at {
			at = dots
		}
		return c.path(a[at:])
	}
	return nil
}

// singleDash checks the words of find.
func (c *checker) singleDash(argv []string) *Refusal {
	p := &c.program
	for c.index = 1; c.index < len(argv); c.index++ {
		a := argv[c.index]
		switch {
		case has(p.DenyFlags, a):
			return c.refuse(ClassArgument, refusedFlag, c.name, display(a))
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
				return c.refuse(ClassArgument, "%s is not a flag of %s", display(a), c.name)
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
			return c.refuse(ClassArgument, "%s: arguments that start with %s are not allowed", c.name, display(d))
		}
	}
	c.operands++
	if p.MaxOperands > 0 && c.operands > p.MaxOperands {
		return c.refuse(ClassArgument, "%s: at most %d file is allowed, because another one would be written",
			c.name, p.MaxOperands)
	}
	first := c.operands == 1 && !c.patternGiven
	switch p.Operands {
	case Text:
		return nil
	case None:
		return c.refuse(ClassArgument, "%s: arguments are not allowed", c.name)
	case Assignments:
		if name, _, ok := strings.Cut(a, "="); !ok || name == "" || strings.Contains(name, "/") {
			return c.refuse(ClassArgument, "%s: only NAME=value arguments are allowed", c.name)
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

// path checks that a path is in Root.
func (c *checker) path(p string) *Refusal {
	root := c.rules.Root
	if root == "" || p == "" || p == "-" {
		return nil
	}
	out := c.refuse(ClassPath, "path %s is outside the workspace", strconv.Quote(display(p)))
	if p[0] == '~' {
		return out
	}
	full := p
	if !path.IsAbs(p) {
		base := root
		if c.resolveLinks {
			base = c.cwd
		}
		full = base + "/" + p
	}
	if !isWithin(root, path.Clean(full)) && !c.resolveLinks {
		return out
	}
	if !c.resolveLinks {
		return nil
	}
	// "a/../b" leaves by the target of a link a: resolve links as the kernel does.
	at, err := resolve(full)
	if err != nil || !isWithin(c.realRoot, at) {
		return out
	}
	if info, err := os.Lstat(at); c.program.FilesOnly && err == nil && info.IsDir() {
		return c.refuse(ClassPath, "%s: directories are not allowed, because links in them may leave the workspace",
			c.name)
	}
	return nil
}

func isWithin(root, p string) bool {
	return p == root || root == "/" || strings.HasPrefix(p, root+"/")
}

// maxLinks is the kernel's limit on links in one path.
const maxLinks = 40

// resolve follows the links of a path as the kernel does. Components that do not exist stay as they
// are.
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

// show truncates s for a message and makes it valid UTF-8.
func display(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most] + "…"
	}
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "?")
	}
	return s
}
