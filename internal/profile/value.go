package profile

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"sync"
)

// plainValue converts a value as encoding/json would by marshalling and unmarshalling it. It avoids
// the text form because outputs are large.
func plainValue(v any) (any, error) {
	switch v := v.(type) {
	case nil, string, bool, int64, float64, []any, map[string]any:
		return v, nil
	case json.RawMessage:
		return decodeJSON(v)
	}
	return reflectValue(reflect.ValueOf(v))
}

func decodeJSON(b []byte) (any, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, err
	}
	return v, nil
}

func reflectValue(v reflect.Value) (any, error) {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return nil, nil
		}
		v = v.Elem()
	}
	if v.Type() == rawType {
		return decodeJSON(v.Bytes())
	}
	if v.Kind() == reflect.Struct || v.Kind() == reflect.Map {
		switch v.Interface().(type) {
		case json.Marshaler, encoding.TextMarshaler:
			b, err := json.Marshal(v.Interface())
			if err != nil {
				return nil, err
			}
			return decodeJSON(b)
		}
	}
	switch v.Kind() {
	case reflect.String:
		return v.String(), nil
	case reflect.Bool:
		return v.Bool(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int(), nil
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return int64(v.Uint()), nil
	case reflect.Float32, reflect.Float64:
		return v.Float(), nil
	case reflect.Struct:
		return reflectStruct(v)
	case reflect.Map:
		return reflectMap(v)
	case reflect.Slice:
		return reflectSlice(v)
	default:
		return nil, fmt.Errorf("cannot convert a value of type %s", v.Type())
	}
}

func reflectSlice(v reflect.Value) (any, error) {
	if v.IsNil() {
		return nil, nil
	}
	out := make([]any, v.Len())
	for i := range out {
		var err error
		if out[i], err = reflectValue(v.Index(i)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func reflectMap(v reflect.Value) (any, error) {
	if v.IsNil() {
		return nil, nil
	}
	if v.Type().Key().Kind() != reflect.String {
		return nil, fmt.Errorf("cannot convert a value of type %s", v.Type())
	}
	out := make(map[string]any, v.Len())
	for it := v.MapRange(); it.Next(); {
		e, err := reflectValue(it.Value())
		if err != nil {
			return nil, err
		}
		out[it.Key().String()] = e
	}
	return out, nil
}

type field struct {
	index     int
	name      string
	omit      bool // omit if empty or zero
	flattened bool
}

// fieldCache caches the fields of struct types. The number of types is bounded.
//
//nolint:gochecknoglobals // a cache of what types are like
var fieldCache sync.Map

func structFields(t reflect.Type) []field {
	if s, ok := fieldCache.Load(t); ok {
		return s.([]field)
	}
	var out []field
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() && !f.Anonymous:
			continue
		case name == "" && f.Anonymous:
			out = append(out, field{index: i, flattened: true})
			continue
		case name == "":
			name = f.Name
		}
		out = append(out, field{index: i, name: name, omit: strings.Contains(options, "omit")})
	}
	fieldCache.Store(t, out)
	return out
}

func reflectStruct(v reflect.Value) (any, error) {
	out := make(map[string]any, v.NumField())
	for _, f := range structFields(v.Type()) {
		x := v.Field(f.index)
		if f.omit && (x.IsZero() || (x.Kind() == reflect.Slice || x.Kind() == reflect.Map) && x.Len() == 0) {
			continue
		}
		e, err := reflectValue(x)
		if err != nil {
			return nil, err
		}
		if m, ok := e.(map[string]any); ok && f.flattened {
			for k, inner := range m {
				out[k] = inner
			}
			continue
		}
		out[f.name] = e
	}
	return out, nil
}
