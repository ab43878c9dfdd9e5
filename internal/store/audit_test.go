package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func openTestAudit(t *testing.T, dir string) *AuditDB {
	t.Helper()
	a, err := OpenAudit(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

func auditRows(from, to int64) (rows []AuditRow) {
	for i := from; i <= to; i++ {
		at := time.Unix(i, 0).UTC().Format(AuditTime)
		record := fmt.Sprintf(`{"seq":%d,"time":%q,"call":"c%d","caller":"caller-%d","ending":"exit"}`, i, at, i, i%3)
		rows = append(rows, AuditRow{Seq: i, Record: []byte(record), Prev: []byte{1}, Hash: []byte{byte(i)},
			Call: fmt.Sprint("c", i), Caller: fmt.Sprint("caller-", i%3), Opens: fmt.Sprint("c", i)})
	}
	return rows
}

func auditSeqs(t *testing.T, a *AuditDB, f AuditFilter) (seqs []int64) {
	t.Helper()
	if err := a.Scan(t.Context(), f, func(r AuditRow) error { seqs = append(seqs, r.Seq); return nil }); err != nil {
		t.Fatal(err)
	}
	return seqs
}

func TestAuditScanReadsPages(t *testing.T) {
	dir := t.TempDir()
	a := openTestAudit(t, dir)
	const n = 2*auditPage + 100
	if err := a.Append(t.Context(), auditRows(1, n)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		f           AuditFilter
		count       int
		first, last int64
	}{
		{AuditFilter{}, n, 1, n},
		{AuditFilter{After: 10}, n - 10, 11, n},
		{AuditFilter{Limit: auditPage}, auditPage, 1, auditPage},
		{AuditFilter{Limit: auditPage + 1}, auditPage + 1, 1, auditPage + 1},
		{AuditFilter{Newest: true, Limit: auditPage + 1}, auditPage + 1, n - auditPage, n},
		{AuditFilter{Newest: true, Limit: 5, After: n - 2}, 2, n - 1, n},
		{AuditFilter{Caller: "caller-0", Limit: 2}, 2, 3, 6},
		{AuditFilter{Since: time.Unix(100, 0), Until: time.Unix(200, 0)}, 100, 100, 199},
		{AuditFilter{Since: time.Unix(100, 0), Ending: "exit", Newest: true, Limit: 1}, 1, n, n},
	} {
		seqs := auditSeqs(t, a, c.f)
		if len(seqs) != c.count || seqs[0] != c.first || seqs[len(seqs)-1] != c.last {
			t.Errorf("Scan(%+v) = rows %v, want %d from %d to %d", c.f, seqs, c.count, c.first, c.last)
		}
	}
	if err := a.Scan(t.Context(), AuditFilter{Newest: true}, nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Scan of the newest without a limit: %v, want InvalidArgument", err)
	}
	stop := errors.New("stop")
	if err := a.Scan(t.Context(), AuditFilter{}, func(AuditRow) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("Scan with a failing callback = %v, want its error", err)
	}
}

func TestAuditRunningCalls(t *testing.T) {
	dir := t.TempDir()
	a := openTestAudit(t, dir)
	if last, err := a.Last(t.Context()); err != nil || last.Seq != 0 || last.Hash != nil {
		t.Errorf("Last of an empty log = %+v, %v; want the zero row", last, err)
	}
	rows := auditRows(1, 3)
	rows[2].Opens, rows[2].Closes = "", "c1"
	if err := a.Append(t.Context(), rows); err != nil {
		t.Fatal(err)
	}
	if err := a.Append(t.Context(), auditRows(3, 4)); err == nil {
		t.Error("Append of a used number succeeded, want an error")
	}
	a.Close()
	a = openTestAudit(t, dir)
	if last, err := a.Last(t.Context()); err != nil || last.Seq != 3 || last.Hash[0] != 3 {
		t.Errorf("Last = %+v, %v; want row 3", last, err)
	}
	running, err := a.Running(t.Context())
	if err != nil || len(running) != 1 || running[0].Opens != "c2" || running[0].Seq != 2 {
		t.Errorf("Running = %+v, %v; want c2 at 2", running, err)
	}
}

// Each query that is meant to be fast uses its index.
func TestAuditFiltersUseTheirIndex(t *testing.T) {
	a := openTestAudit(t, t.TempDir())
	for where, index := range map[string]string{
		"caller = 'a' AND " + memberExpr("ending") + " = 'x'": "records_caller", "call = 'a'": "records_call",
		"caller = 'a' AND seq > 5": "records_caller",
	} {
		plan := queryPlan(t, a,
			"SELECT seq, record, prev, hash FROM records WHERE "+where+" ORDER BY seq LIMIT 5")
		if !strings.Contains(plan, "USING INDEX "+index) || strings.Contains(plan, "TEMP B-TREE") {
			t.Errorf("query plan of %s = %s, want index %s without sorting", where, plan, index)
		}
	}
}

func queryPlan(t *testing.T, a *AuditDB, query string) string {
	t.Helper()
	rows, err := a.cur.read.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var plan strings.Builder
	for rows.Next() {
		var id, parent, unused int
		var detail string
		if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
			t.Fatal(err)
		}
		plan.WriteString(detail + "\n")
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan.String()
}

func TestNewerAuditLogIsRefused(t *testing.T) {
	dir := t.TempDir()
	a := openTestAudit(t, dir)
	if _, err := a.cur.write.ExecContext(t.Context(), "PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	a.Close()
	if _, err := OpenAudit(t.Context(), dir); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("OpenAudit of a newer version: %v, want FailedPrecondition", err)
	}
	if info, err := os.Stat(filepath.Join(dir, AuditFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("audit file = %v, %v; want mode 0600", info, err)
	}
}

func TestDamagedAuditFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, AuditFile), []byte(strings.Repeat("not a database ", 1000)),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAudit(t.Context(), dir); err == nil || !strings.Contains(err.Error(), AuditFile) {
		t.Errorf("OpenAudit of a damaged file: %v, want an error that names %s", err, AuditFile)
	}
}
