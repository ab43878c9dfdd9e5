// Package build prepares Dockerfile builds for a Docker Engine. It packs the context, finds the
// base images of the Dockerfile and renames them to images from the store. So the engine downloads
// no image, and the rules of the store apply to every base.
//
// The package runs nothing and starts no goroutine. Errors have class InvalidArgument.
package build

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// Dockerfile is a parsed Dockerfile.
type Dockerfile struct {
	lines []string
	bases []base
}

// base is a place that names an image.
type base struct {
	line     int
	from, to int // byte range in the line
	ref      string
	// own reports that it names scratch or a stage, spelled out without variables.
	own bool
}

// scratch is the name of the empty base.
const scratch = "scratch"

var (
	fromLine = regexp.MustCompile(`(?i)^[ \t]*FROM[ \t]+(?:--[^\s"'\\]+[ \t]+)*(\S+)(?:[ \t]+AS[ \t]+(\S+))?[ \t]*$`)
	argLine  = regexp.MustCompile(`(?i)^\s*ARG\s+(.+)$`)
	fromFlag = regexp.MustCompile(`(?i)^[ \t]*(?:ONBUILD[ \t]+)?COPY[ \t]+(?:--\S+[ \t]+)*?--from=(\S+)`)
	number   = regexp.MustCompile(`^[0-9]+$`)
)

// parser is the state of Parse.
type parser struct {
	*Dockerfile
	args, known map[string]string
	stages      []string // names, or "" for a stage without one
}

// Parse parses a Dockerfile with the given build arguments. An instruction that names an image must
// be on one line, and its variables must be defined.
func Parse(text []byte, args map[string]string) (*Dockerfile, error) {
	const mark = "\ufeff" // a byte order mark, which is not passed on
	d := &parser{&Dockerfile{lines: strings.Split(strings.TrimPrefix(string(text), mark), "\n")},
		args, map[string]string{}, nil}
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
			err = d.copies(in, name, rest)
		}
		if err != nil {
			return nil, bad("line %d: %v", in.at+1, err)
		}
	}
	if len(d.stages) == 0 {
		return nil, bad("FROM not found")
	}
	return d.Dockerfile, nil
}

func (d *parser) from(in instruction) error {
	m := fromLine.FindStringSubmatchIndex(in.first)
	if m == nil || in.long {
		return errors.New("FROM must be on one line: FROM IMAGE [AS NAME]")
	}
	written := in.first[m[2]:m[3]]
	ref, err := expand(written, d.known)
	if err != nil {
		return err
	}
	if ref == "" {
		return fmt.Errorf("%s is empty: it must name an image", clip.Message(written))
	}
	own := strings.EqualFold(ref, scratch) || slices.Contains(d.stages, strings.ToLower(ref))
	if !own || ref != written { // the engine may have other values for the variables
		d.bases = append(d.bases, base{in.at, m[2], m[3], ref, own})
	}
	name := ""
	if m[4] >= 0 {
		name = strings.ToLower(in.first[m[4]:m[5]])
	}
	d.stages = append(d.stages, name)
	return nil
}

// arg records a build argument that FROM can use.
func (d *parser) arg(line string) error {
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

// copies finds the image that an instruction copies files from.
func (d *parser) copies(in instruction, name, rest string) error {
	found := strings.Count(unquoted(rest), "--from")
	switch {
	case hasHeredoc(rest):
		return errors.New("here-documents (<<) require BuildKit, which is not supported")
	case name == "RUN" && takesMount(rest):
		return errors.New("mounts require BuildKit, which is not supported: use COPY --from")
	case name == "RUN" || found == 0:
		return nil
	case name != "COPY":
		return errors.New("--from is supported for COPY only")
	}
	m := fromFlag.FindStringSubmatchIndex(in.first)
	if m == nil || found > 1 {
		return errors.New("--from must be used once, on the first line and without quotes: COPY --from=IMAGE")
	}
	ref := in.first[m[2]:m[3]]
	earlier := d.stages[:max(0, len(d.stages)-1)]
	switch n, err := strconv.Atoi(ref); {
	case strings.Contains(ref, "$"):
		return errors.New("--from must not contain a variable")
	case number.MatchString(ref) && (err != nil || n >= len(earlier)):
		return fmt.Errorf("--from=%s: no such earlier stage", clip.Message(ref))
	case number.MatchString(ref), slices.Contains(earlier, strings.ToLower(ref)):
		return nil
	}
	d.bases = append(d.bases, base{in.at, m[2], m[3], ref, false})
	return nil
}

// Bases returns the distinct images that the Dockerfile names.
func (d *Dockerfile) Bases() []string {
	var out []string
	for _, b := range d.bases {
		if !b.own && !slices.Contains(out, b.ref) {
			out = append(out, b.ref)
		}
	}
	return out
}

// Renamed returns the text with every base replaced by its new name.
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

// expand replaces build arguments in s. An undefined argument is an error.
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
		return "", fmt.Errorf("%q is not defined: set it with --build-arg %s=…", missing, missing)
	}
	if strings.Contains(out, "$") {
		return "", fmt.Errorf("invalid variable in %q", s)
	}
	return out, nil
}

func bad(format string, args ...any) error {
	return fmt.Errorf("dockerfile: %s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}
