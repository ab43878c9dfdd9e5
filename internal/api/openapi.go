package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

type object = map[string]any

// answerForm is a media type of an answer, with a value of its type. of is nil for bytes. Of an
// event stream, the data of each event is of this type, and its name is the field type.
type answerForm struct {
	form string
	of   any
}

// anyOf is an answer of one of several types.
type anyOf []any

func rawForm() []answerForm { return []answerForm{{formRaw, nil}} }

// execForms are the forms in which a command's output can be streamed.
func execForms() []answerForm {
	return []answerForm{{formEvents, v1.Event{}}, {formRaw, nil}, {formFrames, nil}}
}

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
	for _, r := range append(s.routes(), s.mcpRoute()) {
		path := strings.ReplaceAll(r.path, "...}", "}")
		if paths[path] == nil {
			paths[path] = object{}
		}
		methods := r.methods
		if r.method != "" {
			methods = []string{strings.ToLower(r.method)}
		}
		for _, method := range methods {
			paths[path][method] = operation(r, method, schemas)
		}
	}
	return json.Marshal(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "orchestrator", "version": s.opts.Engine.Version(caller.Principal{}).Version,
			"description": apiText, "license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"servers": []object{{"url": "/"}},
		"paths":   paths,
		"components": object{
			"schemas":   schemas,
			"responses": errorResponses(schemas),
			"securitySchemes": object{"token": object{
				"type": "http", "scheme": "bearer", "description": "A token, or none on the service's own unix socket.",
			}},
		},
	})
}

// apiText explains what the generated parts cannot.
const apiText = "Durations are whole milliseconds, sizes are bytes, and times are RFC 3339.\n\n" +
	"Errors are problems (RFC 9457). Unknown fields in requests are refused; clients must ignore unknown fields.\n\n" +
	"Accept chooses the form of an answer. In a text/event-stream, the data of each event is JSON, and the event's " +
	"name is its field type. A stream that fails after its begin ends with an event problem, whose data is a Problem.\n\n" +
	"The stream of a command begins with started, which has the command's id. stdout and stderr follow, with output " +
	"as data, or as base64 if its bytes are not UTF-8. The last event is end, with the result; without it, the stream " +
	"was cut. The stream of a tool call can begin with approval."

// allMethods are the methods that a description can have.
func allMethods() []string {
	return []string{"get", "put", "post", "delete", "options", "head", "patch", "trace"}
}

// operationID returns the id of a route's operation: its handler's name. If the route serves
// several methods, the method follows.
func operationID(r route, method string) string {
	id := r.id
	if id == "" {
		id = runtime.FuncForPC(reflect.ValueOf(r.handle).Pointer()).Name()
		id = strings.TrimSuffix(id[strings.LastIndexByte(id, '.')+1:], "-fm") // a method value
	}
	if r.method == "" {
		id += strings.ToUpper(method[:1]) + method[1:]
	}
	return id
}

func operation(r route, method string, schemas object) object {
	responses := object{"default": object{"$ref": "#/components/responses/Error"}}
	for _, code := range errorCodes(r) {
		responses[strconv.Itoa(code)] = object{"$ref": "#/components/responses/" + responseName(code)}
	}
	maps.Copy(responses, successes(r, schemas))
	op := object{
		"operationId": operationID(r, method), "summary": r.summary, "tags": []string{tag(r.path)},
		"parameters": parameters(r, method), "responses": responses, "security": []object{},
	}
	if !r.open {
		op["security"] = []object{{"token": []string{}}, {}}
	}
	if body := requestBody(r, method, schemas); body != nil {
		op["requestBody"] = body
	}
	return op
}

// tag returns the object that a path is about.
func tag(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if parts[0] == "v1" {
		return parts[1]
	}
	return "service"
}

// successes returns the answers that are no errors, by status.
func successes(r route, schemas object) object {
	content := object{}
	if r.answer != nil {
		content[formJSON] = object{"schema": valueSchema(r.answer, schemas)}
	}
	for _, f := range r.also {
		content[f.form] = object{"schema": formSchema(f, schemas)}
	}
	status, ok := r.status, object{"description": "Success."}
	switch {
	case r.upgrade:
		status, ok["description"] = http.StatusSwitchingProtocols, "The connection is upgraded. Its messages are below."
	case len(content) == 0:
		status = cmp.Or(status, http.StatusNoContent)
	}
	status = cmp.Or(status, http.StatusOK)
	if len(content) > 0 {
		ok["content"] = content
	}
	out := object{strconv.Itoa(status): ok}
	if r.path == readyPath {
		out[strconv.Itoa(http.StatusServiceUnavailable)] = object{
			"description": "No call would be served.",
			"content":     object{formProblem: object{"schema": valueSchema(v1.NotReady{}, schemas)}},
		}
	}
	return out
}

func formSchema(f answerForm, schemas object) object {
	switch {
	case f.of != nil:
		return valueSchema(f.of, schemas)
	case strings.HasPrefix(f.form, "text/"), f.form == formLines, f.form == "application/xml":
		return object{"type": "string"}
	}
	return byteSchema()
}

func byteSchema() object { return object{"type": "string", "format": "binary"} }

func requestBody(r route, method string, schemas object) object {
	switch {
	case r.body != nil && method != "get" && method != "delete":
		return object{"required": true, "content": object{formJSON: object{"schema": valueSchema(r.body, schemas)}}}
	case r.body != nil, r.kind() == bodyNone, slices.Contains([]string{"get", "head", "delete", "trace"}, method):
		return nil
	}
	return object{"content": object{formRaw: object{"schema": byteSchema()}}}
}

// errorCodes returns the statuses of the errors that a route is expected to answer with.
func errorCodes(r route) []int {
	codes := []int{http.StatusBadRequest, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusServiceUnavailable}
	if !r.open {
		codes = append(codes, http.StatusUnauthorized, http.StatusForbidden)
	}
	if strings.Contains(r.path, "{") || r.body != nil || len(r.query) > 0 {
		codes = append(codes, http.StatusNotFound)
	}
	if r.method != http.MethodGet {
		codes = append(codes, http.StatusConflict)
	}
	if r.kind() != bodyNone {
		codes = append(codes, http.StatusRequestEntityTooLarge, http.StatusInsufficientStorage)
	}
	return codes
}

func responseName(code int) string { return strings.ReplaceAll(http.StatusText(code), " ", "") }

// errorResponses returns the error answers that operations refer to.
func errorResponses(schemas object) object {
	content := object{formProblem: object{"schema": valueSchema(v1.Problem{}, schemas)}}
	out := object{"Error": object{"description": "Another error.", "content": content}}
	for _, r := range []route{{method: http.MethodPost, path: "{", takes: bodyHeld}} { // a route with all errors
		for _, code := range errorCodes(r) {
			out[responseName(code)] = object{
				"description": fmt.Sprintf("%s.", http.StatusText(code)), "content": content,
			}
		}
	}
	return out
}
