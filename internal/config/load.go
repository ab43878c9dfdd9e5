package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"sigs.k8s.io/yaml"

	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

// maxFile limits the size of the configuration file, in bytes.
const maxFile = 1 << 20

// Load reads the file at path over the defaults. With an empty path it returns the defaults. The
// result is not validated, because environment and flags still override it.
func Load(path string) (Config, error) {
	c := Default()
	if path == "" {
		return c, nil
	}
	text, err := readFile("configuration file", path)
	if err != nil {
		return c, err
	}
	c, err = Parse(text)
	if err != nil {
		return c, fmt.Errorf("configuration file %s: %w", path, err)
	}
	return c, nil
}

// readFile reads a configuration file. what names it in errors.
func readFile(what, path string) ([]byte, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s %s does not exist: %w", what, path, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, path, err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return nil, fmt.Errorf("%s %s is not a regular file of at most 1 MiB: %w", what, path, errdefs.ErrInvalidArgument)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", what, path, err)
	}
	return text, nil
}

// Parse reads YAML over the defaults. Each template starts from the template defaults.
func Parse(text []byte) (Config, error) {
	c := Default()
	raw, err := toJSON(text)
	if err != nil {
		return c, err
	}
	tree, err := decodeTree(raw)
	if err != nil {
		return c, err
	}
	if tree == nil {
		return c, nil
	}
	if err := checkKeys("", tree, reflect.TypeFor[Config]()); err != nil {
		return c, err
	}
	var templates struct {
		Templates map[string]json.RawMessage `json:"templates"`
	}
	if err := json.Unmarshal(raw, &templates); err != nil {
		return c, fmt.Errorf("templates: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, explainDecode(err)
	}
	for name, body := range templates.Templates {
		t := templateDefaults(name)
		if err := json.Unmarshal(body, &t); err != nil {
			return c, fmt.Errorf("templates.%s: %w", name, explainDecode(err))
		}
		c.Templates[name] = t
		if c.written == nil {
			c.written = map[string]bool{}
		}
		c.written[name] = true
	}
	return c, nil
}

func explainDecode(err error) error {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return wrongType(t.Field, t)
	}
	return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
}

func wrongType(at string, err *json.UnmarshalTypeError) error {
	got, hint := err.Value, ""
	switch got {
	case "array":
		got = "list"
	case "object":
		got = "map of keys"
	}
	if err.Type.Kind() == reflect.String && (strings.HasPrefix(got, "number") || got == "bool") {
		hint = ": put it in quotes"
	}
	return fmt.Errorf("%s is a %s, which cannot be %s%s: %w", displayPath(at), got, kindOf(err.Type), hint,
		errdefs.ErrInvalidArgument)
}

// kindOf describes a type to the author of a file.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	case reflect.Map, reflect.Struct:
		return "a map of keys"
	case reflect.Float64:
		return "a number"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	default:
		return "a " + t.String()
	}
}

// toJSON converts the only document of a text to JSON. More documents are an error: they would be
// ignored silently.
func toJSON(text []byte) ([]byte, error) {
	content, ended := false, false
	for line := range bytes.Lines(text) {
		bare := bytes.TrimSpace(line)
		mark, rest, _ := bytes.Cut(bare, []byte(" "))
		if marker := string(mark); (marker == "---" || marker == "...") && line[0] == bare[0] {
			ended = content
			bare = bytes.TrimSpace(rest)
		}
		switch {
		case len(bare) == 0 || bare[0] == '#' || bare[0] == '%':
		case ended:
			const remedy = "remove all but one, and the lines --- and ..."
			return nil, fmt.Errorf("it has more than one document: %s: %w", remedy, errdefs.ErrInvalidArgument)
		default:
			content = true
		}
	}
	raw, err := yaml.YAMLToJSONStrict(text)
	if v, ok := errors.AsType[*json.UnsupportedValueError](err); ok {
		return nil, fmt.Errorf("a value is %s: use a finite number: %w", v.Str, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return raw, nil
}

// decodeTree decodes a document and keeps numbers as written.
func decodeTree(raw []byte) (tree any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&tree); err != nil {
		return nil, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	return tree, nil
}

// checkKeys checks the keys of the file against the types.
func checkKeys(at string, v any, t reflect.Type) error {
	if list, ok := v.([]any); ok && t.Kind() == reflect.Slice {
		for i, value := range list {
			if err := checkKeys(fmt.Sprintf("%s[%d]", at, i), value, t.Elem()); err != nil {
				return err
			}
		}
		return nil
	}
	m, ok := v.(map[string]any)
	if !ok {
		if t.Kind() == reflect.Struct && v != nil {
			return fmt.Errorf("%s must be a map of keys: %w", displayPath(at), errdefs.ErrInvalidArgument)
		}
		return checkValue(at, v, t)
	}
	for _, key := range slices.Sorted(maps.Keys(m)) { // sorted, so that the error is always the same
		path := strings.TrimPrefix(at+"."+key, ".")
		switch t.Kind() {
		case reflect.Map:
			if err := checkKeys(path, m[key], t.Elem()); err != nil {
				return err
			}
		case reflect.Struct:
			fields := keysOf(t)
			field, ok := fields[key]
			if !ok {
				return unknownKey(path, key, fields)
			}
			if err := checkKeys(path, m[key], field); err != nil {
				return err
			}
		case reflect.Slice:
			return fmt.Errorf("%s must be a list: %w", displayPath(at), errdefs.ErrInvalidArgument)
		default:
			return fmt.Errorf("%s must be a single value: %w", displayPath(at), errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// checkValue checks a single value against its type. Only here is the location of the value known.
func checkValue(at string, v any, t reflect.Type) error {
	raw, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(raw, reflect.New(t).Interface())
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return wrongType(at, wrong)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %w", displayPath(at), err, errdefs.ErrInvalidArgument)
	}
	return nil
}

func displayPath(at string) string {
	if at == "" {
		return "the configuration"
	}
	return at
}

func keysOf(t reflect.Type) map[string]reflect.Type {
	out := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		if f.Anonymous && f.Tag.Get("json") == "" { // its keys are beside the others
			maps.Copy(out, keysOf(f.Type))
			continue
		}
		out[f.Tag.Get("json")] = f.Type
	}
	return out
}

// renamedKeys maps the end of a former key's path to its current name.
var renamedKeys = map[string]string{"guest.alone": "orphan_timeout", "pool.settle": "refill_delay"}

func unknownKey(path, key string, fields map[string]reflect.Type) error {
	for old, now := range renamedKeys {
		if path == old || strings.HasSuffix(path, "."+old) {
			return fmt.Errorf("key %s was renamed: use %q: %w", path, now, errdefs.ErrInvalidArgument)
		}
	}
	hint := ""
	if best := strictjson.Nearest(key, slices.Sorted(maps.Keys(fields))); best != "" {
		hint = fmt.Sprintf("; did you mean %q?", best)
	}
	return fmt.Errorf("unknown key %s%s: %w", path, hint, errdefs.ErrInvalidArgument)
}

// environment maps each environment variable that overrides the file to its setter.
var environment = map[string]func(*Config, string){
	"ORCHESTRATOR_LISTEN":      func(c *Config, v string) { c.Listen = v },
	"ORCHESTRATOR_STATE_DIR":   func(c *Config, v string) { c.StateDir = v },
	"ORCHESTRATOR_RUNTIME":     func(c *Config, v string) { c.Runtime = v },
	"ORCHESTRATOR_TOKEN_FILE":  func(c *Config, v string) { c.TokenFile = v },
	"ORCHESTRATOR_DOCKER_HOST": func(c *Config, v string) { c.Docker.Host = v },
	"ORCHESTRATOR_DOCKER_MODE": func(c *Config, v string) { c.Docker.Mode = v },
	"ORCHESTRATOR_OCI_RUNTIME": func(c *Config, v string) { c.OCI.Runtime = v },
	"ORCHESTRATOR_LOG_LEVEL":   func(c *Config, v string) { c.Log.Level = v },
	"ORCHESTRATOR_LOG_FORMAT":  func(c *Config, v string) { c.Log.Format = v },
}

// ApplyEnvironment applies the environment variables. lookup is os.LookupEnv.
func (c *Config) ApplyEnvironment(lookup func(string) (string, bool)) {
	for key, set := range environment {
		if v, ok := lookup(key); ok && v != "" {
			set(c, v)
		}
	}
}
