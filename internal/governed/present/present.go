// Package present converts reports and verdicts to their API form, for the service and for commands
// that work without one.
package present

import (
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
)

// Audit converts a verification report to its API form.
func Audit(r audit.Report) v1.AuditReport {
	out := v1.AuditReport{
		OK:       r.OK,
		Records:  r.Records,
		Head:     r.Head,
		Problems: []v1.AuditProblem{},
		More:     r.More,
		Parts:    []v1.AuditPart{},
	}
	for _, p := range r.Problems {
		out.Problems = append(out.Problems, v1.AuditProblem{Seq: p.Seq, Kind: string(p.Kind), Message: p.Message})
	}
	for _, p := range r.Parts {
		part := v1.AuditPart{Part: p.Number, State: string(p.State), First: p.First, Last: p.Last}
		if p.State == audit.PartRemoved {
			part.RemovedAt = &p.Removed
		}
		out.Parts = append(out.Parts, part)
	}
	return out
}

// Verdict converts a verdict to its API form.
func Verdict(v policy.Verdict) v1.Verdict {
	out := v1.Verdict{
		Verdict:  string(v.Action),
		Rule:     v.Rule,
		Class:    v.Class,
		HardDeny: v.HardDeny,
		Message:  v.Message,
		Program:  v.Program,
	}
	if v.At != nil {
		at := v1.Position(*v.At)
		out.At = &at
	}
	return out
}
