package metrics

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Figures is what can be read at any time. A nil part has no metrics.
type Figures struct {
	Pools []Pool
	// Sandboxes counts the living sandboxes by state.
	Sandboxes map[string]int
	// FailedRemovals counts sandboxes whose removal failed and is retried.
	FailedRemovals int
	Approvals      *Approvals
	Audit          *Audit
	// StoreWaits is how often a request waited for the connection to the database, and StoreWaited
	// how long all of them together.
	StoreWaits  int64
	StoreWaited time.Duration
	// EgressOpen counts the open connections of sandboxes.
	EgressOpen int64
}

// Pool is the state of one template's pool.
type Pool struct {
	Template                        string
	Creating, Warm, Leased, Waiting int
	Target, Min, Max                int
	// Created and Failed count creations since the start.
	Created, Failed int64
}

// Approvals is the state of pending approval requests. Oldest is the age of the oldest, or 0.
type Approvals struct {
	Pending int
	Oldest  time.Duration
}

// Audit is the state of the audit log. Queued is how many records wait to be written, and Head the
// sequence number of the last written one.
type Audit struct {
	Queued int
	Head   int64
}

// Space is the use of disks. Reading it costs a system call for each item, so it is read at most
// once in spaceAge.
type Space struct {
	Images, Workspaces                              int
	ImageBytes, WorkspaceUsedBytes, WorkspaceQuotas int64
}

const spaceAge = 30 * time.Second

// Watch adds the metrics that are read at each request: figures, and space from time to time. Both
// functions must be safe for concurrent use. Call it once.
func (m *Metrics) Watch(figures func(context.Context) (Figures, error), space func() Space) {
	if m != nil {
		m.registry.MustRegister(&reader{figures: figures, space: space, described: describe()})
	}
}

// reader is a prometheus.Collector of Figures and Space.
type reader struct {
	figures   func(context.Context) (Figures, error)
	space     func() Space
	described described

	mu     sync.Mutex
	last   Space
	readAt time.Time
}

// described has the descriptions of all metrics of a reader.
type described struct {
	pool, creations, target, bounds, waiting, sandboxes, removals           *prometheus.Desc
	pending, oldest, queued, head, waits, waited, open                      *prometheus.Desc
	images, imageBytes, workspaces, workspaceBytes, workspaceQuotas, failed *prometheus.Desc
}

func describe() described {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	}
	return described{
		pool:      d("pool_sandboxes", "Sandboxes of each pool, by state.", "template", "state"),
		creations: d("pool_creations_total", "Sandboxes that a pool created, since the start.", "template"),
		failed:    d("pool_creation_failures_total", "Creations that failed, since the start.", "template"),
		target:    d("pool_target_sandboxes", "Sandboxes that a pool keeps warm now.", "template"),
		bounds:    d("pool_limit_sandboxes", "Configured minimum and maximum of a pool.", "template", "bound"),
		waiting:   d("pool_waiting_calls", "Calls that wait for a sandbox of the pool.", "template"),
		sandboxes: d("sandboxes", "Living sandboxes by state, as recorded.", "state"),
		removals:  d("sandbox_failed_removals", "Sandboxes whose removal failed and is retried."),
		pending:   d("approval_requests_pending", "Approval requests that wait for an answer."),
		oldest:    d("approval_oldest_pending_seconds", "Age of the oldest pending approval request, or 0."),
		queued:    d("audit_queued_records", "Audit records that wait to be written."),
		head:      d("audit_head_records", "Sequence number of the last written audit record."),
		waits:     d("store_connection_waits_total", "Requests that waited for the connection to the database."),
		waited:    d("store_connection_wait_seconds_total", "Time that requests waited for the connection to the database."),
		open:      d("egress_open_connections", "Open connections of sandboxes to the egress proxy."),

		images:          d("images", "Images in the store."),
		imageBytes:      d("image_bytes", "Uncompressed size of all images in the store."),
		workspaces:      d("workspaces", "Workspaces on this host."),
		workspaceBytes:  d("workspace_used_bytes", "Bytes that the files of all workspaces use."),
		workspaceQuotas: d("workspace_quota_bytes", "Sum of the size limits of all workspaces."),
	}
}

// Describe implements prometheus.Collector.
func (r *reader) Describe(out chan<- *prometheus.Desc) {
	d := r.described
	for _, one := range []*prometheus.Desc{
		d.pool, d.creations, d.failed, d.target, d.bounds, d.waiting, d.sandboxes, d.removals, d.pending, d.oldest,
		d.queued, d.head, d.waits, d.waited, d.open, d.images, d.imageBytes, d.workspaces, d.workspaceBytes,
		d.workspaceQuotas,
	} {
		out <- one
	}
}

// Collect implements prometheus.Collector.
func (r *reader) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	f, err := r.figures(ctx)
	if err != nil { // the other metrics are still served
		out <- prometheus.NewInvalidMetric(r.described.sandboxes, fmt.Errorf("read the figures of the service: %w", err))
		return
	}
	d, send := r.described, sender(out)
	for _, p := range f.Pools {
		for state, n := range map[string]int{"creating": p.Creating, "warm": p.Warm, "leased": p.Leased} {
			send.gauge(d.pool, float64(n), p.Template, state)
		}
		send.counter(d.creations, float64(p.Created), p.Template)
		send.counter(d.failed, float64(p.Failed), p.Template)
		send.gauge(d.target, float64(p.Target), p.Template)
		send.gauge(d.bounds, float64(p.Min), p.Template, "min")
		send.gauge(d.bounds, float64(p.Max), p.Template, "max")
		send.gauge(d.waiting, float64(p.Waiting), p.Template)
	}
	for state, n := range f.Sandboxes {
		send.gauge(d.sandboxes, float64(n), state)
	}
	send.gauge(d.removals, float64(f.FailedRemovals))
	if a := f.Approvals; a != nil {
		send.gauge(d.pending, float64(a.Pending))
		send.gauge(d.oldest, a.Oldest.Seconds())
	}
	if a := f.Audit; a != nil {
		send.gauge(d.queued, float64(a.Queued))
		send.gauge(d.head, float64(a.Head))
	}
	send.counter(d.waits, float64(f.StoreWaits))
	send.counter(d.waited, f.StoreWaited.Seconds())
	send.gauge(d.open, float64(f.EgressOpen))
	r.collectSpace(send)
}

func (r *reader) collectSpace(send sender) {
	r.mu.Lock()
	if now := time.Now(); r.readAt.IsZero() || now.Sub(r.readAt) >= spaceAge {
		r.last, r.readAt = r.space(), now
	}
	s := r.last
	r.mu.Unlock()
	d := r.described
	send.gauge(d.images, float64(s.Images))
	send.gauge(d.imageBytes, float64(s.ImageBytes))
	send.gauge(d.workspaces, float64(s.Workspaces))
	send.gauge(d.workspaceBytes, float64(s.WorkspaceUsedBytes))
	send.gauge(d.workspaceQuotas, float64(s.WorkspaceQuotas))
}

type sender chan<- prometheus.Metric

func (s sender) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sender) counter(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}
