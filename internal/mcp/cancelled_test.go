package mcp

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
)

const (
	cancelCall = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7,"reason":"enough"}}`
	pingAfter  = `{"jsonrpc":"2.0","id":8,"method":"ping"}`
)

// waitCall calls the named tool with a command that ends only when it is cancelled.
func waitCall(name string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"` + name +
		`","arguments":{"command":"wait for it"}}}`
}

func TestCancelledCallGetsNoAnswerOnStdio(t *testing.T) {
	f := newFake()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- New(Options{Engine: f, ForCallers: core.ForCallers, Access: operator}).Run(context.Background(), inR, outW)
	}()
	lines := bufio.NewScanner(outR)
	send := func(message string) {
		t.Helper()
		if _, err := io.WriteString(inW, message+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	send(hello)
	if !lines.Scan() {
		t.Fatal("no answer to initialize")
	}
	send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	send(waitCall("system_bash"))
	within(t, f.running, "a running command")
	send(cancelCall)
	within(t, f.killed, "the end of the command")
	send(pingAfter)
	if !lines.Scan() || !strings.Contains(lines.Text(), `"id":8,"result"`) {
		t.Errorf("the next message after a cancelled call is %s, want only the answer to ping", lines.Text())
	}
	inW.Close()
	if err := within(t, done, "the end of the server"); err != nil {
		t.Errorf("the server ended with %v, want no error", err)
	}
	outW.Close()
}

// streamOf starts a session and posts a message in it. It returns the session and the body of the
// answer, which the test closes.
func streamOf(t *testing.T, at, message string) (session string, res *http.Response) {
	t.Helper()
	started, _ := request(t, http.MethodPost, at, "ben", "", hello)
	session = started.Header.Get(headerID)
	request(t, http.MethodPost, at, "ben", session, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return session, begin(t.Context(), t, http.MethodPost, at, "ben", session, message)
}

// checkOver checks that a client which resumes a stream after its last event is told to stop, and
// that the session serves further requests.
func checkOver(t *testing.T, at, session, stream string) {
	t.Helper()
	ids := regexp.MustCompile(`(?m)^id: (\S+)$`).FindAllStringSubmatch(stream, -1)
	if len(ids) == 0 {
		t.Fatalf("the stream %q has no event id", stream)
	}
	last := ids[len(ids)-1][1]
	res, body := request(t, http.MethodGet, at, "ben", session, "", headerEvent, last)
	if res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("GET after event %s = %d %q, want %d", last, res.StatusCode, body, http.StatusMethodNotAllowed)
	}
	if _, body := request(t, http.MethodPost, at, "ben", session, pingAfter); !strings.Contains(body, `"id":8,"result"`) {
		t.Errorf("ping in the same session = %q, want its result", body)
	}
}

func TestCancelledCallGetsNoAnswerOverHTTP(t *testing.T) {
	f := newFake()
	at, _ := serve(t, Options{Engine: f})
	session, res := streamOf(t, at, waitCall("system_bash"))
	defer res.Body.Close()
	within(t, f.running, "a running command")
	request(t, http.MethodPost, at, "ben", session, cancelCall)
	within(t, f.killed, "the end of the command")
	stream, err := io.ReadAll(res.Body)
	if err != nil || strings.Contains(string(stream), `"id":7`) || strings.Contains(string(stream), "error") {
		t.Errorf("the stream of a cancelled call = %q, %v; want no answer", stream, err)
	}
	checkOver(t, at, session, string(stream))
}

func TestUnknownToolKeepsSession(t *testing.T) {
	f := newFake()
	at, _ := serve(t, Options{Engine: f})
	session, res := streamOf(t, at, waitCall("no_such_tool"))
	defer res.Body.Close()
	stream, err := io.ReadAll(res.Body)
	if err != nil || !strings.Contains(string(stream), `"id":7,"error":{"code":-32602,"message":"unknown tool`) {
		t.Errorf("the stream of an unknown tool = %q, %v; want error -32602", stream, err)
	}
	checkOver(t, at, session, string(stream))
	// The answer was not read by a client that resumes before it.
	first := regexp.MustCompile(`(?m)^id: (\S+)$`).FindStringSubmatch(string(stream))[1]
	if got, body := request(t, http.MethodGet, at, "ben", session, "", headerEvent, first); got.StatusCode != http.StatusOK ||
		!strings.Contains(body, "-32602") {
		t.Errorf("GET before the answer = %d %q, want it again", got.StatusCode, body)
	}
}

func TestWithoutCancelledKeepsOtherMessages(t *testing.T) {
	const gone, kept = `{"jsonrpc":"2.0","id":1,"error":{"code":-32800,"message":"cancelled by the client"}}`,
		`{"jsonrpc":"2.0","id":2,"result":{"structuredContent":{"x":1,"error":{"code":-32800,"message":"cancelled by the client"}}}}`
	for in, want := range map[string]string{
		gone:                          "",
		kept:                          kept,
		"[" + gone + "]":              "",
		"[" + gone + "," + kept + "]": "[" + kept + "]",
		"[" + kept + "]":              "[" + kept + "]",
		"":                            "",
		"[not json":                   "[not json",
	} {
		if got := string(withoutCancelled([]byte(in))); got != want {
			t.Errorf("withoutCancelled(%s) = %s, want %s", in, got, want)
		}
	}
}
