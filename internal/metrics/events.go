package metrics

import (
	"cmp"
	"slices"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// ToolCall describes a tool call that ended.
type ToolCall struct {
	// Tool and Profile are names that exist, or Unknown. Class is that of a refusal, or "".
	Tool, Profile, Caller, Ending, Class string
}

// ToolCall counts a tool call that ended.
func (m *Metrics) ToolCall(c ToolCall) {
	if m == nil {
		return
	}
	m.calls.WithLabelValues(c.Tool, c.Profile, c.Ending, m.runtime).Inc()
	if len(m.callers) > 0 {
		who := Other
		if slices.Contains(m.callers, c.Caller) {
			who = c.Caller
		}
		m.callerCalls.WithLabelValues(who, c.Ending).Inc()
	}
	if e := runtime.Ending(c.Ending); e == runtime.PolicyDenied || e == runtime.ApprovalDenied {
		m.refusals.WithLabelValues(cmp.Or(c.Class, Other)).Inc()
	}
}

// Verdict counts a decision of a profile's policy on a command.
func (m *Metrics) Verdict(profile, verdict string) {
	if m != nil {
		m.verdicts.WithLabelValues(profile, verdict).Inc()
	}
}

// ApprovalDecided counts an approval request that was decided.
func (m *Metrics) ApprovalDecided(state string) {
	if m != nil {
		m.approvals.WithLabelValues(state).Inc()
	}
}

// killReasons lists the endings of commands that were killed.
func killReasons() []string {
	return []string{
		string(runtime.Timeout), string(runtime.Cancelled), string(runtime.OOM), string(runtime.Pids),
		string(runtime.Disk), string(runtime.OutputLimit),
	}
}

// Command counts a foreground command that ended.
func (m *Metrics) Command(ending runtime.Ending) {
	if m == nil {
		return
	}
	m.commands.WithLabelValues(string(ending), m.runtime).Inc()
	if slices.Contains(killReasons(), string(ending)) {
		m.kills.WithLabelValues(string(ending)).Inc()
	}
}

// Lease counts a lease that began. warm reports that its sandbox was ready before.
func (m *Metrics) Lease(template string, warm bool) {
	if m == nil {
		return
	}
	start := "cold"
	if warm {
		start = "warm"
	}
	m.leases.WithLabelValues(template, start).Inc()
}

// LeaseEnded counts a lease whose sandbox was removed. known lists the reasons that get a label.
func (m *Metrics) LeaseEnded(template, reason string, known []string) {
	if m == nil {
		return
	}
	if !slices.Contains(known, reason) {
		reason = Other
	}
	m.leaseEnds.WithLabelValues(template, reason).Inc()
}

// Decisions about connections.
const (
	decisionAllow = "allow"
	decisionDeny  = "deny"
)

// Connection counts a connection out of a sandbox that ended, and its bytes.
func (m *Metrics) Connection(allowed bool, sent, received int64) {
	if m == nil {
		return
	}
	decision := decisionDeny
	if allowed {
		decision = decisionAllow
	}
	m.connections.WithLabelValues(decision).Inc()
	m.traffic.WithLabelValues("sent").Add(float64(sent))
	m.traffic.WithLabelValues("received").Add(float64(received))
}

// StoreWrite measures a write to a database. operation is a constant of the caller.
func (m *Metrics) StoreWrite(operation string, took time.Duration) {
	if m != nil {
		m.writes.WithLabelValues(operation).Observe(took.Seconds())
	}
}

// RoundTrip measures a request to a guest and its answer.
func (m *Metrics) RoundTrip(took time.Duration) {
	if m != nil {
		m.roundTrip.Observe(took.Seconds())
	}
}
