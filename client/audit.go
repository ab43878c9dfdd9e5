package client

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Create creates an API token. Only operators may. The answer is the only place where the
// token's secret appears.
func (s Tokens) Create(ctx context.Context, r v1.TokenRequest) (v1.Token, error) {
	return callJSONWithBody[v1.Token](ctx, s.c, newCall(http.MethodPost, "tokens"), r, nil)
}

// List lists all tokens without their secrets, newest first. Only operators may.
func (s Tokens) List(ctx context.Context) ([]v1.Token, error) {
	l, err := callJSON[v1.List[v1.Token]](ctx, s.c, newCall(http.MethodGet, "tokens"))
	return l.Items, err
}

// Revoke revokes a token with immediate effect. Calls that already run are not cancelled. Only
// operators may.
func (s Tokens) Revoke(ctx context.Context, id string) (v1.Token, error) {
	return callJSON[v1.Token](ctx, s.c, newCall(http.MethodDelete, "tokens", id))
}

// auditDefault is the server's limit if Records sets none.
const auditDefault = 1000

// AuditFilter selects audit records. The zero value selects all of them.
type AuditFilter struct {
	Caller, Action, Verdict, Ending, Call, Sandbox string
	Since, Until                                   time.Time
	// After skips records up to and including this sequence number. Limit is the maximum number of
	// records; 0 means 1000 for Audit.Records and no limit for Audit.Export. Newest selects the last
	// Limit records instead of the first.
	After  int64
	Limit  int
	Newest bool
}

func (f AuditFilter) addTo(k *call) *call {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(time.RFC3339Nano)
	}
	k.set("caller", f.Caller).
		set("action", f.Action).
		set("verdict", f.Verdict).
		set("ending", f.Ending).
		set("call", f.Call).
		set("sandbox", f.Sandbox)
	k.set("since", at(f.Since)).set("until", at(f.Until))
	return k.number("after", f.After).number("limit", int64(f.Limit)).flag("newest", f.Newest)
}

// Records lists audit records in the order of their sequence numbers. Operators see the records of
// all callers, other callers only their own. The server answers in pages of about 1 MiB. Records
// reads as many as Limit needs. With Newest, it returns one page, which may lack the oldest
// records.
func (s Audit) Records(ctx context.Context, f AuditFilter) ([]v1.AuditRecord, error) {
	all := []v1.AuditRecord{}
	if f.Limit <= 0 {
		f.Limit = 0 // the server's default
	}
	for want := cmp.Or(f.Limit, auditDefault); ; {
		l, err := callJSON[v1.List[v1.AuditRecord]](ctx, s.c, f.addTo(newCall(http.MethodGet, "audit")))
		all = append(all, l.Items...)
		if err != nil || !l.Truncated || f.Newest || len(l.Items) == 0 || len(all) >= want {
			return all, err
		}
		f.After, f.Limit = l.Items[len(l.Items)-1].Seq, want-len(all)
	}
}

// Export writes audit records to w as JSON lines. Only operators may. If it returns an error,
// the data in w is incomplete.
func (s Audit) Export(ctx context.Context, f AuditFilter, w io.Writer) error {
	k := f.addTo(newCall(http.MethodGet, "audit", "export"))
	k.accept = "application/x-ndjson"
	resp, err := s.c.send(ctx, k)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	buf := make([]byte, dataBuffer)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return &writerError{"audit records", err}
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return s.c.connectionError(ctx, err)
		}
	}
}

// Verify makes the server verify the hash chain of the audit log. head is the Head of an
// earlier report that was stored elsewhere, or "". A damaged log is not an error: the report
// describes the damage.
func (s Audit) Verify(ctx context.Context, head string) (v1.AuditReport, error) {
	return callJSON[v1.AuditReport](ctx, s.c, newCall(http.MethodGet, "audit", "verify").set("head", head))
}
