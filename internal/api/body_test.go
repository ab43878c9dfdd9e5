package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv"
)

var eventually = testenv.Eventually

// send opens a connection and sends the head of a request that declares a body, and the first bytes
// of the body.
func send(t *testing.T, srv *httptest.Server, method, path string, declared, sent int, header ...string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", method,
		path, declared)
	for i := 0; i+1 < len(header); i += 2 {
		head += header[i] + ": " + header[i+1] + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		t.Fatal(err)
	}
	piece := bytes.Repeat([]byte(" "), 64<<10)
	for sent > 0 {
		n, err := conn.Write(piece[:min(sent, len(piece))])
		if err != nil {
			break // the server refused it and sent the answer
		}
		sent -= n
	}
	return conn
}

// answerOn reads the answer on a connection.
func answerOn(t *testing.T, conn net.Conn) asked {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return asked{res.StatusCode, res.Header, string(b)}
}

// peakHeap samples the size of the heap's objects until the returned function is called, and
// returns the maximum in bytes.
func peakHeap() (peak func() uint64) {
	stop, done := make(chan struct{}), make(chan uint64)
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for most := uint64(0); ; {
			metrics.Read(sample)
			most = max(most, sample[0].Value.Uint64())
			select {
			case <-tick.C:
			case <-stop:
				done <- most
				return
			}
		}
	}()
	return func() uint64 { close(stop); return <-done }
}

// The bodies of one caller take a bounded amount of memory. Other callers and the operator are
// served, and the memory is returned when the clients disconnect.
func TestHeldBodiesAreBounded(t *testing.T) {
	const connections = 60
	for _, c := range []struct {
		who, path string
		size      int
	}{
		{"a caller", "/v1/tools/system.run/call", maxToolBody},
		{"the operator", "/v1/run", maxExecBody},
	} {
		t.Run(c.who, func(t *testing.T) {
			e, _ := newEngine(t)
			s := New(Options{Engine: e, Token: "secret"})
			s.pace = httpguard.Pace{Stall: time.Hour, Grace: time.Hour, Most: time.Hour, Rate: 1 << 20}
			srv := serveHTTP(t, s)
			flooder, other := bearer(t, srv, `{"caller":"ann"}`), bearer(t, srv, `{"caller":"ben"}`)
			operator := []string{"Authorization", "Bearer secret"}
			if c.who == "the operator" {
				flooder, operator = operator, bearer(t, srv, `{"caller":"ops","operator":true}`)
			}
			runtime.GC()
			peak := peakHeap()
			var sending sync.WaitGroup
			conns := make(chan net.Conn, connections)
			for range connections {
				sending.Go(func() { conns <- send(t, srv, "POST", c.path, c.size, c.size-1, flooder...) })
			}
			sending.Wait()
			held, refused := s.bodies.Bounds().Caller/int64(c.size), make(chan asked, connections)
			for range connections {
				go func() {
					if res, err := http.ReadResponse(bufio.NewReader(<-conns), nil); err == nil {
						b, _ := io.ReadAll(res.Body)
						refused <- asked{res.StatusCode, res.Header, string(b)}
					}
				}()
			}
			for range connections - held {
				got := <-refused
				problemIs(t, got, http.StatusTooManyRequests, "resource_exhausted", "body")
				if got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "requests.caller_bodies") {
					t.Errorf("refusal = %v %s, want a Retry-After and requests.caller_bodies", got.header, got.body)
				}
			}
			eventually(t, "the rest is held", func() bool { n, _, _ := s.bodies.Held(); return n >= held*int64(c.size) })
			if got := peak(); got > 160<<20 {
				t.Errorf("the heap had %d MiB, want at most 160", got>>20)
			}
			for _, who := range [][]string{other, operator} {
				got := ask(t, srv, "POST", "/v1/tools/system.run/call",
					`{"input":{"argv":["echo","`+strings.Repeat("x", 100<<10)+`"]}}`, who...)
				if got.status != http.StatusOK {
					t.Errorf("request of %v: status %d %.200s, want 200", who, got.status, got.body)
				}
			}
			srv.CloseClientConnections()
			eventually(t, "the budget is given back",
				func() bool { n, _, callers := s.bodies.Held(); return n == 0 && callers == 0 })
		})
	}
}

// A held body takes its size, a chunked one twice its size, and decoding takes only the value's
// size. The bounds include allocations of other goroutines.
func TestHeldBodyIsNotCopied(t *testing.T) {
	e, _ := newEngine(t)
	s := New(Options{Engine: e})
	text := `{"argv":["cat"],"stdin":"` + strings.Repeat("x", maxExecBody-100) + `"}`
	for _, c := range []struct {
		what     string
		declared int64
		most     float64
	}{{"of known length", int64(len(text)), 3}, {"in chunks", -1, 4}} {
		// The counter includes other goroutines of the process, so the least of a few runs counts.
		got := math.Inf(1)
		for range 3 {
			got = min(got, float64(allocatedByBody(t, s, text, c.declared))/float64(len(text)))
		}
		if got > c.most {
			t.Errorf("a body %s cost %.2f times its size, want at most %.2f", c.what, got, c.most)
		}
	}
	if n, _, callers := s.bodies.Held(); n != 0 || callers != 0 {
		t.Errorf("%d bytes of %d callers are held, want 0", n, callers)
	}
}

// allocatedByBody returns the number of bytes that the process allocates while a body is decoded.
func allocatedByBody(t *testing.T, s *Server, text string, declared int64) uint64 {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "POST", "/v1/run", strings.NewReader(text))
	r.ContentLength = declared
	r, in := s.receive(httptest.NewRecorder(), r, route{body: v1.Run{}, limit: maxExecBody}, caller.Local(""))
	defer in.Release()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var req v1.Run
	err := decodeBody(r, &req)
	runtime.ReadMemStats(&after)
	if err != nil || len(req.Stdin) != maxExecBody-100 {
		t.Fatalf(
			"decodeBody of declared length %d = %v with %d bytes of stdin, want %d",
			declared,
			err,
			len(req.Stdin),
			maxExecBody-100,
		)
	}
	return after.TotalAlloc - before.TotalAlloc
}

// Only routes with stdin or a tool's input accept large bodies. All others have a small limit,
// stream the body or do not read it.
func TestRouteBodyLimits(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e, ShellCaller: "old"})
	srv := serveHTTP(t, s)
	large := map[string]int64{
		"POST /v1/run": maxExecBody, "POST /v1/sandboxes/{id}/exec": maxExecBody,
		"POST /v1/sandboxes/{id}/shells":                  maxExecBody,
		"POST /v1/sandboxes/{id}/sessions/{session}/exec": maxExecBody, "POST /v1/tools/{name}/call": maxToolBody,
		"POST /v1/approvals/{id}/answer": maxToolBody, "POST /v1/jobs": maxExecBody,
	}
	streamed := []string{
		"POST /v1/images", "POST /v1/images/build", "PUT /v1/sandboxes/{id}/files", "PUT /v1/workspaces/{name}/files",
		"POST /v1/shells/{id}/input", " /v1/sandboxes/{id}/ports/{port}/{path...}",
	}
	for _, rt := range s.routes() {
		name := rt.method + " " + rt.path
		limit := max(large[name], maxBody)
		switch kind := rt.kind(); {
		case slices.Contains(streamed, name) != (kind == bodyUpload || kind == bodyStream):
			t.Errorf("%s has body kind %d, want that of a stream: %t", name, kind, slices.Contains(streamed, name))
		case kind == bodyHeld && name != "POST /shell":
			conn := send(t, srv, rt.method, strings.NewReplacer("{", "", "}", "").Replace(rt.path), int(limit+1), 0)
			got := answerOn(t, conn)
			conn.Close()
			problemIs(t, got, http.StatusRequestEntityTooLarge, "invalid_argument", "body")
			if !strings.Contains(got.body, fmt.Sprint(limit)) {
				t.Errorf("%s: body = %s, want the limit of %d in it", name, got.body, limit)
			}
		case kind == bodyNone && large[name] != 0:
			t.Errorf("%s reads no body, want one of at most %d bytes", name, large[name])
		}
	}
}

func TestSlowBodyIsRefused(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e})
	s.pace.Stall, s.stall = 50*time.Millisecond, 50*time.Millisecond
	srv := serveHTTP(t, s)
	got := answerOn(t, send(t, srv, "POST", "/v1/run", maxExecBody, 1<<20))
	problemIs(t, got, http.StatusRequestTimeout, "invalid_argument", "body")
	statusIs(t, ask(t, srv, "POST", "/v1/workspaces", `{"name":"w"}`), http.StatusCreated)
	conn, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn,
		"PUT /v1/workspaces/w/files?path=f HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"); err != nil {
		t.Fatal(err)
	}
	problemIs(t, answerOn(t, conn), http.StatusRequestTimeout, "invalid_argument", "body")
	if n, _, _ := s.bodies.Held(); n != 0 {
		t.Errorf("%d bytes are held, want 0", n)
	}
}

// The server does not ask for a body before the caller is identified, nor on a route that the
// caller may not use.
func TestBodyIsNotReadBeforeCallerIsIdentified(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	ann := bearer(t, srv, `{"caller":"ann"}`)
	for _, c := range []struct {
		path   string
		header []string
		status int
	}{
		{"/v1/run", nil, http.StatusUnauthorized},
		{"/v1/run", []string{"Authorization", "Bearer orc_x"}, http.StatusUnauthorized},
		{"/v1/tokens", ann, http.StatusForbidden},
		{"/v1/run", ann, http.StatusForbidden},
	} {
		// A server that reads the body of such a request first sends 100 Continue.
		conn := send(t, srv, "POST", c.path, maxBody, 0, append([]string{"Expect", "100-continue"}, c.header...)...)
		if got := answerOn(t, conn); got.status != c.status {
			t.Errorf("POST %s of %v: status %d, want %d", c.path, c.header, got.status, c.status)
		}
	}
}

func TestTooManyValuesAreRefused(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	for _, path := range []string{"/v1/run", "/v1/policy/check", "/v1/tools/system.run/call"} {
		got := ask(t, srv, "POST", path, `{"argv":[`+strings.Repeat(`"",`, httpguard.MaxValues)+`""]}`)
		problemIs(t, got, http.StatusBadRequest, "invalid_argument", "body")
	}
	problemIs(t, ask(t, srv, "GET", "/v1/audit?"+strings.Repeat("a&", maxParameters), ""), http.StatusBadRequest,
		"invalid_argument", "query")
	// Error messages repeat a bounded part of the request.
	for _, c := range [][2]string{{"n", strings.Repeat("9", 500<<10)}, {strings.Repeat("n", 500<<10), "1"}} {
		if got := ask(t, srv, "POST", "/v1/sandboxes",
			`{"ttl_ms":1,"`+c[0]+`":`+c[1]+`}`); got.status != http.StatusBadRequest || len(got.body) > 2*maxDetail {
			t.Errorf("status %d with %d bytes; want 400 with at most %d", got.status, len(got.body), 2*maxDetail)
		}
	}
}

// The record of a refused call has a bounded part of its input, and its size and hash.
func TestRefusedCallRecordsBoundedInput(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	const call = "/v1/tools/system.run/call"
	long := strings.Repeat("x", 1<<20)
	for i, c := range []struct {
		body  string
		input bool
	}{
		{`{"inptu":"` + long + `"}`, true},
		{`{"input":"` + long, false},
		{`{"input":[` + strings.Repeat("1,", httpguard.MaxValues+1) + `1]}`, false},
	} {
		ask(t, srv, "POST", call, c.body)
		got := records(t, srv, "action=system.run")
		if len(got) != i+1 {
			t.Fatalf("%d records, want %d", len(got), i+1)
		}
		if r := got[i]; len(r.Input) > 16<<10 || (len(r.Input) > 0) != c.input || r.InputBytes != len(c.body) ||
			len(r.InputHash) != 64 {
			t.Errorf("%.20s: %d bytes kept, size %d, want %d, hash %q", c.body, len(r.Input), r.InputBytes, len(c.body),
				r.InputHash)
		}
	}
}

// reading is an MCP server that reads the whole body.
type reading struct{ during func(whole int) }

func (m reading) Serve(w http.ResponseWriter, r *http.Request, _ caller.Principal, over func()) {
	defer over()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.during(len(b))
	w.WriteHeader(http.StatusAccepted)
}

// Refuse records nothing.
func (reading) Refuse(_ http.ResponseWriter, _ *http.Request, _ caller.Principal, cause error) error {
	return cause
}

func TestMCPBodiesUseTheBudget(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e})
	var held, whole atomic.Int64
	s.opts.MCP = reading{func(n int) {
		charged, _, _ := s.bodies.Held()
		held.Store(charged)
		whole.Store(int64(n))
	}}
	s = withMCP(s)
	srv := serveHTTP(t, s)
	if got := ask(t, srv, "POST", "/mcp", strings.Repeat(" ", 4<<20)); got.status != http.StatusAccepted ||
		whole.Load() != 4<<20 || held.Load() < 8<<20 {
		t.Errorf("status %d, %d bytes read, %d charged; want 202, %d and at least %d",
			got.status, whole.Load(), held.Load(), 4<<20, 8<<20)
	}
	problemIs(t, ask(t, srv, "POST", "/mcp", strings.Repeat(" ", maxMCPBody+1)), http.StatusRequestEntityTooLarge,
		"invalid_argument", "body")
	problemIs(t, ask(t, srv, "POST", "/mcp", "["+strings.Repeat("1,", httpguard.MaxValues)+"1]"), http.StatusBadRequest,
		"invalid_argument", "body")
	eventually(t, "the budget is given back",
		func() bool { n, _, callers := s.bodies.Held(); return n == 0 && callers == 0 })
}

// withMCP returns a server with the options of s, which shares its budget.
func withMCP(s *Server) *Server {
	with := New(s.opts)
	with.bodies = s.bodies
	return with
}

func TestToolInputSharesMemoryWithBody(t *testing.T) {
	raw := []byte(`{"session":"s","input":{"a":[1]},"job":"j"}`)
	got, err := decodeToolCall(raw)
	if err != nil || got.Session != "s" || got.Job != "j" || string(got.Input) != `{"a":[1]}` {
		t.Fatalf("decodeToolCall(%s) = %+v, %v; want its fields", raw, got, err)
	}
	if !json.Valid(got.Input) || &got.Input[0] != &raw[23] {
		t.Error("the input is a copy, want a part of the body")
	}
}
