package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// InputError describes an invalid input of a call. Its errdefs class is InvalidArgument.
type InputError struct {
	// Field is the invalid part of the input; "" means the whole input.
	Field string
	// Problem is "missing", "unknown", "type" or "value".
	Problem string
	Message string
	// Type is the profile's name for the error, or "". If set, Message is the complete text.
	Type string
}

// Error implements error. The text starts with the field.
func (e *InputError) Error() string {
	if e.Type != "" {
		return e.Message
	}
	field := e.Field
	if field == "" {
		field = "input"
	}
	return field + " " + e.Message
}

// Unwrap returns the errdefs class.
func (e *InputError) Unwrap() error { return errdefs.ErrInvalidArgument }

// inputSchema is a compiled JSON Schema for the input of a tool.
type inputSchema struct {
	schema   *jsonschema.Schema
	resolved *jsonschema.Resolved
	defaults map[string]any
}

// newSchema compiles a schema. References to other documents are errors.
func newSchema(raw json.RawMessage) (*inputSchema, error) {
	s := new(jsonschema.Schema)
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, errors.New("is an invalid JSON Schema: " + clip.Message(err.Error()))
	}
	if s.Type != "object" {
		return nil, errors.New(`must be the schema of an object: set "type: object"`)
	}
	r, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		return nil, errors.New("is an invalid JSON Schema: " + clip.Message(err.Error()))
	}
	out := &inputSchema{schema: s, resolved: r, defaults: map[string]any{}}
	for name, p := range s.Properties {
		for _, required := range s.Required {
			if name == required && p.Default != nil {
				return nil, fmt.Errorf("has a default for the required field %q", name)
			}
		}
		if p.Default != nil {
			if err := json.Unmarshal(p.Default, new(any)); err != nil {
				return nil, fmt.Errorf("has an invalid default for %q", name)
			}
			out.defaults[name], _ = decodeJSON(p.Default) // validated above
		}
	}
	return out, nil
}

// check decodes an input and adds defaults. The error describes the first invalid field.
func (s *inputSchema) check(raw json.RawMessage) (map[string]any, error) {
	input, err := decodeInput(raw)
	if err != nil {
		return nil, err
	}
	// A null means a missing field: clients of the imitated systems send it.
	for name, v := range input {
		if p := s.schema.Properties[name]; v == nil && p != nil && !slices.Contains(s.schema.Required, name) {
			delete(input, name)
		}
	}
	for name, v := range s.defaults {
		if _, ok := input[name]; !ok {
			input[name] = v
		}
	}
	if err := s.resolved.Validate(input); err != nil {
		if e := explain("", s.schema, input); e != nil {
			return nil, e
		}
		return nil, &InputError{Problem: "value", Message: "does not match the schema of the tool: " +
			clip.Message(err.Error())}
	}
	return input, nil
}

func decodeInput(raw json.RawMessage) (map[string]any, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return map[string]any{}, nil
	}
	var v any
	if err := json.Unmarshal(raw, &v); err != nil {
		return nil, &InputError{Problem: "type", Message: "is invalid JSON: " + clip.Message(err.Error())}
	}
	switch v := v.(type) {
	case nil:
		return map[string]any{}, nil
	case map[string]any:
		return v, nil
	default:
		return nil, &InputError{Problem: "type", Message: "is " + typeOf(v) + " and must be an object"}
	}
}

// explain returns an error for the first invalid field, or nil. It supports the parts of JSON
// Schema that tools use.
func explain(path string, s *jsonschema.Schema, v any) *InputError {
	fail := func(problem, format string, args ...any) *InputError {
		return &InputError{Field: path, Problem: problem, Message: fmt.Sprintf(format, args...)}
	}
	types := s.Types
	if s.Type != "" {
		types = []string{s.Type}
	}
	if len(types) > 0 && !slices.ContainsFunc(types, func(t string) bool { return isA(v, t) }) {
		return fail("type", "is %s and must be %s", typeOf(v), article(types[0]))
	}
	if len(s.Enum) > 0 && !slices.ContainsFunc(s.Enum, func(e any) bool { return reflect.DeepEqual(e, v) }) {
		b, _ := encodeJSON(s.Enum) // decoded from JSON
		return fail("value", "is %s: use one of %s", show(v), b)
	}
	if s.Const != nil && !reflect.DeepEqual(*s.Const, v) {
		return fail("value", "is %s: must be %s", show(v), show(*s.Const))
	}
	if s.If != nil {
		then := s.Then
		if explain(path, s.If, v) != nil {
			then = s.Else
		}
		if then != nil {
			if e := explain(path, then, v); e != nil {
				return e
			}
		}
	}
	switch v := v.(type) {
	case map[string]any:
		return explainObject(path, s, v)
	case []any:
		return explainList(path, s, v)
	case float64:
		switch {
		case s.Minimum != nil && v < *s.Minimum:
			return fail("value", "is %v: at least %v", v, *s.Minimum)
		case s.Maximum != nil && v > *s.Maximum:
			return fail("value", "is %v: at most %v", v, *s.Maximum)
		case s.ExclusiveMinimum != nil && v <= *s.ExclusiveMinimum:
			return fail("value", "is %v: more than %v", v, *s.ExclusiveMinimum)
		}
	case string:
		switch {
		case s.MinLength != nil && len(v) < *s.MinLength:
			return fail("value", "is too short")
		case s.MaxLength != nil && len(v) > *s.MaxLength:
			return fail("value", "is too long: at most %d characters", *s.MaxLength)
		}
	}
	return nil
}

func explainObject(path string, s *jsonschema.Schema, v map[string]any) *InputError {
	for _, name := range s.Required {
		if _, ok := v[name]; !ok {
			return &InputError{Field: join(path, name), Problem: "missing", Message: "is missing"}
		}
	}
	known := slices.Sorted(maps.Keys(s.Properties))
	for _, name := range slices.Sorted(maps.Keys(v)) {
		p, ok := s.Properties[name]
		if !ok && s.AdditionalProperties == nil {
			continue
		}
		if !ok {
			p = s.AdditionalProperties
			if p.Not != nil && len(s.PatternProperties) == 0 {
				return &InputError{Field: join(path, name), Problem: "unknown",
					Message: "is unknown" + nearest(name, known)}
			}
		}
		if e := explain(join(path, name), p, v[name]); e != nil {
			return e
		}
	}
	return nil
}

func explainList(path string, s *jsonschema.Schema, v []any) *InputError {
	if s.MinItems != nil && len(v) < *s.MinItems {
		return &InputError{Field: path, Problem: "value",
			Message: fmt.Sprintf("has %d items: at least %d", len(v), *s.MinItems)}
	}
	if s.MaxItems != nil && len(v) > *s.MaxItems {
		return &InputError{Field: path, Problem: "value",
			Message: fmt.Sprintf("has %d items: at most %d", len(v), *s.MaxItems)}
	}
	if s.Items == nil {
		return nil
	}
	for i, item := range v {
		if e := explain(fmt.Sprintf("%s[%d]", path, i), s.Items, item); e != nil {
			return e
		}
	}
	return nil
}

func isA(v any, want string) bool {
	switch v := v.(type) {
	case nil:
		return want == "null"
	case bool:
		return want == "boolean"
	case string:
		return want == "string"
	case float64:
		return want == "number" || want == "integer" && v == float64(int64(v))
	case []any:
		return want == "array"
	case map[string]any:
		return want == "object"
	}
	return false
}

func typeOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "true or false"
	case string:
		return "a string"
	case float64:
		return "a number"
	case []any:
		return "a list"
	}
	return "an object"
}

func article(name string) string {
	switch name {
	case "boolean":
		return "true or false"
	case "integer":
		return "a whole number"
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "null":
		return "null"
	}
	return "a " + name
}

func show(v any) string {
	b, err := encodeJSON(v)
	if err != nil {
		return typeOf(v)
	}
	return clip.Message(string(b))
}

// encodeJSON encodes v without escaping <, > and &.
func encodeJSON(v any) (json.RawMessage, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return json.RawMessage(strings.TrimSuffix(b.String(), "\n")), nil
}
