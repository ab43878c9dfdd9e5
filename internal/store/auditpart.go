package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
)

// auditPart is one open file of the audit log. In a part opened read-only, write and its statements
// are nil.
type auditPart struct {
	number               int
	path                 string
	write, read          *sql.DB
	insert, open         *sql.Stmt // on write
	closed, taken, spend *sql.Stmt // on write
	holds                int       // guarded by AuditDB.mu: running scans, plus one for the last part
}

// AuditRow is a stored record. Prev and Hash have 32 bytes unless the row was tampered with.
type AuditRow struct {
	Seq        int64
	Record     []byte
	Prev, Hash []byte
	// Call and Caller index the row. The record contains them too, and verification compares both.
	Call, Caller string
	// Opens and Closes name the call that Append marks as running or ended. They are empty when
	// read.
	Opens, Closes string
	// Spender is the caller whose share of Day ("2006-01-02") Append charges with Spent bytes, or
	// "". It is empty when read.
	Spender, Day string
	Spent        int64
}

// AuditTime is the format of a record's time. Its fixed length makes text order equal time order.
const AuditTime = "2006-01-02T15:04:05.000000Z"

// Filters are computed from the record instead of stored beside it, so that they match what the
// hash covers. Call and caller are stored, because they are queried most and parsing every record
// for them would cost more than writing it.
//
// running holds calls that this part opened, carried those that earlier parts opened, and spent the
// daily use of each caller.
const auditSchema = `
CREATE TABLE IF NOT EXISTS records (
	seq INTEGER PRIMARY KEY, record TEXT NOT NULL, prev BLOB NOT NULL, hash BLOB NOT NULL,
	call TEXT NOT NULL DEFAULT '', caller TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS records_time ON records (` + auditTime + `);
CREATE INDEX IF NOT EXISTS records_call ON records (call);
CREATE INDEX IF NOT EXISTS records_caller ON records (caller);
CREATE TABLE IF NOT EXISTS running (call TEXT PRIMARY KEY, seq INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS carried (
	call TEXT PRIMARY KEY, seq INTEGER NOT NULL, record TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spent (
	day TEXT NOT NULL, caller TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (day, caller)
) STRICT, WITHOUT ROWID;
`

// auditTime extracts a record's time, which is at the same offset in every record.
const auditTime = `substr(record, instr(record, '"time":"') + 8, 27)`

// auditVersion is the schema version. An older program refuses a newer database: without support
// for parts it would append to a sealed one.
const auditVersion = 2

// auditPage is the number of rows per query. Short queries let the write-ahead log be checkpointed
// despite slow readers.
const auditPage = 2048

// openPart opens or creates a part for writing.
func openPart(ctx context.Context, dir string, number int) (*auditPart, error) {
	path := filepath.Join(dir, AuditPartFile(number))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	p := &auditPart{number: number, path: path, holds: 1}
	if p.write, err = openFile(path, "immediate", 1); err != nil {
		return nil, err
	}
	if err := p.migrate(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, classify(err)), p.write.Close())
	}
	if err := p.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, classify(err)), p.write.Close())
	}
	if p.read, err = openFile(path, "deferred", 4, "query_only(ON)"); err != nil {
		return nil, errors.Join(err, p.write.Close())
	}
	return p, nil
}

// openPartToRead opens a part that is not being written. If the file is missing, the error is
// fs.ErrNotExist. It modifies the directory only if the part has a write-ahead log.
func openPartToRead(dir string, number int) (*auditPart, error) {
	path := filepath.Join(dir, AuditPartFile(number))
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open the audit log: %w", err)
	}
	q := url.Values{"mode": {"ro"}, "_pragma": {"busy_timeout(5000)", "query_only(ON)"}}
	if info, err := os.Stat(path + "-wal"); err != nil || info.Size() == 0 {
		q.Set("immutable", "1")
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return &auditPart{number: number, path: path, read: db}, nil
}

// foldLog turns a sealed part into a single file without a write-ahead log. If a reader prevents
// that, the part stays valid.
func foldLog(ctx context.Context, path string) error {
	if !hasLog(path) {
		return nil
	}
	q := url.Values{"mode": {"rw"}, "_pragma": {"journal_mode(DELETE)"}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return err
	}
	return errors.Join(db.PingContext(ctx), db.Close())
}

// hasLog reports whether a database uses a write-ahead log, or may do so.
func hasLog(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var version [2]byte // write and read version; 2 means a write-ahead log
	_, err = f.ReadAt(version[:], 18)
	return err == nil && version != [2]byte{1, 1}
}

// closeHandles closes the open handles.
func (p *auditPart) closeHandles() error {
	var errs []error
	for _, db := range []*sql.DB{p.read, p.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

func (p *auditPart) migrate(ctx context.Context) error {
	var found int
	if err := p.write.QueryRowContext(ctx, "PRAGMA user_version").Scan(&found); err != nil {
		return err
	}
	if found > auditVersion {
		return newerAuditError(found)
	}
	if _, err := p.write.ExecContext(ctx, auditSchema); err != nil {
		return err
	}
	_, err := p.write.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", auditVersion))
	return err
}

func newerAuditError(found int) error {
	return fmt.Errorf("audit log version %d, want %d: use the newer program: %w", found, auditVersion,
		errdefs.ErrFailedPrecondition)
}

func (p *auditPart) prepare(ctx context.Context) (err error) {
	for _, q := range []struct {
		to   **sql.Stmt
		text string
	}{
		{&p.insert, "INSERT INTO records (seq, record, prev, hash, call, caller) VALUES (?, ?, ?, ?, ?, ?)"},
		{&p.open, "INSERT OR REPLACE INTO running (call, seq) VALUES (?, ?)"},
		{&p.closed, "DELETE FROM running WHERE call = ?"},
		{&p.taken, "DELETE FROM carried WHERE call = ?"},
		{&p.spend,
			"INSERT INTO spent (day, caller, bytes) VALUES (?, ?, ?) " +
				"ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes"},
	} {
		if *q.to, err = p.write.PrepareContext(ctx, q.text); err != nil { //nolint:sqlclosecheck // closed with p.write
			return err
		}
	}
	return nil
}

// append writes rows in one transaction.
func (p *auditPart) append(ctx context.Context, rows []AuditRow) error {
	tx, err := p.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := p.appendRows(ctx, tx, rows); err != nil {
		return err
	}
	return tx.Commit()
}

func (p *auditPart) appendRows(ctx context.Context, tx *sql.Tx, rows []AuditRow) error {
	// The end of the transaction closes these statements.
	insert, open := tx.StmtContext(ctx, p.insert), tx.StmtContext(ctx, p.open) //nolint:sqlclosecheck // see above
	closed, taken := tx.StmtContext(ctx, p.closed), tx.StmtContext(ctx, p.taken)
	type share struct{ day, caller string }
	spent := map[share]int64{}
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
			if err := closeCall(ctx, closed, taken, r.Closes); err != nil {
				return err
			}
		}
		if r.Spender != "" {
			spent[share{r.Day, r.Spender}] += r.Spent
		}
	}
	spend := tx.StmtContext(ctx, p.spend) //nolint:sqlclosecheck // see above
	for s, n := range spent {
		if _, err := spend.ExecContext(ctx, s.day, s.caller, n); err != nil {
			return err
		}
	}
	return nil
}

// closeCall removes a call that this part or an earlier one opened.
func closeCall(ctx context.Context, closed, taken *sql.Stmt, call string) error {
	res, err := closed.ExecContext(ctx, call)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n > 0 {
		return err
	}
	_, err = taken.ExecContext(ctx, call)
	return err
}

// last returns the row with the highest sequence number, or the zero row.
func (p *auditPart) last(ctx context.Context) (AuditRow, error) {
	var r AuditRow
	err := p.read.QueryRowContext(ctx,
		"SELECT seq, record, prev, hash FROM records ORDER BY seq DESC LIMIT 1").
		Scan(&r.Seq, &r.Record, &r.Prev, &r.Hash)
	if errors.Is(err, sql.ErrNoRows) {
		return AuditRow{}, nil
	}
	return r, err
}

// running returns the rows that opened calls which no row closed.
func (p *auditPart) running(ctx context.Context) ([]AuditRow, error) {
	rows, err := p.read.QueryContext(ctx, `SELECT r.seq, r.record, o.call FROM running o JOIN records r ON r.seq = o.seq
		UNION ALL SELECT seq, record, call FROM carried ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []AuditRow
	for rows.Next() {
		var r AuditRow
		if err := rows.Scan(&r.Seq, &r.Record, &r.Opens); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, rows.Err()
}

// spentOn returns what callers have used on a day. "" means the last recorded day.
func (p *auditPart) spentOn(ctx context.Context, day string) (found string, spent map[string]int64, err error) {
	rows, err := p.read.QueryContext(ctx,
		"SELECT day, caller, bytes FROM spent WHERE day = coalesce(nullif(?, ''), (SELECT max(day) FROM spent))", day)
	if err != nil {
		return "", nil, err
	}
	defer rows.Close()
	spent = map[string]int64{}
	for rows.Next() {
		var caller string
		var n int64
		if err := rows.Scan(&found, &caller, &n); err != nil {
			return "", nil, err
		}
		spent[caller] = n
	}
	return found, spent, rows.Err()
}

// carry copies running calls and daily use from the previous part.
func (p *auditPart) carry(ctx context.Context, from *auditPart) error {
	open, err := from.running(ctx)
	if err != nil {
		return err
	}
	day, spent, err := from.spentOn(ctx, "")
	if err != nil {
		return err
	}
	tx, err := p.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for _, r := range open {
		if _, err := tx.ExecContext(ctx, "INSERT INTO carried (call, seq, record) VALUES (?, ?, ?)", r.Opens, r.Seq,
			string(r.Record)); err != nil {
			return err
		}
	}
	for caller, n := range spent {
		spend := tx.StmtContext(ctx, p.spend) //nolint:sqlclosecheck // closed with the transaction
		if _, err := spend.ExecContext(ctx, day, caller, n); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// size returns the size of the part in bytes, as it is after a checkpoint.
func (p *auditPart) size(ctx context.Context) (bytes int64, err error) {
	err = p.write.QueryRowContext(ctx,
		"SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").Scan(&bytes)
	return bytes, err
}

// count returns the number of matching rows, at most limit.
func (p *auditPart) count(ctx context.Context, f AuditFilter, limit int) (n int, err error) {
	f.Newest, f.Limit = false, 0
	q, err := p.query(ctx, f)
	if err != nil {
		return 0, err
	}
	err = p.read.QueryRowContext(ctx, "SELECT count(*) FROM (SELECT 1 FROM records"+q.where()+" LIMIT ?)",
		append(q.args, limit)...).Scan(&n)
	return n, classify(err)
}

// scan calls f with the matching rows of this part.
func (p *auditPart) scan(ctx context.Context, filter AuditFilter, f func(AuditRow) error) error {
	q, err := p.query(ctx, filter)
	if err != nil {
		return err
	}
	for left := filter.Limit; ; {
		limit := auditPage
		if filter.Limit > 0 {
			limit = min(left, auditPage)
		}
		n, last, err := p.page(ctx, q, limit, f)
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

func (p *auditPart) page(ctx context.Context, q auditQuery, limit int, f func(AuditRow) error) (n int, last int64,
	err error) {
	last = q.last
	rows, err := p.read.QueryContext(ctx,
		"SELECT seq, record, prev, hash, call, caller FROM records"+q.where()+" ORDER BY seq LIMIT ?",
		append(q.args, limit)...)
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
