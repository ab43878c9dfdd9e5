package build

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// The base images of these Dockerfiles are hard to see. Every image that the engine would use must
// be in Bases, or Parse must fail: otherwise the engine would download it itself.
func TestBasesFindsEveryBase(t *testing.T) {
	for name, text := range map[string]string{
		"a word cut in two":               "FR\\\nOM evil/x\nFROM scratch",
		"a flag cut in two":               "FROM scratch\nCOPY --fr\\\nom=evil/x /a /a",
		"a line before the first":         "\\\nFROM evil/x",
		"quotes in a flag":                "FROM scratch\nCOPY --\"from\"=evil/x /a /a",
		"quotes around a flag":            "FROM scratch\nCOPY \"--from=evil/x\" /a /a",
		"a backslash in a flag":           "FROM scratch\nCOPY --fr\\om=evil/x /a /a",
		"a flag and its value apart":      "FROM scratch\nCOPY --from evil/x /a /a",
		"a byte that is a blank to some":  "FROM scratch\nCOPY --chown=0\u00a0--from=evil/x /a /a",
		"a letter with such a byte":       "FROM scratch\nCOPY --chown=à--from=evil/x /a /a",
		"a form feed":                     "FROM scratch\nFROM\fevil/x",
		"a vertical tab":                  "FROM scratch\nCOPY\v--from=evil/x /a /a",
		"a byte order mark":               "\ufeffFROM evil/x\nFROM scratch",
		"a mark before a directive":       "\ufeff# escape=`\nFROM scratch\nRUN a \\\nFROM evil/x",
		"a directive in capitals":         "# Escape=`\nFROM scratch\nRUN a \\\nFROM evil/x",
		"a directive after a comment":     "# x\n# escape=`\nFROM scratch\nRUN a `\nFROM evil/x",
		"a directive that only some know": "# check=skip=all\n# escape=`\nFROM scratch\nRUN a `\nFROM evil/x",
		"a directive after an empty one":  "# syntax=\n# escape=`\nFROM scratch\nRUN a `\nFROM evil/x",
		"two escapes":                     "FROM scratch\nRUN a\\\\\nFROM evil/x",
		"a carriage return too many":      "FROM scratch\nRUN a \\\r\r\nFROM evil/x",
		"the end of a text":               "FROM scratch\nRUN cat <<'E\\'\nE\\\nFROM evil/x",
		"a stage of a text":               "FROM scratch\nCOPY <<E /a\nFROM scratch AS x\nE\nFROM x",
		"its own stage":                   "FROM scratch AS evil\nCOPY --from=evil /a /a",
		"a later stage":                   "FROM scratch\nCOPY --from=evil /a /a\nFROM scratch AS evil",
		"a stage that no number has":      "FROM scratch\nCOPY --from=99999999999999999999 /a /a",
		"two flags":                       "FROM scratch AS s\nFROM scratch\nCOPY --from=s --from=evil/x /a /a",
		"a trigger":                       "FROM scratch\nONBUILD\fCOPY --from=evil/x /a /a",
	} {
		t.Run(name, func(t *testing.T) {
			d, err := Parse([]byte(text), nil)
			if errdefs.IsInvalidArgument(err) && strings.Contains(err.Error(), "line ") {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(d.Bases(), func(b string) bool { return strings.Contains(b, "evil") }) {
				t.Errorf("Bases = %q, want evil", d.Bases())
			}
		})
	}
}

// The engine may have another value for a variable.
func TestRenamedExpandsVariables(t *testing.T) {
	for text, want := range map[string]string{
		"ARG b=evil/x\nARG X=\"a b=scratch\"\nFROM $b":              "scratch",
		"ARG b=evil/x\nARG X=\"a b=s\"\nFROM scratch AS s\nFROM $b": "s",
	} {
		d, err := Parse([]byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		want = strings.TrimSuffix(text, "$b") + want
		if got := string(d.Renamed(nil)); got != want {
			t.Errorf("Renamed = %q, want %q", got, want)
		}
	}
}

func TestParseValidDockerfile(t *testing.T) {
	text := "# syntax=docker/dockerfile:1\r\n#Escape = `\r\n\r\n# x\r\nARG V=12\r\nFROM debian:$V AS a\r\n" +
		"RUN printf '%s' `\r\n\r\n  # comment\r\n  FROM x && tool --from=y <<<z `\r\n  --mount\r\n" +
		"ADD --chown=\"1:1\" x `\r\n y\r\nFROM scratch\r\nCOPY --chown=1:1 --from=0 /a /a\r\nONBUILD RUN true\r\n"
	d, err := Parse([]byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Bases(); !slices.Equal(got, []string{"debian:12"}) {
		t.Errorf("Bases = %q, want only debian:12", got)
	}
	if got, want := string(d.Renamed(map[string]string{"debian:12": "A"})),
		strings.Replace(text, "debian:$V", "A", 1); got != want {
		t.Errorf("Renamed:\n%s\nwant:\n%s", got, want)
	}
}
