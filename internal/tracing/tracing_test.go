package tracing

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
)

const (
	incomingTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	incomingSpan   = "00f067aa0ba902b7"
	incomingParent = "00-" + incomingTrace + "-" + incomingSpan + "-01"
)

func newTracer(t *testing.T, ratio float64) (*Tracer, *tracetest.SpanRecorder) {
	t.Helper()
	rec := tracetest.NewSpanRecorder()
	tr := New(Options{Version: "1", Runtime: "fake", Ratio: ratio}, rec)
	t.Cleanup(func() {
		if err := tr.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return tr, rec
}

// request returns a request with the traceparent header, unless it is "".
func request(t *testing.T, method, parent string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "/v1/run", http.NoBody)
	if parent != "" {
		r.Header.Set("Traceparent", parent)
	}
	return r
}

func TestRequestContinuesTraceOfClient(t *testing.T) {
	t.Parallel()
	tr, rec := newTracer(t, 0) // the client's decision counts
	r, end := tr.Request(request(t, "POST", incomingParent), "POST /v1/run")
	ctx, endStage := tr.Begin(r.Context(), stage.Exec)
	if ID(ctx) != incomingTrace || !strings.HasPrefix(Parent(ctx), "00-"+incomingTrace+"-") ||
		strings.Contains(Parent(ctx), incomingSpan) {
		t.Errorf("ID = %s, Parent = %s; want trace %s and a span of its own", ID(ctx), Parent(ctx), incomingTrace)
	}
	Annotate(ctx, "tool", "system.bash", "empty", "")
	endStage(errors.New("token=hunter2"))
	end(http.StatusServiceUnavailable)
	spans := rec.Ended()
	if len(spans) != 2 || spans[0].Name() != "exec" || spans[1].Name() != "POST /v1/run" {
		t.Fatalf("ended spans = %v, want exec and POST /v1/run", spans)
	}
	if got := spans[1].Parent().SpanID().String(); got != incomingSpan {
		t.Errorf("parent of the request's span = %s, want %s", got, incomingSpan)
	}
	if got, want := spans[0].Parent().SpanID(), spans[1].SpanContext().SpanID(); got != want {
		t.Errorf("parent of the stage's span = %s, want %s", got, want)
	}
	if s := spans[0].Status(); s.Code != codes.Error || s.Description != "" {
		t.Errorf("status of a failed stage = %+v, want an error without text", s)
	}
	if got := spans[0].Attributes(); len(got) != 1 || got[0] != attribute.String("orchestrator.tool", "system.bash") {
		t.Errorf("attributes = %v, want the tool only", got)
	}
}

func TestRatioDecidesAboutNewTraces(t *testing.T) {
	t.Parallel()
	for ratio, want := range map[float64]int{0: 0, 1: 1} {
		tr, rec := newTracer(t, ratio)
		_, end := tr.Request(request(t, "POST", ""), "POST /v1/run")
		end(http.StatusOK)
		if got := len(rec.Ended()); got != want {
			t.Errorf("ratio %v: %d spans, want %d", ratio, got, want)
		}
	}
}

func TestReadsAndOffHaveNoTrace(t *testing.T) {
	t.Parallel()
	tr, rec := newTracer(t, 1)
	for name, one := range map[string]*Tracer{"a read": tr, "off": nil} {
		method := "GET"
		if one == nil {
			method = "POST"
		}
		in := request(t, method, incomingParent)
		r, end := one.Request(in, "x")
		end(http.StatusOK)
		if r != in || ID(r.Context()) != "" || Parent(r.Context()) != "" {
			t.Errorf("%s: the request has trace %q, want none", name, ID(r.Context()))
		}
	}
	if got := len(rec.Ended()); got != 0 {
		t.Errorf("%d spans, want none", got)
	}
	var off *Tracer
	if ctx, end := off.Begin(t.Context(), stage.Exec); ctx != t.Context() {
		t.Error("Begin of a nil Tracer changed the context")
	} else {
		end(nil)
	}
	if err := off.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLoggerAddsTrace(t *testing.T) {
	t.Parallel()
	tr, _ := newTracer(t, 1)
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	r, end := tr.Request(request(t, "POST", incomingParent), "x")
	defer end(http.StatusOK)
	Logger(r.Context(), log).Info("traced")
	Logger(t.Context(), log).Info("other")
	if got := strings.Count(text.String(), "trace="+incomingTrace); got != 1 {
		t.Errorf("log = %s, want the trace in one of two lines", text.String())
	}
}

func TestOpenRefusesUnknownProtocol(t *testing.T) {
	t.Parallel()
	if _, err := Open(t.Context(), Options{}, "udp", "http://127.0.0.1:1", slog.Default()); err == nil {
		t.Error("Open with protocol udp succeeded, want an error")
	}
}
