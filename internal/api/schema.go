package api

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"time"
)

// valueSchema returns the schema of a value's type, or of one of several types.
func valueSchema(v any, schemas object) object {
	list, several := v.(anyOf)
	if !several {
		return schemaOf(reflect.TypeOf(v), schemas)
	}
	var out []object
	for _, one := range list {
		out = append(out, schemaOf(reflect.TypeOf(one), schemas))
	}
	return object{"anyOf": out}
}

// schemaOf returns the schema of a type. It adds the schemas of structs to schemas, by name.
func schemaOf(t reflect.Type, schemas object) object {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[json.RawMessage]():
		return object{} // any JSON
	case t.Kind() == reflect.Pointer:
		return schemaOf(t.Elem(), schemas)
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8:
		return object{"type": "string", "contentEncoding": "base64"}
	case t.Kind() == reflect.Slice:
		return object{"type": "array", "items": schemaOf(t.Elem(), schemas)}
	case t.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": schemaOf(t.Elem(), schemas)}
	case t.Kind() == reflect.Struct:
		name := schemaName(t)
		if _, ok := schemas[name]; !ok {
			schemas[name] = object{} // placeholder: a type may contain itself
			schemas[name] = structSchema(t, schemas)
		}
		return object{"$ref": "#/components/schemas/" + name}
	case t.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case t.Kind() == reflect.String:
		return object{"type": "string"}
	case t.Kind() == reflect.Float64:
		return object{"type": "number"}
	case t.Kind() == reflect.Int64:
		return object{"type": "integer", "format": "int64"}
	}
	return object{"type": "integer"}
}

func schemaName(t reflect.Type) string {
	name := t.Name()
	if outer, inner, ok := strings.Cut(name, "["); ok { // List[…/v1.Sandbox]
		inner = strings.TrimSuffix(inner, "]")
		return inner[strings.LastIndexByte(inner, '.')+1:] + outer
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

// structSchema returns the schema of a struct. Fields without omitempty are required: answers
// always have them.
func structSchema(t reflect.Type, schemas object) object {
	props, required := object{}, []string{}
	properties(t, props, &required, schemas)
	out := object{"type": "object", "properties": props}
	if len(required) > 0 {
		slices.Sort(required)
		out["required"] = required
	}
	return out
}

// properties adds the fields of a struct. A field's tag enum lists its values.
func properties(t reflect.Type, props object, required *[]string, schemas object) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && tag == "":
			properties(f.Type, props, required, schemas)
		case tag != "-" && f.IsExported():
			schema := schemaOf(f.Type, schemas)
			if values, ok := f.Tag.Lookup("enum"); ok {
				schema["enum"] = strings.Split(values, ",")
			}
			props[tag] = schema
			if !strings.Contains(options, "omit") {
				*required = append(*required, tag)
			}
		}
	}
}

// parameters describes the parameters of an operation in its path, query and headers.
func parameters(r route, method string) []object {
	params := []object{}
	for _, m := range pathParameter.FindAllStringSubmatch(r.path, -1) {
		params = append(params, object{"name": m[1], "in": "path", "required": true, "schema": parameterSchema(r, m[1])})
	}
	for _, name := range r.query {
		p := object{"name": name, "in": "query", "schema": parameterSchema(r, name)}
		if slices.Contains(r.needs, name) {
			p["required"] = true
		}
		params = append(params, p)
	}
	if method == "post" && r.body != nil && strings.HasPrefix(r.path, "/v1/") {
		params = append(params, object{"name": "Idempotency-Key", "in": "header", "schema": object{"type": "string"},
			"description": "A repeated request with the same key gets the answer of the first."})
	}
	return params
}

// parameterSchema returns the schema of a parameter. A name means the same in every route, except
// after, which is a path in lists of artifacts.
func parameterSchema(r route, name string) object {
	switch name {
	case "after":
		if strings.HasSuffix(r.path, "/artifacts") {
			return object{"type": "string"}
		}
		return object{"type": "integer", "format": "int64"}
	case "all", "close", "dir", "dry_run", "end", "ended", "follow", "forget", "keep", "list", "newest", "read_only",
		"recursive", "stat":
		return object{"type": "boolean"}
	case "attempt", "cols", "from", "grace_ms", "index", "limit", "offset", "rows", "signal", "spool_bytes", "timeout_ms",
		"wait_ms":
		return object{"type": "integer", "format": "int64", "minimum": 0}
	case "port":
		return object{"type": "integer", "minimum": 1, "maximum": 1<<16 - 1}
	case "until":
		return object{"type": "string", "format": "date-time"}
	case "stream":
		return object{"type": "string", "enum": []string{"stdout", "stderr"}}
	case "mode":
		return object{"type": "string", "pattern": "^0?[0-7]{1,3}$"}
	}
	return object{"type": "string"}
}

// mcpRoute describes the endpoint of the Model Context Protocol, whose messages its specification
// defines.
func (s *Server) mcpRoute() route {
	return route{
		path: mcpPath, id: "mcp", methods: []string{"get", "post", "delete"}, takes: bodyHeld,
		summary: "Speak the Model Context Protocol (streamable HTTP); see docs/mcp.md",
		query:   []string{"profile", "workspace", "read_only", "template", "job"},
		body:    map[string]json.RawMessage{}, answer: map[string]json.RawMessage{},
		also: []answerForm{{formEvents, map[string]json.RawMessage{}}},
	}
}
