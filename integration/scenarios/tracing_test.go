//go:build integration

package scenarios

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// receiver is an OTLP collector that keeps the spans.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	spans []*trace.Span
}

// Export implements the service of OTLP.
func (c *receiver) Export(
	_ context.Context, r *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP receives OTLP over HTTP.
func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var in collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(body, &in)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
		return
	}
	out, _ := c.Export(r.Context(), &in)
	answer, _ := proto.Marshal(out)
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(answer)
}

// of returns the spans of a trace by name, and their parents' names.
func (c *receiver) of(id string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := map[string]string{}
	for _, s := range c.spans {
		names[string(s.SpanId)] = s.Name
	}
	out := map[string]string{}
	for _, s := range c.spans {
		if fmt.Sprintf("%x", s.TraceId) == id {
			out[s.Name] = names[string(s.ParentSpanId)]
		}
	}
	return out
}

// attributes returns the attributes of a trace's span.
func (c *receiver) attributes(id, name string) map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]string{}
	for _, s := range c.spans {
		if fmt.Sprintf("%x", s.TraceId) == id && s.Name == name {
			for _, a := range s.Attributes {
				out[a.Key] = a.Value.GetStringValue()
			}
		}
	}
	return out
}

// startReceiver starts a receiver of the protocol and returns its address.
func startReceiver(t *testing.T, protocol string) (c *receiver, address string) {
	t.Helper()
	c = &receiver{}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	if protocol == "grpc" {
		s := grpc.NewServer()
		collector.RegisterTraceServiceServer(s, c)
		go func() { served <- s.Serve(l) }() // received in the cleanup
		t.Cleanup(func() { s.Stop(); <-served })
	} else {
		s := &http.Server{Handler: c}
		go func() { served <- s.Serve(l) }() // received in the cleanup
		t.Cleanup(func() { s.Close(); <-served })
	}
	return c, l.Addr().String()
}

// traced returns the traceparent header of a new trace, and its id.
func traced(n int) (parent, id string) {
	id = fmt.Sprintf("4bf92f3577b34da6a3ce929d0e0e%04x", n)
	return "00-" + id + "-00f067aa0ba902b7-01", id
}

// TestTracesAreExported runs calls with traceparent headers and reads the spans from a real OTLP
// receiver, over gRPC and over HTTP.
func TestTracesAreExported(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"grpc", "http"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			c, address := startReceiver(t, protocol)
			profiles := t.TempDir()
			harness.WriteFile(t, filepath.Join(profiles, "traced.yaml"), "name: traced\nextends: phase2\nworkspace: none\ntraceparent: true\n")
			s := harness.Run(t, harness.Options{Runtime: "oci", Seed: &seed, Config: onDemand + fmt.Sprintf(
				"\ntracing: {endpoint: 'http://%s', protocol: %s}\nprofiles: {dir: '%s'}\n", address, protocol, profiles)})
			testTraceOfCall(t, s)
			testTraceOfError(t, s)
			s.Term() // exports the last spans
			_, id := traced(1)
			want := map[string]string{
				"POST /v1/tools/{name}/call": "", "call": "POST /v1/tools/{name}/call", "policy": "call", "audit": "call",
				"approval": "call", "lease": "call", "queue": "lease", "bind": "lease", "exec": "call", "release": "call",
			}
			got := c.of(id)
			for name, parent := range want {
				if p, ok := got[name]; !ok || p != parent {
					t.Errorf("span %s: exists %v, parent %q; want parent %q", name, ok, p, parent)
				}
			}
			if len(got) != len(want) {
				t.Errorf("spans of the call = %v, want %v", got, want)
			}
			a := c.attributes(id, "call")
			if a["orchestrator.tool"] != "system.bash" || a["orchestrator.ending"] != "exited" || a["orchestrator.call"] == "" {
				t.Errorf("attributes of the call = %v, want its tool, ending and id", a)
			}
			s.Start()
		})
	}
}

// testTraceOfCall makes a call that an operator approves, and checks what the command, the answer
// and the audit log have of its trace.
func testTraceOfCall(t *testing.T, s *harness.Server) {
	t.Helper()
	parent, id := traced(1)
	answered := make(chan harness.Answer, 1)
	go func() { // received below
		answered <- s.Ask(t, "POST", "/v1/tools/system.bash/call",
			`{"profile":"traced","input":{"command":"echo $TRACEPARENT; rm -r none; true"}}`, "Traceparent", parent)
	}()
	q := awaitApproval(t, s)
	if _, err := s.Client.Approvals.Answer(within(t), q.ID, v1.ApprovalAnswer{Action: "approve"}); err != nil {
		t.Fatal(err)
	}
	got := <-answered
	var r v1.ToolResult
	got.Into(t, &r)
	if r.Ending != "exited" || !bytes.Contains(r.Output, []byte("00-"+id+"-")) || bytes.Contains(r.Output, []byte(parent)) {
		t.Errorf("call = %s, want TRACEPARENT of trace %s with a span of its own", got.Body, id)
	}
	records := s.Ask(t, "GET", "/v1/audit?call="+r.ID, "")
	var list v1.List[v1.AuditRecord]
	records.Into(t, &list)
	if len(list.Items) != 2 || list.Items[0].Trace != id || list.Items[1].Trace != id {
		t.Errorf("audit records = %s, want two with trace %s", records.Body, id)
	}
	if verified := s.Ask(t, "GET", "/v1/audit/verify", ""); !bytes.Contains(verified.Body, []byte(`"ok":true`)) {
		t.Errorf("audit verify = %s, want ok", verified.Body)
	}
}

// testTraceOfError checks that the answer to a failed request, and the log, name the trace.
func testTraceOfError(t *testing.T, s *harness.Server) {
	t.Helper()
	parent, id := traced(2)
	got := s.Ask(t, "POST", "/v1/tools/no.such.tool/call", `{"input":{}}`, "Traceparent", parent)
	var p v1.Problem
	if err := json.Unmarshal(got.Body, &p); err != nil || p.Trace != id || p.Status != http.StatusNotFound {
		t.Errorf("answer = %d %s, want 404 with trace %s", got.Status, got.Body, id)
	}
	if !strings.Contains(s.Log(), "trace="+id) {
		t.Errorf("the log lacks trace=%s", id)
	}
	if got := s.Ask(t, "POST", "/v1/tools/no.such.tool/call", `{"input":{}}`, "Traceparent", "garbage"); got.Status != 404 {
		t.Errorf("a request with an invalid traceparent = %d, want 404", got.Status)
	}
}
