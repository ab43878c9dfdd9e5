// Package configdoc writes docs/configuration.md from package config: the keys and types from its
// Go types, the defaults from Default, and the descriptions from the comments of the fields and of
// default.yaml. Only the generator and tests use it.
package configdoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// key is one line of the page.
type key struct {
	path, kind, fallback, text string
}

// section is a top-level key with everything below it, or the keys that have nothing below them.
type section struct {
	title string
	keys  []key
}

// Page returns the page. dir is the directory of package config. The error names the keys
// without a description.
func Page(dir string) ([]byte, error) {
	d, err := readComments(dir)
	if err != nil {
		return nil, err
	}
	defaults, err := json.Marshal(config.Default())
	if err != nil {
		return nil, err
	}
	var tree map[string]any
	if err := json.Unmarshal(defaults, &tree); err != nil {
		return nil, err
	}
	w := &walker{docs: d, lines: yamlComments()}
	if err := w.walk("", reflect.TypeFor[config.Config](), tree); err != nil {
		return nil, err
	}
	return render(w.sections), errors.Join(w.missing...)
}

// walker collects the keys of all types.
type walker struct {
	docs     map[string]string // by type and field, such as "Leases.TTL"
	lines    map[string]string // comments at the end of lines of default.yaml, by path
	sections []*section
	missing  []error // keys without a description
}

// walk adds the keys of a struct type. at is its path, and tree has its defaults, or is nil.
func (w *walker) walk(at string, t reflect.Type, tree map[string]any) error {
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("json")
		switch {
		case f.Anonymous && name == "":
			if err := w.walk(at, f.Type, tree); err != nil {
				return err
			}
			continue
		case !f.IsExported():
			continue
		}
		path := strings.TrimPrefix(at+"."+name, ".")
		if err := w.field(path, t, f, tree[name]); err != nil {
			return err
		}
	}
	return nil
}

// field adds a key, or the keys below it.
func (w *walker) field(path string, t reflect.Type, f reflect.StructField, fallback any) error {
	inner, below := f.Type, ""
	switch f.Type.Kind() {
	case reflect.Slice:
		inner, below = f.Type.Elem(), "[]"
	case reflect.Map:
		inner, below = f.Type.Elem(), ".NAME"
	default:
	}
	tree, _ := fallback.(map[string]any)
	if below == "" && inner.Kind() == reflect.Struct {
		return w.walk(path, inner, tree)
	}
	text := w.describe(path, t, f)
	if text == "" {
		w.missing = append(w.missing, fmt.Errorf("key %s has no description: comment field %s.%s", path, t.Name(), f.Name))
	}
	s := w.sectionOf(path)
	s.keys = append(s.keys, key{path, kindOf(f.Type), value(f.Type, fallback), text})
	if inner.Kind() != reflect.Struct {
		return nil
	}
	if path == "templates" {
		tree, _ = tree[config.DefaultTemplate].(map[string]any)
	} else {
		tree = nil
	}
	return w.walk(path+below, inner, tree)
}

// sectionOf returns the section of a path.
func (w *walker) sectionOf(path string) *section {
	title, _, nested := strings.Cut(path, ".")
	title = strings.TrimSuffix(title, "[]")
	if !nested && title != "templates" {
		title = "service"
	}
	if i := slices.IndexFunc(w.sections, func(s *section) bool { return s.title == title }); i >= 0 {
		return w.sections[i]
	}
	s := &section{title: title}
	w.sections = append(w.sections, s)
	return s
}

// describe returns the description of a key: the comment of its field, or else of default.yaml.
func (w *walker) describe(path string, t reflect.Type, f reflect.StructField) string {
	if text := w.docs[t.Name()+"."+f.Name]; text != "" {
		return text
	}
	if text := w.lines[strings.Replace(path, "templates.NAME", "templates.default", 1)]; text != "" {
		return text
	}
	return paragraphSentences(path, f.Tag.Get("json"))
}

func kindOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[config.Duration]():
		return "duration"
	case t == reflect.TypeFor[config.Size]():
		return "size"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "map"
	case reflect.String:
		return "string"
	case reflect.Float64:
		return "number"
	default:
		return "whole number"
	}
}

// value returns a default as YAML. A key of a list has none.
func value(t reflect.Type, v any) string {
	switch got := v.(type) {
	case nil:
		return ""
	case map[string]any:
		if len(got) > 0 {
			return "below"
		}
	case []any:
		texts := make([]string, 0, len(got))
		for _, one := range got {
			texts = append(texts, fmt.Sprint(one))
		}
		return "`[" + strings.Join(texts, ", ") + "]`"
	case float64:
		if t == reflect.TypeFor[config.Size]() {
			return "`" + config.Size(int64(got)).String() + "`"
		}
	case string:
		if got == "" {
			return "`\"\"`"
		}
		return "`" + got + "`"
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return "`" + string(raw) + "`"
}

// readComments returns the comment of each field of the package's types. A comment above several
// fields is divided by its sentences: each belongs to the fields that it names.
func readComments(dir string) (map[string]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	set := token.NewFileSet()
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(set, path, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if st, ok := spec.Type.(*ast.StructType); ok {
					readStruct(out, set, spec.Name.Name, st)
				}
			}
			return true
		})
	}
	return out, nil
}

// readStruct divides the comments of a struct among its fields.
func readStruct(out map[string]string, set *token.FileSet, name string, st *ast.StructType) {
	keys := map[string]string{} // of fields
	for _, f := range st.Fields.List {
		if len(f.Names) == 1 && f.Tag != nil {
			tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
			keys[f.Names[0].Name] = tag.Get("json")
		}
	}
	for i := 0; i < len(st.Fields.List); i++ {
		first := st.Fields.List[i]
		group := []*ast.Field{first}
		for i+1 < len(st.Fields.List) {
			next, last := st.Fields.List[i+1], group[len(group)-1]
			if next.Doc != nil || set.Position(next.Pos()).Line != set.Position(last.End()).Line+1 {
				break
			}
			group = append(group, next)
			i++
		}
		divide(out, name, first.Doc.Text(), group, keys)
		for _, f := range group {
			if len(f.Names) == 1 && f.Comment != nil {
				out[name+"."+f.Names[0].Name] = oneLine(f.Comment.Text())
			}
		}
	}
}

// divide gives each sentence of a comment to the fields of the group that it names, or else to
// those of the sentence before.
func divide(out map[string]string, name, text string, group []*ast.Field, keys map[string]string) {
	var of []string
	for _, sentence := range sentences(oneLine(text)) {
		var named []string
		for _, f := range group {
			if len(f.Names) == 1 && regexp.MustCompile(`\b`+f.Names[0].Name+`\b`).MatchString(sentence) {
				named = append(named, f.Names[0].Name)
			}
		}
		if named != nil {
			of = named
		}
		for field, key := range keys {
			sentence = regexp.MustCompile(`\b`+field+`\b`).ReplaceAllString(sentence, "`"+key+"`")
		}
		if len(of) == 0 && len(group[0].Names) == 1 {
			of = []string{group[0].Names[0].Name}
		}
		for _, field := range of {
			out[name+"."+field] = strings.TrimSpace(out[name+"."+field] + " " + sentence)
		}
	}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// sentences splits a text after full stops.
func sentences(text string) []string {
	text = regexp.MustCompile(`\. ([A-Za-z0-9"])`).ReplaceAllString(text, ".\n$1")
	return slices.DeleteFunc(strings.Split(text, "\n"), func(s string) bool { return s == "" })
}

// yamlComments returns the comments at the ends of lines of default.yaml, by path.
func yamlComments() map[string]string {
	out := map[string]string{}
	line := regexp.MustCompile(`^#( *)([a-z_]+):([^#]*)(?:# (.*))?$`)
	var path []string
	for text := range strings.Lines(string(config.Commented)) {
		m := line.FindStringSubmatch(strings.TrimRight(text, "\n"))
		if len(m) == 0 || len(m[1])%2 != 0 || len(m[1])/2 > len(path) {
			continue
		}
		path = append(path[:len(m[1])/2], m[2])
		if m[4] != "" {
			out[strings.Join(path, ".")] = m[4]
		}
	}
	return out
}

// paragraphs returns the comments of default.yaml, by the top-level key that follows them.
func paragraphs() map[string]string {
	out, text := map[string]string{}, ""
	start := regexp.MustCompile(`^#([a-z_]+):`)
	for line := range strings.Lines(string(config.Commented)) {
		line = strings.TrimRight(line, "\n")
		switch m := start.FindStringSubmatch(line); {
		case line == "":
			text = ""
		case m != nil:
			out[m[1]] = oneLine(text)
		case strings.HasPrefix(line, "# ") && !strings.HasPrefix(line, "#  "):
			text += " " + strings.TrimPrefix(line, "# ")
		}
	}
	return out
}

// paragraphSentences returns the sentences about a key in the paragraph of its section.
func paragraphSentences(path, name string) string {
	top, _, _ := strings.Cut(path, ".")
	var found []string
	for _, s := range sentences(paragraphs()[strings.TrimSuffix(top, "[]")]) {
		if regexp.MustCompile(`\b` + name + `\b`).MatchString(s) {
			found = append(found, s)
		}
	}
	return strings.Join(found, " ")
}

// render returns the page.
func render(sections []*section) []byte {
	var b bytes.Buffer
	b.WriteString(head)
	text := paragraphs()
	for _, s := range sections {
		fmt.Fprintf(&b, "\n## %s\n\n", s.title)
		if p := text[s.title]; p != "" {
			for _, sentence := range sentences(p) {
				b.WriteString(sentence + "\n")
			}
			b.WriteString("\n")
		}
		b.WriteString("| Key | Type | Default | Reload | Meaning |\n|---|---|---|---|---|\n")
		for _, k := range s.keys {
			reload := ""
			if config.Reloadable(k.path) {
				reload = "yes"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", k.path, k.kind, k.fallback, reload,
				strings.ReplaceAll(k.text, "|", "\\|"))
		}
	}
	return b.Bytes()
}

const head = "<!-- Generated by `go generate ./internal/config`. Do not edit. -->\n" + `
# Configuration

The service reads one YAML file: ` + "`--config FILE`" + ` or ` + "`ORCHESTRATOR_CONFIG`" + `.
Variables ` + "`ORCHESTRATOR_*`" + ` override the file, and flags override variables.
An unknown key is an error that names the nearest known one.

` + "```sh" + `
orchestrator config > orchestrator.yaml        # every key with its default, commented out
orchestrator config check orchestrator.yaml    # what the service would refuse
` + "```" + `

A duration is ` + "`90s`, `2m` or `1h30m`" + `.
A size is a number of bytes, or ` + "`512MiB`" + ` or ` + "`1g`" + `, with units of 1024.
` + "`NAME`" + ` in a key is a name of your choice, and ` + "`[]`" + ` an element of a list.

## Reload

SIGHUP (` + "`systemctl reload orchestrator`" + `) makes a running service read its configuration again.
It applies changes of the keys with "yes" in the column Reload, and logs one line, ` +
	"`reloaded the\nconfiguration`" + `, with the keys that ` + "`changed`" + ` and those for which it ` + "`needs_restart`" + `.
If the file or a file that it names cannot be used, nothing changes, and the log says why.

- The content of ` + "`token_file`" + ` and of the files in ` + "`profiles.dir`" + ` is read again too.
  Connections that the earlier token identified are closed.
  A running service that has a token keeps one: removing ` + "`token_file`" + ` needs a restart.
- If ` + "`tls.clients`" + ` changes, the connections with client certificates are closed.
- Leases keep the limits of ` + "`egress.allow`" + ` that they have until they request egress again.
- The files of templates and of TLS are also read again when they change, without a signal.
`
