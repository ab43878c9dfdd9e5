// Package tracing makes one trace of each call, with a span for each stage, and exports it by OTLP.
//
// A trace that the client began is continued. Spans have ids and names of the configuration, never
// inputs, outputs or texts of errors. All methods may be called concurrently, and those of a nil
// *Tracer do nothing. A Tracer owns the goroutine of its exporter, which Close ends.
package tracing

import (
	"context"
	"log/slog"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
)

// scope is the name of the instrumentation in exported spans.
const scope = "github.com/sandbox-orchestrator/orchestrator"

// Tracer makes spans. Use New or Open.
type Tracer struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// Options describes the service. Ratio is the share of traces that begin here and are exported,
// from 0 to 1. A trace that the client began is exported if the client exports it.
type Options struct {
	Version, Runtime string
	Ratio            float64
}

// New returns a Tracer that hands ended spans to the processor.
func New(o Options, p sdktrace.SpanProcessor) *Tracer {
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSpanProcessor(p),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(o.Ratio))),
		sdktrace.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "orchestrator"), attribute.String("service.version", o.Version),
			attribute.String("orchestrator.runtime", o.Runtime),
		)),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer(scope)}
}

// Close exports the spans that wait, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

var _ stage.Observer = (*Tracer)(nil)

// Begin implements stage.Observer with a span.
func (t *Tracer) Begin(ctx context.Context, name stage.Name) (context.Context, func(error)) {
	if t == nil {
		return ctx, func(error) {}
	}
	ctx, span := t.tracer.Start(ctx, string(name))
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, "") // the text may have what callers sent
		}
		span.End()
	}
}

// Request begins the span of an HTTP request that runs something, and continues the trace of its
// traceparent header. route must not be the client's choice. Call end with the answer's status.
func (t *Tracer) Request(r *http.Request, route string) (traced *http.Request, end func(status int)) {
	if t == nil || r.Method == http.MethodGet || r.Method == http.MethodHead {
		return r, func(int) {}
	}
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := t.tracer.Start(ctx, route, trace.WithSpanKind(trace.SpanKindServer))
	return r.WithContext(ctx), func(status int) {
		span.SetAttributes(attribute.Int("http.response.status_code", status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, "")
		}
		span.End()
	}
}

// ID returns the id of the trace that ctx belongs to, in hex, or "".
func ID(ctx context.Context) string {
	if c := trace.SpanContextFromContext(ctx); c.HasTraceID() {
		return c.TraceID().String()
	}
	return ""
}

// Logger returns log with the id of the trace that ctx belongs to, or log itself.
func Logger(ctx context.Context, log *slog.Logger) *slog.Logger {
	if id := ID(ctx); id != "" {
		return log.With("trace", id)
	}
	return log
}

// Parent returns the value of a traceparent header, or of the variable TRACEPARENT, for what runs
// on behalf of ctx. It returns "" without a trace.
func Parent(ctx context.Context) string {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return carrier["traceparent"]
}

// Annotate adds attributes to the span of ctx, as names and values. Empty values are left out.
func Annotate(ctx context.Context, pairs ...string) {
	span := trace.SpanFromContext(ctx)
	if !span.IsRecording() {
		return
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			span.SetAttributes(attribute.String("orchestrator."+pairs[i], pairs[i+1]))
		}
	}
}
