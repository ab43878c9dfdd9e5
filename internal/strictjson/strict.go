// Package strictjson decodes untrusted JSON: one value, valid UTF-8, no unknown fields, no trailing
// data. Errors name the field and have class InvalidArgument. The package starts no goroutine.
package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// FieldError reports an invalid field of a document.
type FieldError struct{ Field, Message string }

// Error implements error. The text starts with the field.
func (e *FieldError) Error() string { return strings.TrimSpace(e.Field + " " + e.Message) }

// Unwrap returns the errdefs class.
func (e *FieldError) Unwrap() error { return errdefs.ErrInvalidArgument }

// Decode decodes data into v. It allocates about as much memory as the decoded value needs, because
// it does not copy data. The error is a *FieldError.
func Decode(data []byte, v any) error {
	if !utf8.Valid(data) {
		return &FieldError{"body", "is not valid UTF-8"}
	}
	err := json.Unmarshal(data, v)
	if _, bad := errors.AsType[*json.SyntaxError](err); bad {
		return explain(err, v)
	}
	at := int64(len(data))
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		at = t.Offset // report the first of two errors
	}
	if name, found := unknownField(data, at, reflect.TypeOf(v)); found {
		return &FieldError{clip.Message(name), "is unknown"}
	}
	if err != nil {
		return explain(err, v)
	}
	return nil
}

func explain(err error, v any) error {
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		field := fieldPath(reflect.TypeOf(v), t.Field)
		if field == "" {
			field = "body"
		}
		return &FieldError{clip.Message(field),
			fmt.Sprintf("is a JSON %s and must be %s", clip.Message(t.Value), kind(t.Type.String()))}
	}
	switch text := err.Error(); {
	case text == "unexpected end of JSON input":
		return &FieldError{"body", "is an incomplete JSON value"}
	case strings.HasSuffix(text, "after top-level value"):
		return &FieldError{"body", "has more than one JSON value"}
	}
	return &FieldError{"body", "is invalid JSON: " + clip.Message(err.Error())}
}

// fieldPath returns the path of a field as in the document, without the names of embedded Go types,
// which encoding/json includes.
func fieldPath(t reflect.Type, path string) string {
	var out []string
	for name := range strings.SplitSeq(path, ".") {
		for t != nil && t.Kind() != reflect.Struct {
			if k := t.Kind(); k != reflect.Pointer && k != reflect.Slice && k != reflect.Array && k != reflect.Map {
				break
			}
			t = t.Elem()
		}
		if t == nil || t.Kind() != reflect.Struct {
			out = append(out, name)
			continue
		}
		f, ok := t.FieldByName(name)
		if ok && f.Anonymous && f.Tag.Get("json") == "" {
			t = f.Type
			continue
		}
		out = append(out, name)
		t = member(t, name)
	}
	return strings.Join(out, ".")
}

// member returns the type of the field with a JSON name, or nil.
func member(t reflect.Type, name string) reflect.Type {
	for f := range t.Fields() {
		if tag, _, _ := strings.Cut(f.Tag.Get("json"), ","); tag == name {
			return f.Type
		}
	}
	return nil
}

func kind(goType string) string {
	switch {
	case goType == "string":
		return "a string"
	case goType == "bool":
		return "true or false"
	case strings.HasPrefix(goType, "int"), strings.HasPrefix(goType, "uint"):
		return "a whole number"
	case strings.HasPrefix(goType, "float"):
		return "a number"
	case strings.HasPrefix(goType, "["):
		return "a list"
	}
	return "an object"
}
