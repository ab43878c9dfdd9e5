package config

import (
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

	"orchestrator/internal/strict"
)

// maxFile bounds the configuration file.
const maxFile = 1 << 20

// Load reads the file at path over the defaults; an empty path reads none.
// The result is not validated: flags and environment come over it first.
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

// readFile reads a file that somebody wrote for us; what names it in errors.
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

// Parse reads YAML over the defaults. A template in it stands on the defaults
// of a template, not on those of another one.
func Parse(text []byte) (Config, error) {
	c := Default()
	raw, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return c, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return c, fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
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
		return c, explain(err)
	}
	for name, body := range templates.Templates {
		t := startOf(name)
		if err := json.Unmarshal(body, &t); err != nil {
			return c, fmt.Errorf("templates.%s: %w", name, explain(err))
		}
		c.Templates[name] = t
		if c.written == nil {
			c.written = map[string]bool{}
		}
		c.written[name] = true
	}
	return c, nil
}

func explain(err error) error {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s is a %s, which cannot be a %s: %w", t.Field, t.Value, t.Type, errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
}

// checkKeys compares what is in the file with what the types know.
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
			return fmt.Errorf("%s must be a map of keys: %w", name(at), errdefs.ErrInvalidArgument)
		}
		return nil
	}
	for key, value := range m {
		path := strings.TrimPrefix(at+"."+key, ".")
		switch t.Kind() {
		case reflect.Map:
			if err := checkKeys(path, value, t.Elem()); err != nil {
				return err
			}
		case reflect.Struct:
			fields := keysOf(t)
			field, ok := fields[key]
			if !ok {
				return unknown(path, key, fields)
			}
			if err := checkKeys(path, value, field); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%s must be a single value: %w", name(at), errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

func name(at string) string {
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

func unknown(path, key string, fields map[string]reflect.Type) error {
	hint := ""
	if best := strict.Nearest(key, slices.Sorted(maps.Keys(fields))); best != "" {
		hint = fmt.Sprintf("; did you mean %q?", best)
	}
	return fmt.Errorf("unknown key %s%s: %w", path, hint, errdefs.ErrInvalidArgument)
}

// Environment lists the variables that stand over the file, in order, with
// the flag that stands over them.
func Environment() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for key := range environment {
			if !yield(key) {
				return
			}
		}
	})
}

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

// ApplyEnvironment sets what the variables say; lookup is os.LookupEnv.
func (c *Config) ApplyEnvironment(lookup func(string) (string, bool)) {
	for key, set := range environment {
		if v, ok := lookup(key); ok && v != "" {
			set(c, v)
		}
	}
}
