package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Used is when its call started, 0 before. A key identifies one request of a caller while the row
// exists.
const approvalsSchema = `
CREATE TABLE IF NOT EXISTS approvals (
	id TEXT PRIMARY KEY, kind TEXT NOT NULL, state TEXT NOT NULL, call TEXT NOT NULL, caller TEXT NOT NULL,
	session TEXT NOT NULL, profile TEXT NOT NULL, tool TEXT NOT NULL, input BLOB NOT NULL, rule TEXT NOT NULL,
	reason TEXT NOT NULL, questions TEXT NOT NULL, key TEXT NOT NULL, hash TEXT NOT NULL, created INTEGER NOT NULL,
	expires INTEGER NOT NULL, decided INTEGER NOT NULL DEFAULT 0, by TEXT NOT NULL DEFAULT '',
	scope TEXT NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '', modified BLOB NOT NULL DEFAULT x'',
	escalated TEXT NOT NULL DEFAULT '', used INTEGER NOT NULL DEFAULT 0, trust INTEGER NOT NULL DEFAULT 3
) STRICT;
CREATE UNIQUE INDEX IF NOT EXISTS approvals_key ON approvals (caller, key) WHERE key <> '';
CREATE INDEX IF NOT EXISTS approvals_state ON approvals (state, created, id);
CREATE INDEX IF NOT EXISTS approvals_caller ON approvals (caller, created, id);
CREATE INDEX IF NOT EXISTS approvals_created ON approvals (created, id);
CREATE TABLE IF NOT EXISTS grants (
	caller TEXT NOT NULL, session TEXT NOT NULL, tool TEXT NOT NULL, rule TEXT NOT NULL, approve INTEGER NOT NULL,
	approval TEXT NOT NULL, by TEXT NOT NULL, note TEXT NOT NULL, created INTEGER NOT NULL,
	trust INTEGER NOT NULL DEFAULT 3, PRIMARY KEY (caller, session, tool, rule, trust)
) STRICT;
`

// addTrust upgrades a database whose grants lack the trust of the requester. It revokes older
// grants. Older requests get the highest trust, so that a session-wide answer covers no caller with
// less.
func addTrust(ctx context.Context, db *sql.DB) error {
	for table, change := range map[string]string{
		"grants":    "DROP TABLE grants",
		"approvals": "ALTER TABLE approvals ADD COLUMN trust INTEGER NOT NULL DEFAULT 3",
	} {
		var columns, trust int
		err := db.QueryRowContext(ctx,
			"SELECT count(*), count(CASE name WHEN 'trust' THEN 1 END) FROM pragma_table_info(?)",
			table).Scan(&columns, &trust)
		if err == nil && columns > 0 && trust == 0 {
			_, err = db.ExecContext(ctx, change)
		}
		if err != nil {
			return fmt.Errorf("add trust to %s: %w", table, err)
		}
	}
	return nil
}

// pendingState is the only state of an approval that is not final.
const pendingState = "pending"

// cancelledState is the state of a request whose caller will not return. Its input is not kept.
const cancelledState = "cancelled"

// Approval is a row: an approval request and its answer. Package approval defines the states. The
// store enforces that only a pending request can be decided, and that only an approved one can be
// used, once.
type Approval struct {
	ID, Kind, State, Call   string
	Caller, Session         string
	Profile, Tool           string
	Trust                   int // of the requesting token
	Input                   []byte
	Rule, Reason, Questions string
	Key, Hash               string
	Created, Expires        time.Time
	Decided                 time.Time
	By, Scope, Note         string
	Modified                []byte
	Escalated               string
	Used                    time.Time
}

// Grant is an answer that covers later calls of a session. If it approves, it covers calls with at
// least Trust, otherwise those with at most Trust.
type Grant struct {
	Caller, Session, Tool, Rule string
	Trust                       int
	Approve                     bool
	// Approval is the id of the answered request, and By its approver.
	Approval, By, Note string
	Created            time.Time
}

// ApprovalFilter selects approvals. "" matches all. Before is the id of an approval: only older
// ones match, or none if it does not exist.
type ApprovalFilter struct {
	Caller, State, Before string
	Limit                 int
}

const approvalColumns = "id, kind, state, call, caller, session, profile, tool, input, rule, reason, questions, key, " +
	"hash, created, expires, " +
	"decided, by, scope, note, modified, escalated, used, trust"

// ApprovalStore stores approval requests, grants and budgets in the database of a Store. Its
// methods may be called concurrently.
type ApprovalStore struct{ db *sql.DB }

// Approvals returns the store of approval requests, grants and budgets.
func (s *Store) Approvals() *ApprovalStore { return &ApprovalStore{s.db} }

// InsertApproval records a request. If the caller has one with the same key, it returns that one,
// and fresh is false.
func (s *ApprovalStore) InsertApproval(ctx context.Context, a Approval) (got Approval, fresh bool, err error) {
	res, err := exec(ctx, s.db, "INSERT INTO approvals ("+approvalColumns+") VALUES (?"+strings.Repeat(", ?",
		23)+") ON CONFLICT (caller, key) WHERE key <> '' DO NOTHING",
		a.ID, a.Kind, a.State, a.Call, a.Caller, a.Session, a.Profile, a.Tool, blob(a.Input), a.Rule, a.Reason,
		a.Questions,
		a.Key, a.Hash,
		stamp(a.Created), stamp(a.Expires), stamp(a.Decided), a.By, a.Scope, a.Note, blob(a.Modified), a.Escalated,
		stamp(a.Used), a.Trust)
	if err != nil {
		return Approval{}, false, wrap("record approval "+a.ID, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 1 {
		return a, true, wrap("record approval "+a.ID, err)
	}
	got, err = s.ApprovalByKey(ctx, a.Caller, a.Key)
	return got, false, err
}

// Approval returns one row, or an error of class NotFound.
func (s *ApprovalStore) Approval(ctx context.Context, id string) (Approval, error) {
	a, err := scanApproval(s.db.QueryRowContext(ctx, "SELECT "+approvalColumns+" FROM approvals WHERE id = ?", id))
	return a, missing("approval", id, err)
}

// ApprovalByKey returns the caller's request with a key, or an error of class NotFound.
func (s *ApprovalStore) ApprovalByKey(ctx context.Context, caller, key string) (Approval, error) {
	a, err := scanApproval(s.db.QueryRowContext(ctx,
		"SELECT "+approvalColumns+" FROM approvals WHERE caller = ? AND key = ? AND key <> ''", caller, key))
	return a, missing("approval", "of key "+key, err)
}

// List lists approvals, newest first.
func (s *ApprovalStore) List(ctx context.Context, f ApprovalFilter) ([]Approval, error) {
	query := "SELECT " + approvalColumns + " FROM approvals"
	var where []string
	var args []any
	if f.Caller != "" {
		where, args = append(where, "caller = ?"), append(args, f.Caller)
	}
	if f.State != "" {
		where, args = append(where, "state = ?"), append(args, f.State)
	}
	if f.Before != "" {
		where = append(where, "(created, id) < (SELECT created, id FROM approvals WHERE id = ?)")
		args = append(args, f.Before)
	}
	if len(where) > 0 {
		query += " WHERE " + strings.Join(where, " AND ")
	}
	query += " ORDER BY created DESC, id DESC"
	if f.Limit > 0 {
		query, args = query+" LIMIT ?", append(args, f.Limit)
	}
	return queryAll(ctx, s.db, "list approvals", scanApproval, query, args...)
}

// DecideApproval makes a pending request final, with the state and answer of a, and records the
// grants. With refund, it also returns the budget charge under the approval's id. done is false if
// the request was no longer pending; got is then its current row.
func (s *ApprovalStore) DecideApproval(
	ctx context.Context, a Approval, grants []Grant, refund bool,
) (got Approval, done bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return Approval{}, false, wrap("decide approval "+a.ID, err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	res, err := tx.ExecContext(ctx,
		"UPDATE approvals SET state = ?1, decided = ?2, by = ?3, scope = ?4, note = ?5, modified = ?6, "+
			"input = CASE ?1 WHEN ?9 THEN CAST('null' AS BLOB) ELSE input END WHERE id = ?7 AND state = ?8",
		a.State, stamp(a.Decided), a.By, a.Scope, a.Note, blob(a.Modified), a.ID, pendingState, cancelledState)
	if err != nil {
		return Approval{}, false, wrap("decide approval "+a.ID, err)
	}
	n, err := res.RowsAffected()
	if err != nil {
		return Approval{}, false, wrap("decide approval "+a.ID, err)
	}
	got, err = scanApproval(tx.QueryRowContext(ctx, "SELECT "+approvalColumns+" FROM approvals WHERE id = ?", a.ID))
	if err != nil || n == 0 {
		return got, false, missing("approval", a.ID, err)
	}
	for _, g := range grants {
		if g.Session != got.Session {
			continue // The session has ended since the request was read.
		}
		if _, err := tx.ExecContext(ctx,
			"INSERT OR REPLACE INTO grants (caller, session, tool, rule, trust, approve, approval, by, note, "+
				"created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			g.Caller, g.Session, g.Tool, g.Rule, g.Trust, g.Approve, g.Approval, g.By, g.Note,
			stamp(g.Created)); err != nil {
			return Approval{}, false, wrap("record a grant", err)
		}
	}
	if err := trimDecided(ctx, tx, got.Caller, got.ID); err != nil {
		return Approval{}, false, err
	}
	if refund {
		if err := giveBack(ctx, tx, a.ID); err != nil {
			return Approval{}, false, wrap("refund a budget", err)
		}
	}
	return got, true, wrap("decide approval "+a.ID, tx.Commit())
}

// Bounds of the decided requests of a caller. Beyond them, the earliest decided are deleted.
const (
	maxDecided   = 1000
	decidedBytes = 8 << 20 // of inputs
)

// trimDecided deletes a caller's earliest decided requests beyond the bounds, but not id.
func trimDecided(ctx context.Context, tx *sql.Tx, caller, id string) error {
	_, err := tx.ExecContext(ctx, `DELETE FROM approvals WHERE id IN (
		SELECT id FROM (
			SELECT id, ROW_NUMBER() OVER newest AS n, SUM(length(input) + length(modified)) OVER newest AS bytes
			FROM approvals WHERE caller = ? AND state <> ? AND id <> ?
			WINDOW newest AS (ORDER BY decided DESC, id DESC))
		WHERE n >= ? OR bytes > ?)`, caller, pendingState, id, maxDecided, decidedBytes)
	return wrap("delete old approvals", err)
}

// EscalateApproval forwards a pending request with a new expiry. done is false if it was no longer
// pending.
func (s *ApprovalStore) EscalateApproval(ctx context.Context, id, to string, expires time.Time) (done bool, err error) {
	res, err := exec(ctx, s.db, "UPDATE approvals SET escalated = ?, expires = ? WHERE id = ? AND state = ?", to,
		stamp(expires), id, pendingState)
	if err != nil {
		return false, wrap("escalate approval "+id, err)
	}
	n, err := res.RowsAffected()
	return n == 1, wrap("escalate approval "+id, err)
}

// UseApproval marks a request in the given state as used. done is false if it was already used or
// has a different state.
func (s *ApprovalStore) UseApproval(ctx context.Context, id, state string, at time.Time) (done bool, err error) {
	res, err := exec(ctx, s.db, "UPDATE approvals SET used = ? WHERE id = ? AND state = ? AND used = 0",
		stamp(at),
		id, state)
	if err != nil {
		return false, wrap("use approval "+id, err)
	}
	n, err := res.RowsAffected()
	return n == 1, wrap("use approval "+id, err)
}

// Grant returns the newest grant after since that covers a call with that trust.
func (s *ApprovalStore) Grant(
	ctx context.Context, caller, session, tool, rule string, trust int, since time.Time,
) (Grant, bool, error) {
	g := Grant{Caller: caller, Session: session, Tool: tool, Rule: rule}
	var created int64
	err := s.db.QueryRowContext(ctx, `SELECT trust, approve, approval, by, note, created FROM grants
		WHERE caller = ? AND session = ? AND tool = ? AND rule = ? AND created > ?
		AND CASE WHEN approve THEN trust <= ? ELSE trust >= ? END
		ORDER BY created DESC, approve LIMIT 1`,
		caller, session, tool, rule, stamp(since), trust, trust).Scan(&g.Trust, &g.Approve, &g.Approval, &g.By, &g.Note,
		&created)
	if errors.Is(err, sql.ErrNoRows) {
		return Grant{}, false, nil
	}
	g.Created = moment(created)
	return g, err == nil, wrap("read a grant", err)
}

// DropGrants revokes the grants of a session, and takes its pending requests out of it, so that
// their answers apply to one call only.
func (s *ApprovalStore) DropGrants(ctx context.Context, caller, session string) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return wrap("revoke grants", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	for _, change := range []string{
		"DELETE FROM grants WHERE caller = ? AND session = ?",
		"UPDATE approvals SET session = '' WHERE caller = ? AND session = ? AND state = '" + pendingState + "'",
	} {
		if _, err := tx.ExecContext(ctx, change, caller, session); err != nil {
			return wrap("revoke grants", err)
		}
	}
	return wrap("revoke grants", tx.Commit())
}

// ForgetApprovals deletes approvals decided and grants made before the given times. Pending ones
// stay.
func (s *ApprovalStore) ForgetApprovals(ctx context.Context, decided, granted time.Time) error {
	if _, err := exec(ctx, s.db, "DELETE FROM approvals WHERE state <> ? AND decided < ?", pendingState,
		stamp(decided)); err != nil {
		return wrap("forget approvals", err)
	}
	_, err := exec(ctx, s.db, "DELETE FROM grants WHERE created < ?", stamp(granted))
	return wrap("forget grants", err)
}

func scanApproval(row scanner) (Approval, error) {
	var a Approval
	var created, expires, decided, used int64
	err := row.Scan(&a.ID, &a.Kind, &a.State, &a.Call, &a.Caller, &a.Session, &a.Profile, &a.Tool, &a.Input, &a.Rule,
		&a.Reason, &a.Questions,
		&a.Key, &a.Hash, &created, &expires, &decided, &a.By, &a.Scope, &a.Note, &a.Modified, &a.Escalated, &used,
		&a.Trust)
	a.Created, a.Expires, a.Decided, a.Used = moment(created), moment(expires), moment(decided), moment(used)
	return a, err
}

// blob returns a non-nil slice, because nil would be stored as NULL.
func blob(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}
