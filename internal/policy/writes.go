package policy

import (
	"strings"
)

// writtenFiles returns the files that a call writes, by redirections and by its arguments.
func (r *evaluation) writtenFiles(c *call) []field {
	out := c.writes
	if len(c.words) == 0 {
		return out
	}
	program := family(programName(c.words[0].text))
	if !writers[program] {
		return out
	}
	args := c.args()
	r.step(len(args) / 2)
	for _, f := range targets(program, args, operandsOf(args)) {
		f.text = clean(f.text, r.cwd)
		out = append(out[:len(out):len(out)], f)
	}
	return out
}

// operandsOf returns the arguments that are not flags.
func operandsOf(args []field) []field {
	var operands []field
	for i := 0; i < len(args); i++ {
		if s := args[i].text; s == "--" {
			return append(operands, args[i+1:]...)
		} else if len(s) < 2 || s[0] != '-' {
			operands = append(operands, args[i])
		}
	}
	return operands
}

// targets returns the files that the program writes, from its arguments.
func targets(program string, args, operands []field) []field {
	var flags []string
	switch program {
	case "tee", "truncate", "touch", "sponge", "mkdir":
		return operands
	case "cp", "mv", "install", "ln", "rsync", "scp":
		return copyTarget(args, operands)
	case "dd":
		var out []field
		for _, o := range operands {
			if name, ok := strings.CutPrefix(o.text, "of="); ok {
				o.text = name
				out = append(out, o)
			}
		}
		return out
	case "sed", "perl":
		for _, a := range args {
			if hasAnyPrefix(a.text, "-i", "--in-place", "-pi", "-ni") {
				return operands
			}
		}
	case "curl", "sort":
		flags = []string{"-o", "--output"}
	case "wget":
		flags = []string{"-O", "--output-document"}
	}
	if f, ok := flagValue(args, flags...); ok {
		return []field{f}
	}
	return nil
}

// copyTarget returns the target of cp and similar programs.
func copyTarget(args, operands []field) []field {
	if f, ok := flagValue(args, "-t", "--target-directory"); ok {
		f.text = strings.TrimSuffix(f.text, "/") + "/" + string(anyName)
		return []field{f}
	}
	if len(operands) < 2 {
		return nil
	}
	f := operands[len(operands)-1]
	if strings.HasSuffix(f.text, "/") || f.text == "/etc" {
		// The target is a directory: the file keeps its name.
		f.text = strings.TrimSuffix(f.text, "/") + "/" + programName(operands[0].text)
	}
	return []field{f}
}

func hasAnyPrefix(s string, prefixes ...string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

// writers lists the programs that writtenFiles understands.
var writers = map[string]bool{
	"tee": true, "truncate": true, "touch": true, "sponge": true, "mkdir": true, "cp": true, "mv": true,
	"install": true, "ln": true, "rsync": true,
	"scp": true, "dd": true, "sed": true, "perl": true, "curl": true, "wget": true, "sort": true,
}
