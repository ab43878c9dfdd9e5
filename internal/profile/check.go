package profile

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// tree is a JSON object. Its values are map[string]any, []any, string, int64, float64, bool or nil.
type tree = map[string]any

var rawType = reflect.TypeFor[json.RawMessage]()

// check compares a node with the type t and returns its JSON value. It records the lines of all
// parts in src.
func check(src *source, path string, n *node, t reflect.Type) (any, error) {
	if _, ok := src.lines[path]; !ok {
		src.lines[path] = n.line
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == rawType || t.Kind() == reflect.Interface {
		return plain(src, path, n), nil
	}
	want := kindFor(t)
	if n.kind == integer && want == number {
		return float64(n.value.(int64)), nil
	}
	if n.kind != want {
		return nil, src.fail(path, "is %s and must be %s%s", n.kind, want, quoteHint(n, want))
	}
	switch want {
	case list:
		return checkList(src, path, n, t)
	case object:
		return checkObject(src, path, n, t)
	default:
		return n.value, nil
	}
}

func quoteHint(n *node, want kind) string {
	if want == text && n.kind != list && n.kind != object && n.kind != null {
		return ": put it in quotes"
	}
	return ""
}

func kindFor(t reflect.Type) kind {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return object
	case reflect.Slice:
		return list
	case reflect.Bool:
		return boolean
	case reflect.Int, reflect.Int64:
		return integer
	case reflect.Float64:
		return number
	default:
		return text
	}
}

func checkList(src *source, path string, n *node, t reflect.Type) (any, error) {
	out := make([]any, len(n.items))
	for i, item := range n.items {
		v, err := check(src, fmt.Sprintf("%s[%d]", path, i), item, t.Elem())
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, nil
}

func checkObject(src *source, path string, n *node, t reflect.Type) (any, error) {
	out := make(tree, len(n.keys))
	for i, key := range n.keys {
		at := join(path, key)
		elem, err := member(src, at, key, n.at[i], t)
		if err != nil {
			return nil, err
		}
		if n.items[i].kind == null && elem != rawType {
			return nil, src.fail(at, "is empty: remove it or set a value")
		}
		v, err := check(src, at, n.items[i], elem)
		if err != nil {
			return nil, err
		}
		out[key] = v
	}
	return out, nil
}

// member returns the type of the value of a key.
func member(src *source, at, key string, line int, t reflect.Type) (reflect.Type, error) {
	src.lines[at] = line
	if t.Kind() == reflect.Map {
		return t.Elem(), nil
	}
	fields := fieldsOf(t)
	elem, ok := fields[key]
	if !ok {
		return nil, src.fail(at, "is unknown%s", nearest(key, slices.Sorted(maps.Keys(fields))))
	}
	return elem, nil
}

// fieldsOf returns the keys that a struct accepts, including those of embedded structs.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			maps.Copy(out, fieldsOf(f.Type))
			continue
		}
		if name != "" && name != "-" {
			out[name] = f.Type
		}
	}
	return out
}

// plain returns a node of any shape as its JSON value.
func plain(src *source, path string, n *node) any {
	if _, ok := src.lines[path]; !ok {
		src.lines[path] = n.line
	}
	switch n.kind {
	case object:
		out := make(tree, len(n.keys))
		for i, key := range n.keys {
			src.lines[join(path, key)] = n.at[i]
			out[key] = plain(src, join(path, key), n.items[i])
		}
		return out
	case list:
		out := make([]any, len(n.items))
		for i, item := range n.items {
			out[i] = plain(src, fmt.Sprintf("%s[%d]", path, i), item)
		}
		return out
	default:
		return n.value
	}
}

func join(path, key string) string {
	key = clip.Message(key)
	if path == "" {
		return key
	}
	return path + "." + key
}
