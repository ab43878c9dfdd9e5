package api

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

// Media types of answers.
const (
	formJSON   = "application/json"
	formEvents = "text/event-stream"
	formRaw    = "application/octet-stream"
	formFrames = "application/vnd.orchestrator.frames"
)

// headerExec is the header with the request of an exec whose body is stdin.
const headerExec = "Orchestrator-Exec"

// maxParameters bounds the number of URL parameters. maxWord bounds, in bytes, how much of a header
// or parameter an error message repeats.
const (
	maxParameters = 64
	maxWord       = 256
)

// decodeBody decodes a JSON body into v. An empty body is an empty object.
func decodeBody(r *http.Request, v any) error {
	b, err := readJSON(r)
	if err != nil {
		return err
	}
	return decodeJSON(b, v)
}

func decodeJSON(b []byte, v any) error {
	if len(bytes.TrimSpace(b)) == 0 {
		return nil
	}
	return strictjson.Decode(b, v)
}

// readJSON reads a JSON body within its limit and the budget. Errors about the body are
// *httpguard.BodyError.
func readJSON(r *http.Request) ([]byte, error) {
	if t := r.Header.Get("Content-Type"); t != "" {
		if m, _, err := mime.ParseMediaType(t); err != nil || m != formJSON {
			return nil, &strictjson.FieldError{Field: "Content-Type",
				Message: fmt.Sprintf("is %q and must be %s", clip.Elide(t, maxWord), formJSON)}
		}
	}
	return readBody(r)
}

// readBody reads the body of a request into memory. A request without a body returns nil.
func readBody(r *http.Request) ([]byte, error) {
	if in, ok := r.Body.(*httpguard.Body); ok {
		return in.Hold()
	}
	return nil, nil
}

// execBody decodes the request of an exec into v. The request is the JSON body, or the header
// headerExec; then the body is returned as stdin.
func execBody(w http.ResponseWriter, r *http.Request, v any) (stdin io.Reader, err error) {
	h := r.Header.Get(headerExec)
	if h == "" {
		return nil, decodeBody(r, v)
	}
	b, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(h, "="))
	if err != nil {
		return nil, &strictjson.FieldError{Field: headerExec, Message: "is not base64url"}
	}
	if err := strictjson.Decode(b, v); err != nil {
		return nil, err
	}
	// The client sends input while it receives output.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		return nil, fmt.Errorf("stream stdin: %w: %w", err, errdefs.ErrNotImplemented)
	}
	return r.Body, nil
}

// form chooses the media type of an answer from the Accept header. known[0] is the default.
func form(r *http.Request, known ...string) (string, error) {
	accept := r.Header.Get("Accept")
	if accept == "" {
		return known[0], nil
	}
	for part := range strings.SplitSeq(accept, ",") {
		m, _, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		if m == "*/*" || m == "application/*" {
			return known[0], nil
		}
		for _, k := range known {
			if m == k {
				return k, nil
			}
		}
	}
	return "", &strictjson.FieldError{Field: "Accept",
		Message: fmt.Sprintf("is %q and must be one of %s", clip.Elide(accept, maxWord), strings.Join(known, ", "))}
}

// query reads URL parameters. It keeps the first error, also for unknown and repeated parameters.
type query struct {
	values map[string][]string
	err    error
}

func queryOf(r *http.Request, known ...string) *query {
	if strings.Count(r.URL.RawQuery, "&") >= maxParameters {
		return &query{err: &strictjson.FieldError{Field: "query",
			Message: fmt.Sprintf("has over %d parameters, which is the limit", maxParameters)}}
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &query{values: values}
	if err != nil { // the dropped part may be important
		q.fail("query", "cannot be read: "+err.Error())
	}
	for name, v := range q.values {
		switch {
		case !slices.Contains(known, name):
			q.fail(clip.Elide(name, maxWord), "is not a parameter here; known are "+strings.Join(known, ", "))
		case len(v) > 1:
			q.fail(name, "is given more than once")
		case !utf8.ValidString(v[0]):
			q.fail(name, "is not valid UTF-8")
		}
	}
	return q
}

func (q *query) fail(name, why string) {
	if q.err == nil {
		q.err = &strictjson.FieldError{Field: name, Message: why}
	}
}

func (q *query) text(name string) string {
	if v := q.values[name]; len(v) == 1 {
		return v[0]
	}
	return ""
}

func (q *query) number(name string) int64 {
	v := q.text(name)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		q.fail(name, fmt.Sprintf("is %q and must be a whole number that is not negative", clip.Elide(v, maxWord)))
	}
	return n
}

func (q *query) millis(name string) time.Duration {
	n := q.number(name)
	if n > int64(24*time.Hour/time.Millisecond) {
		q.fail(name, "is more than a day")
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

func (q *query) boolean(name string) bool {
	switch v := q.text(name); v {
	case "", "false":
		return false
	case "true":
		return true
	default:
		q.fail(name, fmt.Sprintf("is %q and must be true or false", clip.Elide(v, maxWord)))
		return false
	}
}

func (q *query) mode(name string) uint32 {
	v := q.text(name)
	if v == "" {
		return 0
	}
	n, err := strconv.ParseUint(v, 8, 32)
	if err != nil || n > 0o777 {
		q.fail(name, fmt.Sprintf("is %q and must be octal permission bits such as 0644", clip.Elide(v, maxWord)))
	}
	return uint32(n)
}

// file returns the file request that the parameters describe.
func (q *query) file() wire.FileRequest {
	return wire.FileRequest{
		Path: q.text("path"), To: q.text("to"), Offset: q.number("offset"), Limit: q.number("limit"),
		Mode: q.mode("mode"), Recursive: q.boolean("recursive"),
	}
}

// resolveID replaces the id in a request's path by the full one: clients may give the beginning of
// an id, or the name of a sandbox. Handlers see full ids only.
func (s *Server) resolveID(r *http.Request, rt route, p caller.Principal) error {
	kind, rest, _ := strings.Cut(strings.TrimPrefix(rt.path, "/v1/"), "/")
	if next, _, _ := strings.Cut(rest, "/"); next != "{id}" {
		return nil
	}
	// A terminal is opened by GET, but is direct.
	reads := rt.method == http.MethodGet && !rt.direct
	id, err := s.opts.Engine.ResolveID(r.Context(), p, kind, r.PathValue("id"), reads)
	if err != nil {
		return err
	}
	r.SetPathValue("id", id)
	session := r.PathValue("session")
	if session == "" {
		return nil
	}
	if session, err = s.opts.Engine.ResolveSession(r.Context(), p, id, session); err != nil {
		return err
	}
	r.SetPathValue("session", session)
	return nil
}
