// Package metrics counts what the service does, for Prometheus.
//
// Counters and histograms are updated by the hooks of the packages that do the work. Everything
// that can be read is read when somebody asks, from the function that Watch got. No label has an id
// or a text that a caller chooses. docs/metrics.md lists every metric.
//
// The package starts no goroutine. All methods may be called concurrently, and those of a nil
// *Metrics do nothing.
package metrics

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
)

// Other is the label of everything that is not listed: a reason without a constant, a caller that
// is not configured. Unknown is the label of a tool or profile that does not exist.
const (
	Other   = "other"
	Unknown = "unknown"
)

const namespace = "orchestrator"

// Limits of requests for metrics.
const (
	maxScrapes    = 4
	scrapeTimeout = 10 * time.Second
)

// Options configures Metrics.
type Options struct {
	// Version and Build identify the program. Runtime is the name of the driver.
	Version, Build, Runtime string
	// Callers lists the callers that get a label of their own. All others share Other.
	Callers []string
	Log     *slog.Logger
}

// Metrics holds all metrics of a service. Use New.
type Metrics struct {
	registry *prometheus.Registry
	handler  http.Handler
	callers  []string
	runtime  string

	calls       *prometheus.CounterVec
	callerCalls *prometheus.CounterVec
	refusals    *prometheus.CounterVec
	verdicts    *prometheus.CounterVec
	approvals   *prometheus.CounterVec
	commands    *prometheus.CounterVec
	kills       *prometheus.CounterVec
	leases      *prometheus.CounterVec
	leaseEnds   *prometheus.CounterVec
	connections *prometheus.CounterVec
	traffic     *prometheus.CounterVec
	stages      *prometheus.HistogramVec
	writes      *prometheus.HistogramVec
	roundTrip   prometheus.Observer

	stageOf map[stage.Name]prometheus.Observer
}

// New returns Metrics that nothing has been counted in.
func New(o Options) *Metrics {
	m := &Metrics{registry: prometheus.NewPedanticRegistry(), callers: slices.Clone(o.Callers), runtime: o.Runtime}
	m.makeCounters()
	m.makeHistograms()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: namespace, Name: "build_info", Help: "Always 1. The labels describe the program and its runtime.",
		ConstLabels: prometheus.Labels{
			"version": o.Version, "build": o.Build, "runtime": o.Runtime, "goversion": runtime.Version(),
		},
	})
	build.Set(1)
	m.registry.MustRegister(build, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	opts := promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, EnableOpenMetrics: true, MaxRequestsInFlight: maxScrapes,
		Timeout: scrapeTimeout,
	}
	if o.Log != nil {
		opts.ErrorLog = slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn)
	}
	m.handler = promhttp.HandlerFor(m.registry, opts)
	return m
}

func (m *Metrics) counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	m.registry.MustRegister(c)
	return c
}

func (m *Metrics) makeCounters() {
	m.calls = m.counter("tool_calls_total", "Tool calls that ended.", "tool", "profile", "ending", "runtime")
	m.callerCalls = m.counter("caller_tool_calls_total",
		"Tool calls that ended, of each caller in metrics.callers.", "caller", "ending")
	m.refusals = m.counter("tool_call_refusals_total",
		"Tool calls that ended as policy_denied or approval_denied, by class of the reason.", "class")
	m.verdicts = m.counter("policy_verdicts_total", "Decisions of the policy on commands.", "profile", "verdict")
	m.approvals = m.counter("approval_requests_decided_total", "Approval requests that were decided, by state.", "state")
	m.commands = m.counter("commands_total",
		"Foreground commands that ended, of tools, exec, run, sessions and jobs.", "ending", "runtime")
	m.kills = m.counter("command_kills_total", "Foreground commands that were killed, by reason.", "reason")
	m.leases = m.counter("leases_total",
		"Leases that began, from a warm sandbox or from one made for the call.", "template", "start")
	m.leaseEnds = m.counter("leases_ended_total", "Leases whose sandbox was removed, by reason.", "template", "reason")
	m.connections = m.counter("egress_connections_total",
		"Connections and requests out of sandboxes that ended, by decision.", "decision")
	m.traffic = m.counter("egress_bytes_total", "Bytes of connections out of sandboxes that ended.", "direction")
	for _, d := range []string{decisionAllow, decisionDeny} {
		m.connections.WithLabelValues(d)
	}
	for _, d := range []string{"sent", "received"} {
		m.traffic.WithLabelValues(d)
	}
	for _, r := range killReasons() {
		m.kills.WithLabelValues(r)
	}
}

func (m *Metrics) histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: namespace, Name: name, Help: help, Buckets: buckets,
	}, labels)
	m.registry.MustRegister(h)
	return h
}

func (m *Metrics) makeHistograms() {
	m.stages = m.histogram("stage_duration_seconds", "Duration of the stages of calls.", stageBuckets(), "stage")
	m.writes = m.histogram("store_write_seconds",
		"Duration of writes to the databases, with the wait for the connection.", ioBuckets(), "operation")
	m.roundTrip = m.histogram("guest_round_trip_seconds",
		"Duration of the probe of a warm sandbox's guest, before the sandbox is handed out.", ioBuckets()).WithLabelValues()
	m.stageOf = map[stage.Name]prometheus.Observer{}
	for _, n := range stage.Names() {
		m.stageOf[n] = m.stages.WithLabelValues(string(n))
	}
}

// stageBuckets reach from a policy decision (below 0.1 ms) to an approval (minutes).
func stageBuckets() []float64 {
	return []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 600}
}

// ioBuckets reach from a write in memory to one that waits for a slow disk.
func ioBuckets() []float64 {
	return []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5}
}

// ServeHTTP writes the metrics in the format that the request asks for: OpenMetrics, or Prometheus'
// text format. It does not check who asks.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.handler.ServeHTTP(w, r) }

var _ stage.Observer = (*Metrics)(nil)

// Begin implements stage.Observer. A stage that fails is measured too.
func (m *Metrics) Begin(ctx context.Context, name stage.Name) (context.Context, func(error)) {
	if m == nil {
		return ctx, func(error) {}
	}
	began := time.Now()
	return ctx, func(error) {
		if o := m.stageOf[name]; o != nil {
			o.Observe(time.Since(began).Seconds())
		}
	}
}
