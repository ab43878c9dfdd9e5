package policy

import (
	"encoding/base64"
	"strings"
)

// output returns the output of programs that only copy or print text, or a mark.
func (r *evaluation) output(sc *scope, name string, c *call) string {
	args := c.args()
	switch name {
	case ":", "true":
		return ""
	case "echo":
		return echo(args)
	case "printf":
		return r.printf(sc, args)
	case "tee":
		for _, f := range r.writtenFiles(c) {
			if c.stdin != nil && certain(f.text) {
				r.setFile(f.text, *c.stdin)
			}
		}
	case "cat":
		out := ""
		operands := 0
		for _, a := range args {
			if len(a.text) > 1 && a.text[0] == '-' {
				if strings.Trim(a.text, "-u") != "" {
					return string(anyText)
				}
				continue
			}
			operands++
			switch {
			case a.text == "-" && c.stdin != nil:
				out = r.join(out, *c.stdin)
			case a.text == "-" || a.bare:
				return string(anyText)
			default:
				out = r.join(out, r.fileContent(a.text, sc))
			}
		}
		if operands > 0 {
			return out
		}
	case "base64":
		if c.stdin != nil && known(*c.stdin) && len(args) == 1 &&
			(args[0].text == "-d" || args[0].text == "--decode" || args[0].text == "-D") {
			if b, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(*c.stdin), "")); err == nil {
				return literal(strings.ToValidUTF8(string(b), "\x7f"))
			}
		}
		return string(anyText)
	default:
		return string(anyText)
	}
	if c.stdin != nil {
		return *c.stdin
	}
	return string(anyText)
}

func echo(args []field) string {
	end, escapes := "\n", false
	for len(args) > 0 && len(args[0].text) > 1 && args[0].text[0] == '-' &&
		strings.Trim(args[0].text[1:], "neE") == "" {
		escapes = escapes || strings.Contains(args[0].text, "e")
		if strings.Contains(args[0].text, "n") {
			end = ""
		}
		args = args[1:]
	}
	text := joined(args)
	if escapes && known(text) {
		text = literal(ansi(text, true))
	}
	return text + end
}

// printf returns the output of printf. It supports %s, %b, %d, %q and %%.
func (r *evaluation) printf(sc *scope, args []field) string {
	if len(args) > 1 && args[0].text == "-v" {
		name := args[1].text
		if v := r.printf(sc, args[2:]); known(name) && name != "" {
			sc.set(name, variable{text: v})
		}
		return ""
	}
	if len(args) > 0 && args[0].text == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		return ""
	}
	if !known(args[0].text) {
		return string(anyText)
	}
	format := args[0].text
	args = args[1:]
	var b strings.Builder
	for first := true; first || len(args) > 0; first = false {
		before := len(args)
		rest, ok := printfOnce(&b, format, args)
		if !ok {
			return string(anyText)
		}
		args = rest
		r.step(1 + b.Len()/256)
		if b.Len() > maxText {
			return string(anyText)
		}
		if len(args) == before {
			break
		}
	}
	return b.String()
}

// printfOnce applies format once. It returns the arguments that are left, and false if the format
// has a verb that it does not support.
func printfOnce(b *strings.Builder, format string, args []field) ([]field, bool) {
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			next := strings.IndexByte(format[i+1:], '%')
			if next < 0 {
				next = len(format) - i - 1
			}
			b.WriteString(literal(ansi(format[i:i+1+next], true)))
			i += next
			continue
		}
		i++
		if format[i] == '%' {
			b.WriteByte('%')
			continue
		}
		arg := ""
		if len(args) > 0 {
			arg, args = args[0].text, args[1:]
		}
		switch format[i] {
		case 's', 'd', 'i', 'u', 'c':
			b.WriteString(arg)
		case 'b':
			b.WriteString(literal(ansi(arg, true)))
		case 'q':
			b.WriteString(quote(arg))
		default:
			return nil, false
		}
	}
	return args, true
}
