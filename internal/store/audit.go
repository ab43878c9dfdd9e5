package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

// AuditDB is the database of the audit log, a file of its own beside the
// state, so that neither waits for the other. It knows rows and their order,
// not what they mean. Append is for one goroutine at a time; everything else
// may be called concurrently, and reading does not hold up Append. Use
// OpenAudit.
type AuditDB struct {
	write, read          *sql.DB
	insert, open, closed *sql.Stmt // of write
}

// AuditRow is a record as it is stored. Prev and Hash have 32 bytes in what
// was not tampered with.
type AuditRow struct {
	Seq        int64
	Record     []byte
	Prev, Hash []byte
	// Call and Caller are what the row is found by, and stand in the record too:
	// whoever verifies the log compares them.
	Call, Caller string
	// Opens and Closes name the call that Append is to remember as running, or
	// to forget. Reading leaves them empty.
	Opens, Closes string
}

// AuditFilter chooses rows; the zero value takes all, in order of their
// sequence numbers. A row matches if all fields that are set are the row's own.
type AuditFilter struct {
	Caller, Action, Verdict, Ending, Call, Sandbox string
	// Since is inclusive, Until is not.
	Since, Until time.Time
	// After is the sequence number to begin behind; Limit is the most rows to
	// take (0: all).
	After int64
	Limit int
	// Newest takes the last rows instead of the first, and needs a Limit.
	Newest bool
}

// AuditTime is the form of a record's time: of one length, so that the order
// of the text is the order in time.
const AuditTime = "2006-01-02T15:04:05.000000Z"

// What is filtered by is computed from the record and not stored beside it, so
// it cannot say anything else than what the hash covers; but for call and
// caller, which are asked for most: to parse each record for them costs more
// than all the rest of writing it.
const auditSchema = `
CREATE TABLE IF NOT EXISTS records (
	seq INTEGER PRIMARY KEY, record TEXT NOT NULL, prev BLOB NOT NULL, hash BLOB NOT NULL,
	call TEXT NOT NULL DEFAULT '', caller TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS records_time ON records (` + auditTime + `);
CREATE INDEX IF NOT EXISTS records_call ON records (call);
CREATE INDEX IF NOT EXISTS records_caller ON records (caller);
CREATE TABLE IF NOT EXISTS running (call TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID;
`

// auditTime is a record's time, which stands at the same place in all of them.
const auditTime = `substr(record, instr(record, '"time":"') + 8, 27)`

// auditVersion of the schema. An older program refuses a newer database.
const auditVersion = 1

// AuditFile is the database's name in the state directory.
const AuditFile = "audit.db"

// auditPage is how many rows one query reads: a slow reader must not keep the
// write-ahead log from being folded into the database.
const auditPage = 2048

// OpenAudit opens or makes the audit database in dir. The caller holds the
// directory's lock (see Lock).
func OpenAudit(ctx context.Context, dir string) (*AuditDB, error) {
	path := filepath.Join(dir, AuditFile)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	a := &AuditDB{}
	if a.write, err = openFile(path, "immediate", 1); err != nil {
		return nil, err
	}
	if err := a.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, classify(err)), a.write.Close())
	}
	if err := a.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, classify(err)), a.write.Close())
	}
	if a.read, err = openFile(path, "deferred", 4, "query_only(ON)"); err != nil {
		return nil, errors.Join(err, a.write.Close())
	}
	return a, nil
}

func (a *AuditDB) migrate(ctx context.Context) error {
	var found int
	if err := a.write.QueryRowContext(ctx, "PRAGMA user_version").Scan(&found); err != nil {
		return err
	}
	if found > auditVersion {
		return fmt.Errorf("the audit log is of version %d and this program knows %d: use the newer program: %w", found, auditVersion, errdefs.ErrFailedPrecondition)
	}
	if _, err := a.write.ExecContext(ctx, auditSchema); err != nil {
		return err
	}
	_, err := a.write.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", auditVersion))
	return err
}

func (a *AuditDB) prepare(ctx context.Context) (err error) {
	for _, p := range []struct {
		to   **sql.Stmt
		text string
	}{
		{&a.insert, "INSERT INTO records (seq, record, prev, hash, call, caller) VALUES (?, ?, ?, ?, ?, ?)"},
		{&a.open, "INSERT OR REPLACE INTO running (call, seq) VALUES (?, ?)"},
		{&a.closed, "DELETE FROM running WHERE call = ?"},
	} {
		if *p.to, err = a.write.PrepareContext(ctx, p.text); err != nil {
			return err
		}
	}
	return nil
}

// Append writes rows in one transaction: all or none. They outlive the
// process once it returns.
func (a *AuditDB) Append(ctx context.Context, rows []AuditRow) error {
	tx, err := a.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("write the audit log: %w", classify(err))
	}
	defer func() { _ = tx.Rollback() }()
	if err := a.appendRows(ctx, tx, rows); err != nil {
		return fmt.Errorf("write the audit log: %w", classify(err))
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("write the audit log: %w", classify(err))
	}
	return nil
}

func (a *AuditDB) appendRows(ctx context.Context, tx *sql.Tx, rows []AuditRow) error {
	insert, open, closed := tx.StmtContext(ctx, a.insert), tx.StmtContext(ctx, a.open), tx.StmtContext(ctx, a.closed)
	for _, r := range rows {
		if _, err := insert.ExecContext(ctx, r.Seq, string(r.Record), r.Prev, r.Hash, r.Call, r.Caller); err != nil {
			return err
		}
		if r.Opens != "" {
			if _, err := open.ExecContext(ctx, r.Opens, r.Seq); err != nil {
				return err
			}
		}
		if r.Closes != "" {
			if _, err := closed.ExecContext(ctx, r.Closes); err != nil {
				return err
			}
		}
	}
	return nil
}

// Last is the row with the highest sequence number, or a zero one.
func (a *AuditDB) Last(ctx context.Context) (AuditRow, error) {
	var r AuditRow
	err := a.read.QueryRowContext(ctx, "SELECT seq, record, prev, hash FROM records ORDER BY seq DESC LIMIT 1").Scan(&r.Seq, &r.Record, &r.Prev, &r.Hash)
	if errors.Is(err, sql.ErrNoRows) {
		return AuditRow{}, nil
	}
	if err != nil {
		return AuditRow{}, fmt.Errorf("read the end of the audit log: %w", classify(err))
	}
	return r, nil
}

// Running is the rows that opened calls which no row closed.
func (a *AuditDB) Running(ctx context.Context) ([]AuditRow, error) {
	rows, err := a.read.QueryContext(ctx, "SELECT r.seq, r.record, r.prev, r.hash, o.call FROM running o JOIN records r ON r.seq = o.seq ORDER BY r.seq")
	if err != nil {
		return nil, fmt.Errorf("read the open audit records: %w", classify(err))
	}
	defer rows.Close()
	var all []AuditRow
	for rows.Next() {
		var r AuditRow
		if err := rows.Scan(&r.Seq, &r.Record, &r.Prev, &r.Hash, &r.Opens); err != nil {
			return nil, fmt.Errorf("read the open audit records: %w", classify(err))
		}
		all = append(all, r)
	}
	return all, classify(rows.Err())
}

// Scan calls f with the rows that match, in order of their sequence numbers;
// what f gets is only good until it returns. It ends at the first error of f,
// which it returns as it is. An error in reading is an *AuditReadError.
func (a *AuditDB) Scan(ctx context.Context, filter AuditFilter, f func(AuditRow) error) error {
	q, err := a.query(ctx, filter)
	if err != nil {
		return err
	}
	for left := filter.Limit; ; {
		limit := auditPage
		if filter.Limit > 0 {
			limit = min(left, auditPage)
		}
		n, last, err := a.page(ctx, q, limit, f)
		if err != nil {
			return err
		}
		left -= n
		if n < limit || (filter.Limit > 0 && left == 0) {
			return nil
		}
		q.after(last)
	}
}

func (a *AuditDB) page(ctx context.Context, q auditQuery, limit int, f func(AuditRow) error) (n int, last int64, err error) {
	last = q.last
	rows, err := a.read.QueryContext(ctx, "SELECT seq, record, prev, hash, call, caller FROM records"+q.where()+" ORDER BY seq LIMIT ?", append(q.args, limit)...)
	if err != nil {
		return 0, last, &AuditReadError{last, classify(err)}
	}
	defer rows.Close()
	var record, prev, sum sql.RawBytes
	for rows.Next() {
		r := AuditRow{}
		if err := rows.Scan(&r.Seq, &record, &prev, &sum, &r.Call, &r.Caller); err != nil {
			return n, last, &AuditReadError{last, classify(err)}
		}
		r.Record, r.Prev, r.Hash = record, prev, sum
		if err := f(r); err != nil {
			return n, last, err
		}
		n, last = n+1, r.Seq
	}
	if err := rows.Err(); err != nil {
		return n, last, &AuditReadError{last, classify(err)}
	}
	return n, last, nil
}

// auditQuery is the condition of a filter.
type auditQuery struct {
	conds []string
	args  []any
	last  int64
	paged bool // the first condition is that of after
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

// member is a text of a record, NULL where it is no JSON any more.
func member(name string) string {
	return "iif(json_valid(record), record ->> '$." + name + "', NULL)"
}

func (a *AuditDB) query(ctx context.Context, f AuditFilter) (auditQuery, error) {
	var q auditQuery
	for _, c := range []struct{ column, value string }{
		{"caller", f.Caller}, {"call", f.Call}, {member("action"), f.Action}, {member("verdict"), f.Verdict}, {member("ending"), f.Ending},
		{member("sandbox"), f.Sandbox},
	} {
		if c.value != "" {
			q.add(c.column+" = ?", c.value)
		}
	}
	if err := a.during(ctx, &q, f); err != nil {
		return q, err
	}
	if f.After != 0 {
		q.after(f.After)
	}
	if !f.Newest {
		return q, nil
	}
	if f.Limit <= 0 {
		return q, fmt.Errorf("the newest audit records need a limit: %w", errdefs.ErrInvalidArgument)
	}
	var first int64
	err := a.read.QueryRowContext(ctx, "SELECT coalesce(min(seq), 0) FROM (SELECT seq FROM records"+q.where()+" ORDER BY seq DESC LIMIT ?)", append(q.args, f.Limit)...).Scan(&first)
	if err != nil {
		return q, fmt.Errorf("read the audit log: %w", classify(err))
	}
	q.after(max(f.After, first-1))
	return q, nil
}

// during limits q to a time. Records are in order of time but where the clock
// was set back, so the index by time gives the bounds of the sequence numbers
// once, and the pages are read in their own order.
func (a *AuditDB) during(ctx context.Context, q *auditQuery, f AuditFilter) error {
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
	err := a.read.QueryRowContext(ctx, "SELECT coalesce(min(seq), 0), coalesce(max(seq), -1) FROM records WHERE "+auditTime+" >= ? AND "+auditTime+" < ?", since, until).Scan(&first, &last)
	if err != nil {
		return fmt.Errorf("read the audit log: %w", classify(err))
	}
	q.add("seq >= ?", first)
	q.add("seq <= ?", last)
	q.add("+"+auditTime+" >= ?", since) // the plus keeps the index out: its order is another
	q.add("+"+auditTime+" < ?", until)
	return nil
}

// AuditReadError says behind which row reading failed.
type AuditReadError struct {
	After int64
	Err   error
}

func (e *AuditReadError) Error() string {
	return fmt.Sprintf("read the audit log behind record %d: %v", e.After, e.Err)
}

// Unwrap gives the cause.
func (e *AuditReadError) Unwrap() error { return e.Err }

// Close closes the database.
func (a *AuditDB) Close() error { return errors.Join(a.read.Close(), a.write.Close()) }
