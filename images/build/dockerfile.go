// Package build prepares builds from a Dockerfile for a Docker Engine: it packs
// the context, finds the images that the Dockerfile is based on, and names them
// anew, so that the engine fetches none by itself: what a build starts from
// comes from the store, and goes by its rules.
//
// It runs nothing and starts no goroutine. Errors
// are of class InvalidArgument.
package build

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Dockerfile is one that was read for its bases.
type Dockerfile struct {
	lines []string
	bases []base
}

// base is where an image is named.
type base struct {
	line     int
	from, to int // in the line
	ref      string
}

// scratch is the base that is no image.
const scratch = "scratch"

var (
	escapeLine = regexp.MustCompile(`^#\s*escape\s*=\s*(\S)\s*$`)
	directive  = regexp.MustCompile(`^#\s*([A-Za-z][A-Za-z0-9]*)\s*=`)
	fromLine   = regexp.MustCompile(`(?i)^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?\s*$`)
	argLine    = regexp.MustCompile(`(?i)^\s*ARG\s+(.+)$`)
	copyFrom   = regexp.MustCompile(`(?i)^\s*(?:ONBUILD\s+)?(?:COPY|ADD|RUN)\s+(?:--\S+\s+)*?--(?:from=|mount=\S*from=)`)
	fromFlag   = regexp.MustCompile(`(?i)^\s*(?:ONBUILD\s+)?COPY\s+(?:--\S+\s+)*?--from=(\S+)`)
	number     = regexp.MustCompile(`^[0-9]+$`)
)

// Parse reads a Dockerfile; args are the build arguments. What names an image
// has to stand on one line, and its variables have to be known.
func Parse(text []byte, args map[string]string) (*Dockerfile, error) {
	d := &Dockerfile{lines: strings.Split(string(text), "\n")}
	known := map[string]string{}
	var stages []string
	escape, head, going, found := `\`, true, false, false
	for i, full := range d.lines {
		line := strings.TrimRight(full, "\r")
		bare := strings.TrimSpace(line)
		if head {
			if m := escapeLine.FindStringSubmatch(bare); m != nil {
				escape = m[1]
			}
			head = directive.MatchString(bare)
		}
		if bare == "" || strings.HasPrefix(bare, "#") {
			continue // also within an instruction
		}
		first := !going
		going = strings.HasSuffix(strings.TrimRight(line, " \t"), escape)
		if !first {
			if strings.Contains(strings.ToLower(bare), "--from=") {
				return nil, bad("line %d: --from has to stand on the first line of its instruction", i+1)
			}
			continue
		}
		word, _, _ := strings.Cut(bare, " ")
		word, _, _ = strings.Cut(word, "\t")
		switch strings.ToUpper(word) {
		case "FROM":
			m := fromLine.FindStringSubmatchIndex(line)
			if m == nil || going {
				return nil, bad("line %d: FROM has to be on one line: FROM IMAGE [AS NAME]", i+1)
			}
			ref, err := expand(line[m[2]:m[3]], known)
			if err != nil {
				return nil, bad("line %d: %v", i+1, err)
			}
			if !strings.EqualFold(ref, scratch) && !slices.Contains(stages, strings.ToLower(ref)) {
				d.bases = append(d.bases, base{i, m[2], m[3], ref})
			}
			name := ""
			if m[4] >= 0 {
				name = strings.ToLower(line[m[4]:m[5]])
			}
			stages, found = append(stages, name), true
		case "ARG":
			if m := argLine.FindStringSubmatch(line); m != nil && !found {
				for _, one := range strings.Fields(m[1]) {
					name, value, has := strings.Cut(one, "=")
					if given, ok := args[name]; ok {
						value, has = given, true
					}
					if has {
						value, err := expand(strings.Trim(value, `"'`), known)
						if err != nil {
							return nil, bad("line %d: %v", i+1, err)
						}
						known[name] = value
					}
				}
			}
		default:
			if !copyFrom.MatchString(line) {
				continue
			}
			m := fromFlag.FindStringSubmatchIndex(line)
			if m == nil {
				return nil, bad("line %d: only COPY takes --from here; mounts need BuildKit", i+1)
			}
			ref := line[m[2]:m[3]]
			if strings.Contains(ref, "$") {
				return nil, bad("line %d: --from cannot hold a variable", i+1)
			}
			if !number.MatchString(ref) && !slices.Contains(stages, strings.ToLower(ref)) {
				d.bases = append(d.bases, base{i, m[2], m[3], ref})
			}
		}
	}
	if !found {
		return nil, bad("it has no FROM")
	}
	return d, nil
}

// Bases are the images that it names, each once.
func (d *Dockerfile) Bases() []string {
	var out []string
	for _, b := range d.bases {
		if !slices.Contains(out, b.ref) {
			out = append(out, b.ref)
		}
	}
	return out
}

// Renamed is the text with each base under another name.
func (d *Dockerfile) Renamed(names map[string]string) []byte {
	lines := slices.Clone(d.lines)
	for _, b := range slices.Backward(d.bases) {
		lines[b.line] = lines[b.line][:b.from] + names[b.ref] + lines[b.line][b.to:]
	}
	return []byte(strings.Join(lines, "\n"))
}

var variable = regexp.MustCompile(`\$(?:(\w+)|\{(\w+)(?::([-+])([^}]*))?\})`)

// expand puts build arguments in; one that is not known is an error.
func expand(s string, known map[string]string) (string, error) {
	var missing string
	out := variable.ReplaceAllStringFunc(s, func(v string) string {
		m := variable.FindStringSubmatch(v)
		value, ok := known[m[1]+m[2]]
		switch {
		case m[3] == "-" && value == "":
			return m[4]
		case m[3] == "+" && value != "":
			return m[4]
		case m[3] == "+":
			return ""
		case !ok:
			missing = m[1] + m[2]
		}
		return value
	})
	if missing != "" {
		return "", fmt.Errorf("%q is not known: give it with --build-arg %s=…", missing, missing)
	}
	if strings.Contains(out, "$") {
		return "", fmt.Errorf("%q has a variable that cannot be read", s)
	}
	return out, nil
}

func bad(format string, args ...any) error {
	return fmt.Errorf("dockerfile: %s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}
