package governed

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed/present"
)

// hostError is the prefix of recorded errors that only operators may read.
const hostError = "service: "

// auditText returns the text of err for an audit record. Text that callers must not see gets the
// prefix hostError.
func auditText(err error) string {
	if core.ForCallers(err) == nil {
		return hostError + err.Error()
	}
	return err.Error()
}

// RecordOperator records an operator's action and the error it ended with, if any. A failure to
// record is logged.
func (s *Service) RecordOperator(ctx context.Context, p caller.Principal, r audit.Record, input any, cause error) {
	g := s.opts.Config
	if g == nil {
		return
	}
	r.Kind, r.Caller, r.Token, r.Via, r.Uncharged = audit.KindEvent, p.Caller, p.Token, p.Via, true
	if cause != nil {
		r.Error = auditText(cause)
	}
	if body, err := json.Marshal(input); err == nil {
		r.Input = body
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := g.Audit.Event(ctx, r); err != nil {
		s.log.Error("failed to record an operator's action", "action", r.Action, "error", err)
	}
}

// Audit lists audit records, at most about 1 MiB of them. An operator sees all records, another
// caller only their own.
func (s *Service) Audit(ctx context.Context, p caller.Principal, f AuditFilter) (v1.List[v1.AuditRecord], error) {
	g := s.opts.Config
	if g == nil {
		return v1.List[v1.AuditRecord]{}, ErrUngoverned
	}
	if !p.Operator {
		f.Caller = p.Caller
	}
	list, more, err := g.Audit.List(ctx, audit.Filter(f))
	if err != nil {
		return v1.List[v1.AuditRecord]{}, err
	}
	out := make([]v1.AuditRecord, 0, len(list))
	for _, r := range list {
		if !p.Operator && strings.HasPrefix(r.Error, hostError) {
			r.Error = "the service could not do this"
		}
		out = append(out, presentRecord(r))
	}
	return v1.List[v1.AuditRecord]{Items: out, Truncated: more}, nil
}

// WatchAudit calls send with the records that are written from now on, in order, until ctx ends or
// send fails. An operator gets all records, another caller only their own. A list with Truncated
// set follows records that were left out, because more were written than a reader can be sent.
func (s *Service) WatchAudit(
	ctx context.Context, p caller.Principal, send func(v1.List[v1.AuditRecord]) error,
) error {
	if s.opts.Config == nil {
		return ErrUngoverned
	}
	seen, more := s.opts.Config.Audit.Appended()
	for {
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		last, next := s.opts.Config.Audit.Appended()
		more = next
		list, err := s.Audit(ctx, p, AuditFilter{After: seen, Limit: watchLimit, Newest: true})
		if err != nil {
			return err
		}
		list.Truncated = list.Truncated || len(list.Items) == watchLimit
		if n := len(list.Items); n > 0 {
			last = max(last, list.Items[n-1].Seq)
		}
		if seen = last; len(list.Items) == 0 {
			continue
		}
		if err := send(list); err != nil {
			return err
		}
		select {
		case <-time.After(watchPause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// A reader of new records gets at most watchLimit of them every watchPause.
const (
	watchLimit = 500
	watchPause = 100 * time.Millisecond
)

// ExportAudit writes audit records to w as JSON lines. Only operators may call it.
func (s *Service) ExportAudit(ctx context.Context, p caller.Principal, f AuditFilter, w io.Writer) error {
	if s.opts.Config == nil {
		return ErrUngoverned
	}
	if err := p.Operate("export the audit log"); err != nil {
		return err
	}
	return s.opts.Config.Audit.Export(ctx, audit.Filter(f), w)
}

// VerifyAudit verifies the hash chain of all audit records. head is the "SEQ:HASH" of a record that
// was kept elsewhere, or "". Only operators may call it.
func (s *Service) VerifyAudit(ctx context.Context, p caller.Principal, head string) (v1.AuditReport, error) {
	if s.opts.Config == nil {
		return v1.AuditReport{}, ErrUngoverned
	}
	if err := p.Operate("verify the audit log"); err != nil {
		return v1.AuditReport{}, err
	}
	r, err := s.opts.Config.Audit.Verify(ctx, head)
	if err != nil {
		return v1.AuditReport{}, err
	}
	return present.Audit(r), nil
}

func presentRecord(r audit.Stored) v1.AuditRecord {
	return v1.AuditRecord{
		Seq: r.Seq, Time: r.Time, Kind: string(r.Kind), Call: r.Call, Caller: r.Caller, Token: r.Token,
		Profile: r.Profile, Trust: r.Trust, Session: r.Session, Via: r.Via, Trace: r.Trace,
		Action: r.Action, Input: r.Input, InputBytes: r.InputBytes, InputHash: r.InputHash,
		Verdict: r.Verdict, Rule: r.Rule, Approval: r.Approval, By: r.By,
		Sandbox: r.Sandbox, Workspace: r.Workspace, Image: r.Image,
		Ending: r.Ending, ExitCode: r.ExitCode, DurationMS: r.DurationMS, CPUMS: r.CPUMS, MemoryPeak: r.MemoryPeak,
		Stdout: r.Stdout, Stderr: r.Stderr, Error: r.Error,
		Count: r.Count, Egress: (*v1.AuditEgress)(r.Egress), Hash: r.Hash,
	}
}

// AuditFilter selects audit records. The zero value selects all, newest last.
type AuditFilter struct {
	Caller, Action, Verdict, Ending, Call, Sandbox string
	Since, Until                                   time.Time
	// After is the sequence number to start after. Limit is the maximum number of records; 0 means
	// 1000 for lists and all for exports.
	After int64
	Limit int
	// Newest selects the last Limit records instead of the first.
	Newest bool
}
