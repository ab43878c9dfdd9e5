package webtool

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
)

// Limits of http.request.
const (
	// RequestTimeout is the default time-out.
	RequestTimeout = 30 * time.Second
	// RequestBody is the default maximum of an answer's body, in bytes.
	RequestBody = 1 << 20

	maxSent        = 4 << 20
	maxFields      = 64
	maxFieldsBytes = 32 << 10
)

// methods lists the methods of http.request. It excludes CONNECT, which opens a tunnel, and TRACE,
// which can reveal a server's secrets.
var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

// reserved lists header fields that only the tool sets, because they control routing and framing.
var reserved = []string{
	"Host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Te", "Trailer", "Upgrade", "Expect",
	"Accept-Encoding", "Http2-Settings",
	web.RefusalHeader,
}

type requestInput struct {
	Method     string            `json:"method,omitempty" jsonschema:"GET (the default), HEAD, POST, PUT, PATCH, DELETE or OPTIONS"`
	URL        string            `json:"url" jsonschema:"http:// or https://"`
	Headers    map[string]string `json:"headers,omitempty" jsonschema:"fields to send"`
	Body       string            `json:"body,omitempty" jsonschema:"what to send"`
	BodyBase64 string            `json:"body_base64,omitempty" jsonschema:"what to send, for bytes that are no text"`
	Redirects  string            `json:"redirects,omitempty" jsonschema:"follow (the default), same_host or none; what is not followed is in redirect_url"`
	MaxBytes   int64             `json:"max_bytes,omitempty" jsonschema:"at most this many bytes of the answer's body; 1048576 unless set"`
	TimeoutMS  int64             `json:"timeout_ms,omitempty" jsonschema:"give up after this many milliseconds"`

	at     *url.URL
	fields [][2]string
	body   []byte
}

// RequestOutput is an answer of any status.
type RequestOutput struct {
	URL         string            `json:"url" jsonschema:"the address that answered, after redirects"`
	Status      int               `json:"status"`
	Headers     map[string]string `json:"headers" jsonschema:"names in lower case; several fields of one name are joined by a comma"`
	Body        string            `json:"body"`
	BodyBase64  string            `json:"body_base64,omitempty" jsonschema:"instead of body, for bytes that are no text"`
	Bytes       int64             `json:"bytes"`
	Truncated   bool              `json:"truncated"`
	RedirectURL string            `json:"redirect_url,omitempty" jsonschema:"where a redirect leads that was not followed"`
	DurationMS  int64             `json:"duration_ms"`
}

var httpRequest = tool.Define(tool.Tool{
	Name: "http.request", Title: "Make an HTTP request", Trust: 2, Destructive: true,
	Description: "Makes an HTTP request and gives the answer, whatever its status. " +
		"Only public hosts can be asked; each redirect is decided on like the request.",
	Effects: []tool.Effect{tool.CallsNetwork},
}, func(in *requestInput) (p tool.Prepared, err error) {
	if in.at, err = address(in.URL); err != nil {
		return p, err
	}
	in.Method = cmp.Or(in.Method, http.MethodGet)
	switch {
	case !slices.Contains(methods, in.Method):
		return p, tool.Invalid("method", "is %q: use %s", in.Method, strings.Join(methods, ", "))
	case in.Redirects != "" && in.Redirects != web.Follow && in.Redirects != web.SameHost && in.Redirects != web.None:
		return p, tool.Invalid("redirects", "is %q: use follow, same_host or none", in.Redirects)
	case in.MaxBytes < 0 || in.MaxBytes > web.MaxBody:
		return p, tool.Invalid("max_bytes", "is %d: from 1 to %d", in.MaxBytes, web.MaxBody)
	case in.TimeoutMS < 0:
		return p, tool.Invalid("timeout_ms", "is negative")
	}
	if in.fields, err = fieldsOf(in.Headers); err != nil {
		return p, err
	}
	in.body, err = in.sent()
	return p, err
}, runRequest)

func runRequest(ctx context.Context, caps tool.Caps, w Web, in *requestInput) (
	out RequestOutput, o tool.Outcome, err error,
) {
	limit, err := timeout(caps, in.TimeoutMS, RequestTimeout)
	if err != nil {
		return out, o, err
	}
	most := cmp.Or(in.MaxBytes, caps.Web.MaxBytes, RequestBody)
	if m := caps.Web.MaxBytes; m > 0 && most > m {
		return out, o, tool.Invalid("max_bytes", "is %d: at most %d", most, m)
	}
	x := Exchange{Scope: reach.Within(w.Request, caps.Web), Request: web.Request{
		URL: in.at.String(), Method: in.Method, Header: in.fields, Body: in.body, TimeoutMS: limit.Milliseconds(),
		MaxBytes: most, Redirects: cmp.Or(in.Redirects, web.Follow), MaxRedirects: web.MaxRedirects, Form: web.Raw,
	}}
	if err := x.Scope.Check(in.at, in.Method); err != nil {
		return out, o, err
	}
	began := time.Now()
	a, err := ask(ctx, w.Exchanger, x)
	if l := late(err, limit); l != nil {
		return out, *l, tool.ErrNoOutput
	}
	if err != nil {
		return out, o, err
	}
	took := time.Since(began)
	return answered(a, took), tool.Outcome{Duration: took, Truncated: a.Truncated}, nil
}

func answered(a web.Answer, took time.Duration) RequestOutput {
	out := RequestOutput{
		URL: a.URL, Status: a.Status, Headers: map[string]string{}, Bytes: a.Bytes, Truncated: a.Truncated,
		RedirectURL: a.RedirectURL, DurationMS: took.Milliseconds(),
	}
	for _, h := range a.Header {
		name, value := strings.ToLower(h[0]), strings.ToValidUTF8(h[1], "\uFFFD")
		if have, ok := out.Headers[name]; ok {
			value = have + ", " + value
		}
		out.Headers[name] = value
	}
	text := a.Body
	if a.Truncated { // a character split by the cut does not require base64
		text = tool.TrimPartial(text)
	}
	if utf8.Valid(text) {
		out.Body = string(text)
	} else {
		out.BodyBase64 = base64.StdEncoding.EncodeToString(a.Body)
	}
	return out
}

// fieldsOf checks the header fields of a request and returns them sorted.
func fieldsOf(headers map[string]string) ([][2]string, error) {
	if len(headers) > maxFields {
		return nil, tool.Invalid("headers", "has %d entries: at most %d", len(headers), maxFields)
	}
	total, out, seen := 0, make([][2]string, 0, len(headers)), map[string]bool{}
	for name, value := range headers {
		key := http.CanonicalHeaderKey(name)
		total += len(name) + len(value)
		switch {
		case !httpguts.ValidHeaderFieldName(name):
			return nil, tool.Invalid("headers", "has the name %q: use letters, digits and hyphens", name)
		case seen[key]:
			return nil, tool.Invalid("headers."+name, "is there twice, in another case")
		case slices.Contains(reserved, key) || strings.HasPrefix(key, "Proxy-"):
			return nil, tool.Invalid("headers."+name, "is not yours to set: it says where or how the request goes")
		case strings.ContainsAny(value, "\r\n"):
			return nil, tool.Invalid("headers."+name, "has a line break: a field is one line")
		case !httpguts.ValidHeaderFieldValue(value):
			return nil, tool.Invalid("headers."+name, "has a control character")
		}
		seen[key] = true
		out = append(out, [2]string{name, value})
	}
	if total > maxFieldsBytes {
		return nil, tool.Invalid("headers", "are %d bytes long: at most %d", total, maxFieldsBytes)
	}
	slices.SortFunc(out, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) })
	return out, nil
}

// sent returns the body of a request.
func (in *requestInput) sent() ([]byte, error) {
	body := []byte(in.Body)
	if in.BodyBase64 != "" {
		if in.Body != "" {
			return nil, tool.Invalid("body_base64", "and body are both set: use one of them")
		}
		var err error
		if body, err = base64.StdEncoding.DecodeString(in.BodyBase64); err != nil {
			return nil, tool.Invalid("body_base64", "is not base64")
		}
	}
	switch {
	case len(body) > maxSent:
		return nil, tool.Invalid("body", "is %d bytes long: at most %d", len(body), maxSent)
	case len(body) > 0 && (in.Method == http.MethodGet || in.Method == http.MethodHead):
		return nil, tool.Invalid("body", "is for methods that send something, not for %s", in.Method)
	}
	return body, nil
}
