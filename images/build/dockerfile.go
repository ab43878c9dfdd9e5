// Package build prepares builds from a Dockerfile for a Docker Engine: it packs
// the context, finds the images that the Dockerfile is based on, and names them
// anew, so that the engine fetches none by itself: what a build starts from
// comes from the store, and goes by its rules.
//
// It runs nothing and starts no goroutine. Errors
// are of class InvalidArgument.
package build

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
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
	// own says that it is no image but scratch or a stage, and written out.
	own bool
}

// scratch is the base that is no image.
const scratch = "scratch"

var (
	fromLine = regexp.MustCompile(`(?i)^[ \t]*FROM[ \t]+(?:--[^\s"'\\]+[ \t]+)*(\S+)(?:[ \t]+AS[ \t]+(\S+))?[ \t]*$`)
	argLine  = regexp.MustCompile(`(?i)^\s*ARG\s+(.+)$`)
	fromFlag = regexp.MustCompile(`(?i)^[ \t]*(?:ONBUILD[ \t]+)?COPY[ \t]+(?:--\S+[ \t]+)*?--from=(\S+)`)
	number   = regexp.MustCompile(`^[0-9]+$`)
)

// reader reads a Dockerfile.
type reader struct {
	*Dockerfile
	args, known map[string]string
	stages      []string // by name, "" for one that has none
}

// Parse reads a Dockerfile; args are the build arguments. What names an image
// has to stand on one line, and its variables have to be known.
func Parse(text []byte, args map[string]string) (*Dockerfile, error) {
	const mark = "\ufeff" // engines do not read it, and we hand none on
	d := &reader{&Dockerfile{lines: strings.Split(strings.TrimPrefix(string(text), mark), "\n")}, args, map[string]string{}, nil}
	list, err := instructions(d.lines)
	if err != nil {
		return nil, err
	}
	for _, in := range list {
		name, rest := word(in.text)
		if name == "ONBUILD" {
			name, rest = word(rest)
		}
		var err error
		switch name {
		case "FROM":
			err = d.from(in)
		case "ARG":
			err = d.arg(in.first)
		case "COPY", "ADD", "RUN":
			err = d.takes(in, name, rest)
		}
		if err != nil {
			return nil, bad("line %d: %v", in.at+1, err)
		}
	}
	if len(d.stages) == 0 {
		return nil, bad("it has no FROM")
	}
	return d.Dockerfile, nil
}

func (d *reader) from(in instruction) error {
	m := fromLine.FindStringSubmatchIndex(in.first)
	if m == nil || in.long {
		return errors.New("FROM has to be on one line: FROM IMAGE [AS NAME]")
	}
	written := in.first[m[2]:m[3]]
	ref, err := expand(written, d.known)
	if err != nil {
		return err
	}
	if ref == "" {
		return fmt.Errorf("%s is empty: it has to name an image", clip(written))
	}
	own := strings.EqualFold(ref, scratch) || slices.Contains(d.stages, strings.ToLower(ref))
	if !own || ref != written { // the engine may know other values
		d.bases = append(d.bases, base{in.at, m[2], m[3], ref, own})
	}
	name := ""
	if m[4] >= 0 {
		name = strings.ToLower(in.first[m[4]:m[5]])
	}
	d.stages = append(d.stages, name)
	return nil
}

// arg notes what FROM can use.
func (d *reader) arg(line string) error {
	m := argLine.FindStringSubmatch(line)
	if m == nil || len(d.stages) > 0 {
		return nil
	}
	for _, one := range strings.Fields(m[1]) {
		name, value, has := strings.Cut(one, "=")
		if given, ok := d.args[name]; ok {
			value, has = given, true
		}
		if has {
			value, err := expand(strings.Trim(value, `"'`), d.known)
			if err != nil {
				return err
			}
			d.known[name] = value
		}
	}
	return nil
}

// takes finds the image that an instruction takes files from.
func (d *reader) takes(in instruction, name, rest string) error {
	found := strings.Count(unquoted(rest), "--from")
	switch {
	case hasHeredoc(rest):
		return errors.New("a text after << needs BuildKit")
	case name == "RUN" && takesMount(rest):
		return errors.New("only COPY takes --from here; mounts need BuildKit")
	case name == "RUN" || found == 0:
		return nil
	case name != "COPY":
		return errors.New("only COPY takes --from here")
	}
	m := fromFlag.FindStringSubmatchIndex(in.first)
	if m == nil || found > 1 {
		return errors.New("--from has to stand once and on the first line of its instruction, without quotes: COPY --from=IMAGE")
	}
	ref := in.first[m[2]:m[3]]
	earlier := d.stages[:max(0, len(d.stages)-1)]
	switch n, err := strconv.Atoi(ref); {
	case strings.Contains(ref, "$"):
		return errors.New("--from cannot hold a variable")
	case number.MatchString(ref) && (err != nil || n >= len(earlier)):
		return fmt.Errorf("--from=%s: there is no such stage before it", clip(ref))
	case number.MatchString(ref), slices.Contains(earlier, strings.ToLower(ref)):
		return nil
	}
	d.bases = append(d.bases, base{in.at, m[2], m[3], ref, false})
	return nil
}

// Bases are the images that it names, each once.
func (d *Dockerfile) Bases() []string {
	var out []string
	for _, b := range d.bases {
		if !b.own && !slices.Contains(out, b.ref) {
			out = append(out, b.ref)
		}
	}
	return out
}

// Renamed is the text with each base under another name.
func (d *Dockerfile) Renamed(names map[string]string) []byte {
	lines := slices.Clone(d.lines)
	for _, b := range slices.Backward(d.bases) {
		name := b.ref
		if !b.own {
			name = names[b.ref]
		}
		lines[b.line] = lines[b.line][:b.from] + name + lines[b.line][b.to:]
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

// clip keeps foreign text in messages short.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}
