package strictjson

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// unknownField returns the first name in data, before offset until, without a field in t. data must
// be valid JSON. In encoding/json, only a Decoder finds such names, and it copies the document.
func unknownField(data []byte, until int64, t reflect.Type) (name string, found bool) {
	w := walker{data: data, until: int(until)}
	w.value(t)
	return w.name, w.found
}

// walker walks through valid JSON text.
type walker struct {
	data  []byte
	at    int
	until int
	name  string
	found bool
}

func (w *walker) skipSpace() {
	for w.at < len(w.data) && strings.IndexByte(" \t\r\n", w.data[w.at]) >= 0 {
		w.at++
	}
}

// done reports whether the search has ended.
func (w *walker) done() bool { return w.found || w.at >= w.until || w.at >= len(w.data) }

// text skips a string and returns it undecoded, with its quotes.
func (w *walker) text() []byte {
	from := w.at
	w.at = len(w.data)
	if end := stringEnd(w.data, from+1); end >= 0 {
		w.at = end + 1
	}
	return w.data[from:w.at]
}

// skip skips a value of any type.
func (w *walker) skip() {
	for depth := 0; !w.done(); {
		switch w.data[w.at] {
		case '"':
			w.text()
		case '{', '[':
			depth++
			w.at++
		case '}', ']', ',':
			if depth == 0 {
				return
			}
			if w.data[w.at] != ',' {
				depth--
			}
			w.at++
		default:
			w.at++
		}
	}
}

func (w *walker) value(t reflect.Type) {
	for t != nil && t.Kind() == reflect.Pointer && !hasDecoder(t) {
		t = t.Elem()
	}
	w.skipSpace()
	if w.done() {
		return
	}
	if t == nil || hasDecoder(t) || hasDecoder(reflect.PointerTo(t)) {
		w.skip()
		return
	}
	switch {
	case w.data[w.at] == '{' && t.Kind() == reflect.Struct:
		known := fieldsOf(t)
		w.members(func(name string) (reflect.Type, bool) { return known.find(name) })
	case w.data[w.at] == '{' && t.Kind() == reflect.Map:
		w.members(func(string) (reflect.Type, bool) { return t.Elem(), true })
	case w.data[w.at] == '[' && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array):
		w.elements(t.Elem())
	default:
		w.skip()
	}
}

// members checks an object. of returns the type of a member, and false if it is unknown.
func (w *walker) members(of func(name string) (reflect.Type, bool)) {
	w.at++
	for w.skipSpace(); !w.done() && w.data[w.at] != '}'; w.skipSpace() {
		if w.data[w.at] == ',' {
			w.at++
			w.skipSpace()
		}
		if w.done() {
			return
		}
		var name string
		_ = json.Unmarshal(w.text(), &name) // the document is valid
		t, ok := of(name)
		if !ok {
			w.name, w.found = name, true
			return
		}
		w.skipSpace()
		w.at++ // the colon
		w.value(t)
	}
	w.at++
}

func (w *walker) elements(t reflect.Type) {
	w.at++
	for w.skipSpace(); !w.done() && w.data[w.at] != ']'; w.skipSpace() {
		if w.data[w.at] == ',' {
			w.at++
			continue
		}
		w.value(t)
	}
	w.at++
}

// hasDecoder reports whether a type has its own JSON decoder.
func hasDecoder(t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[json.Unmarshaler]()) ||
		t.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// fields maps JSON names to the types of the fields of a struct.
type fields map[string]reflect.Type

// find looks up a name as encoding/json does: an exact match, or else one that ignores case.
func (f fields) find(name string) (reflect.Type, bool) {
	if t, ok := f[name]; ok {
		return t, true
	}
	for known, t := range f {
		if strings.EqualFold(known, name) {
			return t, true
		}
	}
	return nil, false
}

// fieldCache caches fields by reflect.Type.
//
//nolint:gochecknoglobals // a cache of what types are like
var fieldCache sync.Map

// fieldsOf returns the fields of a struct, including those of embedded structs unless shadowed.
func fieldsOf(t reflect.Type) fields {
	if f, ok := fieldCache.Load(t); ok {
		return f.(fields) // the cache contains only fields
	}
	f, seen := fields{}, map[reflect.Type]bool{}
	for level := []reflect.Type{t}; len(level) > 0; {
		var deeper []reflect.Type
		found := fields{}
		for _, t := range level {
			if !seen[t] {
				seen[t] = true
				deeper = append(deeper, addFields(t, found)...)
			}
		}
		for name, t := range found {
			if _, shadowed := f[name]; !shadowed {
				f[name] = t
			}
		}
		level = deeper
	}
	fieldCache.Store(t, f)
	return f
}

// addFields adds the fields of a struct to f and returns the embedded structs.
func addFields(t reflect.Type, f fields) (embedded []reflect.Type) {
	for field := range t.Fields() {
		tag := field.Tag.Get("json")
		name, _, _ := strings.Cut(tag, ",")
		inner := field.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case tag == "-":
		case field.Anonymous && name == "" && inner.Kind() == reflect.Struct:
			embedded = append(embedded, inner)
		case !field.IsExported():
		case name == "":
			f[field.Name] = field.Type
		default:
			f[name] = field.Type
		}
	}
	return embedded
}
