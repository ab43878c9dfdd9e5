package tracing

import (
	"context"
	"fmt"
	"log/slog"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// Protocols of a collector.
const (
	GRPC = "grpc"
	HTTP = "http"
)

// Open returns a Tracer that exports to the collector at endpoint, "http://HOST:PORT" or, with TLS,
// "https://HOST:PORT". It does not connect: while the collector does not answer, spans are dropped
// and log says so. Errors of the exporter go to log for the whole process.
func Open(ctx context.Context, o Options, protocol, endpoint string, log *slog.Logger) (*Tracer, error) {
	var client otlptrace.Client
	switch protocol {
	case GRPC:
		client = otlptracegrpc.NewClient(otlptracegrpc.WithEndpointURL(endpoint))
	case HTTP:
		client = otlptracehttp.NewClient(otlptracehttp.WithEndpointURL(endpoint + "/v1/traces"))
	default:
		return nil, fmt.Errorf("unknown protocol %q of traces", protocol)
	}
	exporter, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("export traces to %s: %w", endpoint, err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		log.Warn("failed to export traces; they are dropped", "endpoint", endpoint, "error", err)
	}))
	return New(o, sdktrace.NewBatchSpanProcessor(exporter)), nil
}
