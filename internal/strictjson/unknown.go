package strictjson

import (
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// unknown returns the first name in data, before the offset until, that t has no field for. data is
// JSON. encoding/json finds such names only in a Decoder, which copies the document.
func unknown(data []byte, until int64, t reflect.Type) (name string, found bool) {
	w := walker{data: data, until: int(until)}
	w.value(t)
	return w.name, w.found
}

// walker goes through a JSON text that is known to be valid.
type walker struct {
	data  []byte
	at    int
	until int
	name  string
	found bool
}

func (w *walker) space() {
	for w.at < len(w.data) && strings.IndexByte(" \t\r\n", w.data[w.at]) >= 0 {
		w.at++
	}
}

// done says whether there is nothing more to look for.
func (w *walker) done() bool { return w.found || w.at >= w.until || w.at >= len(w.data) }

// text passes a string and returns it as it is written, with its quotes.
func (w *walker) text() []byte {
	from := w.at
	w.at = len(w.data)
	if end := stringEnd(w.data, from+1); end >= 0 {
		w.at = end + 1
	}
	return w.data[from:w.at]
}

// pass passes a value of which nothing has to be known.
func (w *walker) pass() {
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
	for t != nil && t.Kind() == reflect.Pointer && !decodesItself(t) {
		t = t.Elem()
	}
	w.space()
	if w.done() {
		return
	}
	if t == nil || decodesItself(t) || decodesItself(reflect.PointerTo(t)) {
		w.pass()
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
		w.pass()
	}
}

// members passes an object; of gives the type of a member.
func (w *walker) members(of func(name string) (reflect.Type, bool)) {
	w.at++
	for w.space(); !w.done() && w.data[w.at] != '}'; w.space() {
		if w.data[w.at] == ',' {
			w.at++
			w.space()
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
		w.space()
		w.at++ // the colon
		w.value(t)
	}
	w.at++
}

func (w *walker) elements(t reflect.Type) {
	w.at++
	for w.space(); !w.done() && w.data[w.at] != ']'; w.space() {
		if w.data[w.at] == ',' {
			w.at++
			continue
		}
		w.value(t)
	}
	w.at++
}

// decodesItself says whether a type's own code reads its JSON.
func decodesItself(t reflect.Type) bool {
	return t.Implements(reflect.TypeFor[json.Unmarshaler]()) || t.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// fields are the types of a struct's fields by their names in JSON.
type fields map[string]reflect.Type

// find looks a name up as encoding/json does: exactly, or else whatever the case.
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

var fieldCache sync.Map // of fields, by reflect.Type

func fieldsOf(t reflect.Type) fields {
	if f, ok := fieldCache.Load(t); ok {
		return f.(fields) //nolint:errcheck // nothing else is in it
	}
	f, seen := fields{}, map[reflect.Type]bool{}
	for level := []reflect.Type{t}; len(level) > 0; {
		var deeper []reflect.Type
		found := fields{}
		for _, t := range level {
			if !seen[t] {
				seen[t] = true
				deeper = append(deeper, members(t, found)...)
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

// members adds the fields of a struct to f and returns the structs that it embeds.
func members(t reflect.Type, f fields) (embedded []reflect.Type) {
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
