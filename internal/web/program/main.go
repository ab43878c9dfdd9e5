package program

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Settings of the garbage collector, for a short-lived program with little memory.
const (
	collectAt  = 25
	softMemory = 80 << 20
	// maxStack ends endless recursion in a parser, which nothing else can.
	maxStack    = 64 << 20
	longestTime = time.Hour
)

// Main reads a Request from in, makes the exchange and writes an Answer to out. It returns 0 if an
// answer was written, even one with a Fault. A conversion cannot be interrupted: if it still runs
// when ctx or the time of the request ends, its goroutine is abandoned, so the process must exit.
func Main(ctx context.Context, in io.Reader, out io.Writer) int {
	defer debug.SetGCPercent(debug.SetGCPercent(collectAt))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(softMemory))
	defer debug.SetMaxStack(debug.SetMaxStack(maxStack))
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(answer(ctx, in)) != nil {
		return 1
	}
	return 0
}

// answer handles a request. A panic becomes a Fault.
func answer(ctx context.Context, in io.Reader) (a *web.Answer) {
	a = &web.Answer{}
	defer func() {
		if r := recover(); r != nil {
			a.Fault = faultOf(panicked(r))
		}
	}()
	req, err := readRequest(in)
	if err != nil {
		a.Fault = faultOf(err)
		return a
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(req.TimeoutMS)*time.Millisecond)
	defer cancel()
	body, err := exchange(ctx, req, a)
	if err != nil {
		a.Fault = faultOf(err)
	}
	if body == nil {
		return a
	}
	if err := respond(ctx, req, a, body); err != nil && a.Fault == nil {
		a.Fault = faultOf(err)
	}
	return a
}

func panicked(r any) error {
	return faultf(web.FaultProgram, "guest-web failed: %v", r)
}

// readRequest reads and checks the request, except its URL.
func readRequest(in io.Reader) (*web.Request, error) {
	b, err := io.ReadAll(io.LimitReader(in, web.MaxRequest+1))
	switch {
	case err != nil:
		return nil, faultf(web.FaultRequest, "read the request: %v", err)
	case len(b) > web.MaxRequest:
		return nil, faultf(web.FaultRequest, "request is larger than %d bytes", web.MaxRequest)
	}
	req := &web.Request{}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(req); err != nil {
		return nil, faultf(web.FaultRequest, "invalid request: %v", err)
	}
	return req, check(req)
}

func check(req *web.Request) error {
	bad := func(field string, v any, want string) error {
		return faultf(web.FaultRequest, "%s: %s is not %s", field, oneLine(fmt.Sprint(v), 60), want)
	}
	switch {
	case req.TimeoutMS <= 0 || req.TimeoutMS > longestTime.Milliseconds():
		return bad("timeout_ms", req.TimeoutMS, "between 1 and an hour")
	case req.MaxBytes <= 0 || req.MaxBytes > web.MaxBody:
		return bad("max_bytes", req.MaxBytes, fmt.Sprintf("between 1 and %d", web.MaxBody))
	case req.MaxRedirects < 0 || req.MaxRedirects > web.MaxRedirects:
		return bad("max_redirects", req.MaxRedirects, fmt.Sprintf("between 0 and %d", web.MaxRedirects))
	case req.MaxText < 0:
		return bad("max_text", req.MaxText, "0 or more")
	case req.Proxy == "":
		return bad("proxy", `""`, "host:port, the proxy of the sandbox")
	}
	switch req.Redirects {
	case web.SameHost, web.Follow, web.None:
	default:
		return bad("redirects", req.Redirects, "same_host, follow or none")
	}
	switch req.Form {
	case web.Raw, web.Markdown, web.Article, web.Text:
	default:
		return bad("form", req.Form, "raw, markdown, article or text")
	}
	if !token(req.Method) || req.Method == http.MethodConnect {
		return bad("method", req.Method, "a method such as GET")
	}
	return checkHeader(req.Header)
}
