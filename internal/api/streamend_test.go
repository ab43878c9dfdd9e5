package api

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
)

// lateWriter counts writes after the handler has returned, and fails them.
type lateWriter struct {
	*httptest.ResponseRecorder
	returned bool
	late     int
}

func (w *lateWriter) Write(p []byte) (int, error) {
	if w.returned {
		w.late++
		return 0, errors.New("the handler has returned")
	}
	return w.ResponseRecorder.Write(p)
}

// A panic in a streamed command ends the heartbeat. It would otherwise use a writer that net/http
// has taken back, and end the process.
func TestPanicEndsHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &lateWriter{ResponseRecorder: httptest.NewRecorder()}
		err := recovered(func() error {
			return sendEvents(w, nil, func(st core.Stream) (v1.ExecResult, error) {
				st.Started("c1")
				panic("broken")
			})
		})
		w.returned = true
		if err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("the handler returned %v, want the panic", err)
		}
		time.Sleep(2 * heartbeatTime)
		synctest.Wait()
		if w.late != 0 {
			t.Errorf("%d writes after the handler returned, want none", w.late)
		}
	})
}

// Streamed calls that a quota refuses, and commands of POST /shell, are delayed like other
// refusals.
func TestStreamedAndShellRefusalsArePaced(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	s := New(Options{Engine: e, ShellCaller: "old"})
	s.opts.Refusals.Rate, s.opts.Refusals.Burst = 4, 1
	srv := serveHTTP(t, s)
	ann := tokenOf(t, e, v1.TokenRequest{Caller: "ann", Trust: 3, Quotas: v1.Quotas{Calls: 1}})
	streamed := append([]string{"Accept", formEvents}, ann...)
	const call = `{"input":{"argv":["true"]}}`
	ask(t, srv, "POST", "/v1/tools/system.run/call", call, ann...)
	for path, c := range map[string]struct {
		body, says string
		header     []string
	}{
		"/v1/tools/system.run/call": {call, "retry_after_ms", streamed},
		"/shell":                    {`{"command":1}`, `"success":false`, []string{"Content-Type", formJSON}},
	} {
		began := time.Now()
		for range 3 {
			if got := ask(t, srv, "POST", path, c.body, c.header...); got.status != http.StatusOK ||
				!strings.Contains(got.body, c.says) {
				t.Errorf("POST %s = %+v, want status 200 with %s", path, got, c.says)
			}
		}
		if took, want := time.Since(began), time.Second/2; took < want {
			t.Errorf("POST %s: 3 refusals took %v, want at least %v", path, took, want)
		}
	}
}
