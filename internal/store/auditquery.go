package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// AuditFilter selects rows. The zero value selects all, in sequence order. A row must match every
// field that is set.
type AuditFilter struct {
	Caller, Action, Verdict, Ending, Call, Sandbox string
	// Since is inclusive, Until is exclusive.
	Since, Until time.Time
	// After selects rows with a greater sequence number. Limit is the maximum number of rows (0:
	// all).
	After int64
	Limit int
	// Newest selects the last rows instead of the first. It requires a Limit.
	Newest bool
}

// auditQuery is the SQL condition of a filter.
type auditQuery struct {
	conds []string
	args  []any
	last  int64
	paged bool // the first condition is that of After
}

func (q *auditQuery) add(cond string, v any) {
	q.conds = append(q.conds, cond)
	q.args = append(q.args, v)
}

func (q *auditQuery) after(seq int64) {
	q.last = seq
	if !q.paged {
		q.paged = true
		q.conds = append([]string{"seq > ?"}, q.conds...)
		q.args = append([]any{seq}, q.args...)
	}
	q.args[0] = seq
}

func (q *auditQuery) where() string {
	if len(q.conds) == 0 {
		return ""
	}
	return " WHERE " + strings.Join(q.conds, " AND ")
}

// memberExpr returns an SQL expression for a member of the record. It is NULL if the record is not
// valid JSON.
func memberExpr(name string) string {
	return "iif(json_valid(record), record ->> '$." + name + "', NULL)"
}

func (p *auditPart) query(ctx context.Context, f AuditFilter) (auditQuery, error) {
	var q auditQuery
	for _, c := range []struct{ column, value string }{
		{"caller", f.Caller}, {"call", f.Call}, {memberExpr("action"), f.Action}, {memberExpr("verdict"), f.Verdict},
		{memberExpr("ending"), f.Ending},
		{memberExpr("sandbox"), f.Sandbox},
	} {
		if c.value != "" {
			q.add(c.column+" = ?", c.value)
		}
	}
	if err := p.during(ctx, &q, f); err != nil {
		return q, err
	}
	if f.After != 0 {
		q.after(f.After)
	}
	if !f.Newest {
		return q, nil
	}
	if f.Limit <= 0 {
		return q, fmt.Errorf("newest audit records: a limit is required: %w", errdefs.ErrInvalidArgument)
	}
	var first int64
	err := p.read.QueryRowContext(ctx,
		"SELECT coalesce(min(seq), 0) FROM (SELECT seq FROM records"+q.where()+" ORDER BY seq DESC LIMIT ?)",
		append(q.args, f.Limit)...).Scan(&first)
	if err != nil {
		return q, fmt.Errorf("read the audit log: %w", classify(err))
	}
	q.after(max(f.After, first-1))
	return q, nil
}

// during limits q to a time range. Records are in time order except where the clock was set back.
// The time index therefore yields the bounds of the sequence numbers once, and pages are read in
// sequence order.
func (p *auditPart) during(ctx context.Context, q *auditQuery, f AuditFilter) error {
	if f.Since.IsZero() && f.Until.IsZero() {
		return nil
	}
	since, until := "", "9999"
	if !f.Since.IsZero() {
		since = f.Since.UTC().Format(AuditTime)
	}
	if !f.Until.IsZero() {
		until = f.Until.UTC().Format(AuditTime)
	}
	var first, last int64
	err := p.read.QueryRowContext(ctx,
		"SELECT coalesce(min(seq), 0), coalesce(max(seq), -1) FROM records "+
			"WHERE "+auditTime+" >= ? AND "+auditTime+" < ?",
		since, until).Scan(&first, &last)
	if err != nil {
		return fmt.Errorf("read the audit log: %w", classify(err))
	}
	q.add("seq >= ?", first)
	q.add("seq <= ?", last)
	q.add("+"+auditTime+" >= ?", since) // the plus disables the index, which has a different order
	q.add("+"+auditTime+" < ?", until)
	return nil
}

// AuditReadError reports the row after which reading failed.
type AuditReadError struct {
	After int64
	Err   error
}

func (e *AuditReadError) Error() string {
	return fmt.Sprintf("read the audit log behind record %d: %v", e.After, e.Err)
}

// Unwrap returns the cause.
func (e *AuditReadError) Unwrap() error { return e.Err }
