package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func templatesDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func sourcesOf(t *testing.T, c Config, file string) map[string]Source {
	t.Helper()
	list, err := c.Sources(file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]Source{}
	for _, s := range list {
		out[s.Name] = s
	}
	return out
}

func TestSourcesReadsTemplatesDir(t *testing.T) {
	dir := templatesDir(t, map[string]string{
		"py.yaml": "image: python:3\npool: {min: 1, adaptive: true}\nwarmup: [{argv: [python3, -c, 'import json'], " +
			"timeout: 5s}]",
		"node.json":    `{"image": "node:22", "user": "1001:1001", "env": {"A": "b"}}`,
		"bad.yaml":     "image: x\npool: {mn: 1}",
		"worse.yaml":   "image: x\nwarmup: [{argv: [a], timout: 5s}]",
		"old.yml":      "image: x",
		".swp.yaml":    "x",
		"README.md":    "x",
		"both.yaml":    "image: x",
		"both.json":    `{"image": "x"}`,
		"empty.yaml":   "",
		"cfg.yaml":     "image: x",
		"UPPER.yaml":   "image: x",
		"default.yaml": "image: mine:1",
	})
	c, err := Parse([]byte("templates_dir: " + dir + "\ntemplates: {cfg: {image: other}}"))
	if err != nil {
		t.Fatal(err)
	}
	got := sourcesOf(t, c, "/etc/o.yaml")
	if len(got) != 10 {
		t.Errorf("sources = %v, want 10", got)
	}
	py := got["py"]
	if py.Err != nil || py.Template.Image != "python:3" || !py.Template.Pool.Adaptive ||
		py.Template.Pool.Max != defaultTemplate().Pool.Max || py.Template.Entrypoint != nil {
		t.Errorf("py = %+v, want image python:3 with an adaptive pool of the default size and no entrypoint", py)
	}
	if d := got["default"]; d.Err != nil || d.Template.Image != "mine:1" || len(d.Template.Entrypoint) != 1 {
		t.Errorf("default = %+v, want image mine:1 with an entrypoint of one word", d)
	}
	for name, want := range map[string]string{
		"bad":   dir + `/bad.yaml: unknown key pool.mn; did you mean "min"?`,
		"worse": `unknown key warmup[0].timout; did you mean "timeout"?`,
		"old":   "name it old.yaml",
		"both":  "both.json and in " + dir + "/both.yaml: remove one of them",
		"empty": "it is empty",
		"cfg":   "is defined in /etc/o.yaml and in " + dir + "/cfg.yaml",
		"UPPER": "is not a valid template name",
	} {
		if err := got[name].Err; err == nil || !strings.Contains(err.Error(), want) ||
			!errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("error of %s: %v, want %q", name, err, want)
		}
	}
	if _, err := c.WithTemplatesDir(""); err == nil {
		t.Error("WithTemplatesDir succeeded with invalid files, want error")
	}
}

func TestParseTemplateRefusesInvalid(t *testing.T) {
	for _, c := range []struct{ yaml, want string }{
		{"image: x\nuser: root", "user is"},
		{"image: x\nuser: '0:5'", "user is"},
		{"image: x\nenv: {'a=b': c}", "env is"},
		{"image: x\nenv: {a: 1}", "env"},
		{"image: x\nwarmup: [{argv: []}]", "warmup[0].argv"},
		{"image: x\nwarmup: [{argv: [a], timeout: 1h}]", "warmup[0].timeout"},
		{"image: x\nwarmup: [{argv: [a], background: true, timeout: 1s}]", "warmup[0].timeout"},
		{"image: x\ntmpfs: {/tmp/x: 1MiB}", `tmpfs "/tmp/x"`},
		{"image: x\nulimits: {nproc: 5}", "ulimits.nproc"},
		{"image: x\nclass: strong", "class"},
		{"image: x\nuser_namespace: mine", "user_namespace"},
		{"image: x\nuser_namespace: own\nclass: gvisor", "user_namespace"},
		{"image: x\nuser_namespace: own\nuser: '1000:65535'", "user is"},
		{"image: x\nuser_namespace: auto\nuser: '65535'", "user is"},
		{"image: x\nlimits: {memory: 1m}", "limits.memory_bytes"},
		{"image: x\npool: {min: 9, max: 2}", "pool.max"},
		{"[1]", "must be a map"},
		{"image: x\nimage: y", "already set"},
	} {
		if _, err := ParseTemplate("a", []byte(c.yaml)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ParseTemplate(%q): %v, want %q", c.yaml, err, c.want)
		}
	}
}

// An error in a template file names the field and an allowed value.
func TestParseTemplateErrorNamesField(t *testing.T) {
	for text, want := range map[string]string{
		"image: [x]":                                        "image is a list, which cannot be a string",
		"image: 5":                                          "image is a number, which cannot be a string: put it in quotes",
		"env: {A: b, B: 1}":                                 "env.B is a number, which cannot be a string: put it in quotes",
		"env: {A: yes}":                                     "env.A is a bool, which cannot be a string: put it in quotes",
		"env: [a]":                                          "env is a list, which cannot be a map of keys",
		"tmpfs: {/a: x}":                                    `tmpfs./a: "x" is not a size`,
		"limits: {memory: abc}":                             `limits.memory: "abc" is not a size`,
		"limits: {memory: 99999999999GiB}":                  `limits.memory: "99999999999GiB" is not a size`,
		"limits: {pids: 1.5}":                               "limits.pids is a number 1.5, which cannot be a whole number",
		"limits: {cpus: .nan}":                              "a value is NaN",
		"pool: {max_age: 5}":                                "pool.max_age: 5 is not a duration",
		"warmup: {argv: [x]}":                               "warmup must be a list",
		"warmup: [{argv: [x]}, {argv: x}]":                  "warmup[1].argv is a string, which cannot be a list",
		"warmup: [{argv: [x, 1]}]":                          "warmup[0].argv[1] is a number, which cannot be a string",
		"warmup: [{argv: [x], timeout: abc}]":               `warmup[0].timeout: "abc" is not a duration`,
		"warmup: [{argv: [x], background: please}]":         "warmup[0].background is a string, which cannot be true or false",
		"image: x\n---\nimage: y":                           "more than one document",
		"image: x\n...\nimage: y":                           "more than one document",
		"---\nenv: {}\n--- # another\n{image: y}":           "more than one document",
		"user: '4294967295'":                                "user is",
		"user: '-1:-1'":                                     "user is",
		"user: 'a:b'":                                       "user is",
		"user: ' 0'":                                        "user is",
		`user: "a\nb"`:                                      "user is",
		`entrypoint: ["/a\0b"]`:                             "entrypoint is",
		"image: " + strings.Repeat("x", 2000):               "image is of 2000 bytes",
		"a: &a [x, x]\nb: &b [*a, *a]\nenv: &c {A: *c}":     "contains itself",
		"limits: {memory: 512MiB, pids: no, open_files: x}": "limits.open_files",
	} {
		for range 3 { // it is always the same one
			_, err := ParseTemplate("a", []byte(text))
			if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, errdefs.ErrInvalidArgument) ||
				len(err.Error()) > 300 {
				t.Errorf("ParseTemplate(%q): %v, want InvalidArgument with %q", text, err, want)
			}
		}
	}
	for _, text := range []string{"---\nimage: x\n", "%YAML 1.1\n---\nimage: x\n...\n# end\n",
		"image: |\n  a\n  ---\n  b\n", "{\"image\":\n\"x\"}", "image: x\nuser: '4294967294:1'", "image: x\nuser: node",
		"image: x\nuser_namespace: own\nuser: '65534:65534'", "image: x\nuser_namespace: auto\nclass: gvisor"} {
		if _, err := ParseTemplate("a", []byte(text)); err != nil {
			t.Errorf("ParseTemplate(%q): %v", text, err)
		}
	}
}

func TestSourcesMissingDirIsAnError(t *testing.T) {
	c := Default()
	c.TemplatesDir = "/nowhere/at/all"
	if list, err := c.Sources(""); err == nil || len(list) != 1 {
		t.Errorf("Sources of a missing directory = %v, %v; want one and an error", list, err)
	}
}

func FuzzParseTemplate(f *testing.F) {
	f.Add([]byte("image: x\npool: {min: 1}"))
	f.Add([]byte("warmup: [{argv: [a]}, 5]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := ParseTemplate("a", text)
		if err == nil && got.validate("") != nil {
			t.Error("ParseTemplate succeeded with an invalid template, want an error")
		}
	})
}
