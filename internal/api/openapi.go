package api

import (
	"encoding/json"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

type object = map[string]any

var pathParameter = regexp.MustCompile(`\{(\w+)(\.\.\.)?\}`)

// openapi answers with the description of the interface.
func (s *Server) openapi(w http.ResponseWriter, _ *http.Request, _ caller.Principal) error {
	b, err := s.description()
	if err != nil {
		return err
	}
	return sendCounted(w, http.StatusOK, formJSON, b)
}

// describe returns the description of the interface. It is generated from the routes and the types,
// so that it cannot differ from them. That is too much work for each request, which needs no token.
func (s *Server) describe() ([]byte, error) {
	schemas := object{}
	paths := map[string]object{}
	for _, r := range s.routes() {
		path := strings.ReplaceAll(r.path, "...}", "}")
		if paths[path] == nil {
			paths[path] = object{}
		}
		methods := []string{strings.ToLower(r.method)}
		if r.method == "" {
			methods = allMethods
		}
		for _, method := range methods {
			paths[path][method] = operation(r, schemas)
		}
	}
	schemaOf(reflect.TypeFor[v1.Problem](), schemas)
	return json.Marshal(object{
		"openapi": "3.1.0",
		"info":    object{"title": "orchestrator", "version": s.opts.Engine.Version(caller.Principal{}).Version},
		"paths":   paths,
		"components": object{
			"schemas":         schemas,
			"securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}},
		},
	})
}

// allMethods are the methods that a description can have.
var allMethods = []string{"get", "put", "post", "delete", "options", "head", "patch", "trace"}

func operation(r route, schemas object) object {
	inPath := pathParameter.FindAllStringSubmatch(r.path, -1)
	params := make([]object, 0, len(inPath)+len(r.query))
	for _, m := range inPath {
		params = append(params, object{"name": m[1], "in": "path", "required": true,
			"schema": object{"type": "string"}})
	}
	for _, q := range r.query {
		params = append(params, object{"name": q, "in": "query", "schema": object{"type": "string"}})
	}
	ok := object{"description": "done"}
	if r.answer != nil {
		ok["content"] = object{formJSON: object{"schema": schemaOf(reflect.TypeOf(r.answer), schemas)}}
	}
	problem := object{"schema": object{"$ref": "#/components/schemas/Problem"}}
	op := object{
		"summary": r.summary, "parameters": params,
		"responses": object{
			"2XX": ok,
			"default": object{
				"description": "an error", "content": object{formProblem: problem},
			},
		},
	}
	if !r.open {
		op["security"] = []object{{"token": []string{}}, {}}
	}
	if r.body != nil {
		op["requestBody"] = object{"content": object{formJSON: object{"schema": schemaOf(reflect.TypeOf(r.body),
			schemas)}}}
	}
	return op
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
	case t.Kind() == reflect.Slice:
		return object{"type": "array", "items": schemaOf(t.Elem(), schemas)}
	case t.Kind() == reflect.Map:
		return object{"type": "object", "additionalProperties": schemaOf(t.Elem(), schemas)}
	case t.Kind() == reflect.Struct:
		name := schemaName(t)
		if _, ok := schemas[name]; !ok {
			schemas[name] = object{} // placeholder: a type may contain itself
			props := object{}
			properties(t, props, schemas)
			schemas[name] = object{"type": "object", "properties": props}
		}
		return object{"$ref": "#/components/schemas/" + name}
	case t.Kind() == reflect.Bool:
		return object{"type": "boolean"}
	case t.Kind() == reflect.String:
		return object{"type": "string"}
	case t.Kind() == reflect.Float64:
		return object{"type": "number"}
	}
	return object{"type": "integer"}
}

func schemaName(t reflect.Type) string {
	name := t.Name()
	if outer, inner, ok := strings.Cut(name, "["); ok { // List[…/v1.Sandbox]
		inner = strings.TrimSuffix(inner, "]")
		return inner[strings.LastIndexByte(inner, '.')+1:] + outer
	}
	return name
}

func properties(t reflect.Type, props, schemas object) {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && tag == "":
			properties(f.Type, props, schemas)
		case tag != "-" && f.IsExported():
			props[tag] = schemaOf(f.Type, schemas)
		}
	}
}
