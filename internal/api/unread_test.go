package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

// fill charges a caller with all the answers that it may leave unread.
func fill(t *testing.T, s *Server, who string) {
	t.Helper()
	if err := s.answers.Charge(caller.Principal{Caller: who}, 0, s.answers.Bounds().Caller); err != nil {
		t.Fatal(err)
	}
}

// The answer to a request that was carried out is dropped if its caller has not read earlier ones.
// It takes no room from other callers.
func TestAnswerOverBudgetIsDropped(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e})
	srv := serveHTTP(t, s)
	auth := bearerOf(t, srv, `{"caller":"ann","trust":3,"profile":"default"}`)
	fill(t, s, "ann")
	held, _, _ := s.answers.Held()
	call := ask(t, srv, "POST", "/v1/tools/system.run/call", `{"input":{"argv":["echo","hi"]}}`, auth...)
	var res v1.ToolResult
	call.into(t, &res)
	if call.status != http.StatusOK || res.Ending != "exited" || !strings.Contains(res.Text, "was dropped") ||
		len(res.Output) != 0 {
		t.Errorf("call over the budget = %+v, want status 200 and a result without output", call)
	}
	got := ask(t, srv, "POST", "/v1/run", `{"argv":["echo","hi"]}`, auth...)
	problemIs(t, got, http.StatusConflict, "failed_precondition", "")
	if !strings.Contains(got.body, "the command has run") {
		t.Errorf("run over the budget is answered %s, want that the command has run", got.body)
	}
	got = ask(t, srv, "POST", "/v1/policy/check", `{"command":"ls"}`, auth...)
	problemIs(t, got, http.StatusConflict, "failed_precondition", "")
	if !strings.Contains(got.body, "carried out") {
		t.Errorf("request over the budget is answered %s, want that it was carried out", got.body)
	}
	if now, _, _ := s.answers.Held(); now != held {
		t.Errorf("%d bytes are charged after dropped answers, want %d", now, held)
	}
	ben := bearerOf(t, srv, `{"caller":"ben","trust":3,"profile":"default"}`)
	if got := ask(t, srv, "POST", "/v1/run", `{"argv":["echo","hi"]}`, ben...); got.status != http.StatusOK {
		t.Errorf("request of another caller = %+v, want status 200", got)
	}
}

// Unread answers of callers, and of other operators, keep no operator from revoking a token.
func TestUnreadAnswersDoNotRefuseOperators(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e})
	srv := serveHTTP(t, s)
	tok, err := e.Callers.CreateToken(t.Context(), caller.Local(""), v1.TokenRequest{Caller: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	fill(t, s, "ann")
	fill(t, s, "ben")
	if err := s.answers.Charge(caller.Local(""), 0, s.answers.Bounds().Caller+1); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, srv, "DELETE", "/v1/tokens/"+tok.ID, ""); got.status != http.StatusOK {
		t.Errorf("DELETE of a token = %+v, want status 200", got)
	}
}

// The events of a streamed call are charged until they are sent. Over the budget, output is left
// out.
func TestStreamedCallIsCharged(t *testing.T) {
	b := httpguard.NewAnswerBudget()
	ann := caller.Principal{Caller: "ann"}
	out := httpguard.NewAnswer(httptest.NewRecorder(), takeTime)
	out.ChargeTo(b, ann, false)
	c := &toolStream{missed: map[string]int64{}, wake: make(chan struct{}, 1), held: out.Account()}
	c.watch().Output("stdout", make([]byte, 1000))
	if held, _, _ := b.Held(); held != 1000+pieceCost {
		t.Errorf("%d bytes are charged for queued output, want %d", held, 1000+pieceCost)
	}
	done := make(chan struct{})
	close(done)
	w := httptest.NewRecorder()
	e := newToolEventer(w)
	if err := c.send(e, done); err != nil {
		t.Fatal(err)
	}
	if held, _, _ := b.Held(); held != 0 {
		t.Errorf("%d bytes are charged after the output was sent, want 0", held)
	}
	if err := c.end(e, &v1.ToolResult{ID: "c1", Text: "whole"}); err != nil || !strings.Contains(w.Body.String(), "whole") {
		t.Errorf("end() = %v, sent %s; want the whole result", err, w.Body)
	}
	c.held.Close()

	if err := b.Charge(ann, 0, b.Bounds().Caller); err != nil {
		t.Fatal(err)
	}
	c.watch().Output("stdout", make([]byte, 1000))
	if n := c.missed["stdout"]; n != 1000 {
		t.Errorf("%d bytes of output over the budget are left out, want 1000", n)
	}
	w.Body.Reset()
	if err := c.end(e, &v1.ToolResult{ID: "c1", Ending: "exited", Text: "whole"}); err != nil {
		t.Fatal(err)
	}
	if got := w.Body.String(); strings.Contains(got, "whole") || !strings.Contains(got, "was dropped") ||
		!strings.Contains(got, `"ending":"exited"`) {
		t.Errorf("the result over the budget is sent as %s, want its ending without output", got)
	}
}

// sharing fails the test if a Write does not get the memory that it must.
type sharing struct {
	http.ResponseWriter
	want   []byte
	shared bool
}

func (w *sharing) Write(p []byte) (int, error) {
	w.shared = w.shared || len(p) > 0 && len(w.want) > 0 && &p[0] == &w.want[0]
	return w.ResponseWriter.Write(p)
}

func (w *sharing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func TestEventsAreSentWithoutACopy(t *testing.T) {
	data := []byte(`{"a":1}`)
	w := &sharing{ResponseWriter: httptest.NewRecorder(), want: data}
	e := newSSE(w)
	if err := e.sendJSON("x", data); err != nil || !w.shared {
		t.Errorf("sendJSON() = %v, without a copy: %v; want true", err, w.shared)
	}
}

// The output of an earlier request with the same key is charged while it is sent.
func TestKeptOutputIsCharged(t *testing.T) {
	b := httpguard.NewAnswerBudget()
	ann := caller.Principal{Caller: "ann"}
	for what, send := range map[string]func(http.ResponseWriter, io.Reader, runFunc) error{
		"raw": sendRaw, "events": sendEvents, "frames": sendFrames,
	} {
		a := &answer{Answer: httpguard.NewAnswer(httptest.NewRecorder(), takeTime)}
		a.ChargeTo(b, ann, false)
		do := func(core.Stream) (v1.ExecResult, error) { return v1.ExecResult{Stdout: "kept"}, nil }
		if err := send(a, nil, do); err != nil {
			t.Errorf("sending %s within the budget: %v", what, err)
		}
		if held, _, _ := b.Held(); held != 0 {
			t.Errorf("%s: %d bytes are charged after the answer, want 0", what, held)
		}
		if err := b.Charge(ann, 0, b.Bounds().Caller); err != nil {
			t.Fatal(err)
		}
		err := send(a, nil, do)
		if e, ok := errors.AsType[*httpguard.BodyError](err); !ok || !e.Dropped {
			t.Errorf("%s over the budget: %v, want that the output was dropped", what, err)
		}
		b.Release(ann, b.Bounds().Caller)
	}
}

// lingering is an MCP server that keeps a request's body after its answer.
type lingering struct {
	talker
	over chan func()
}

func (l lingering) Serve(w http.ResponseWriter, _ *http.Request, _ caller.Principal, over func()) {
	w.WriteHeader(http.StatusAccepted)
	l.over <- over
}

// The body of an MCP request is charged until the MCP server says that nothing holds it.
func TestMCPBodyIsChargedUntilItsCallsEnd(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	mcp := lingering{over: make(chan func(), 1)}
	s := New(Options{Engine: e, MCP: mcp})
	srv := serveHTTP(t, s)
	body, err := json.Marshal(string(bytes.Repeat([]byte("x"), 1<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if got := ask(t, srv, "POST", mcpPath, string(body)); got.status != http.StatusAccepted {
		t.Fatalf("POST %s = %+v, want status 202", mcpPath, got)
	}
	over := <-mcp.over
	if held, _, _ := s.bodies.Held(); held < 2<<20 {
		t.Errorf("%d bytes are charged while a call holds the body, want at least %d", held, 2<<20)
	}
	over()
	if held, _, _ := s.bodies.Held(); held != 0 {
		t.Errorf("%d bytes are charged after the call, want 0", held)
	}
}

// An answer with output is encoded in pieces, and is the same JSON as in one piece.
func TestExecAnswerIsEncodedInPieces(t *testing.T) {
	want := v1.ExecResult{
		ID: `"stdout":""`, Ending: "exited", Stdout: strings.Repeat("<", 3*escapedPiece),
		Stderr: "x" + strings.Repeat("€\n\"\xff", escapedPiece),
	}
	one, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	w := &widest{ResponseRecorder: httptest.NewRecorder()}
	if err := replyExec(w, want); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(w.Body.Bytes(), one) || w.Header().Get("Content-Length") != strconv.Itoa(len(one)) {
		t.Errorf("answer has %d bytes, header %v; want the %d bytes of the result as JSON and their length",
			w.Body.Len(), w.Header(), len(one))
	}
	if most := 6*escapedPiece + 2; w.most > most {
		t.Errorf("a piece has %d bytes, want at most %d", w.most, most)
	}
}

// widest records the size of the largest write.
type widest struct {
	*httptest.ResponseRecorder
	most int
}

func (w *widest) Write(p []byte) (int, error) {
	w.most = max(w.most, len(p))
	return w.ResponseRecorder.Write(p)
}
