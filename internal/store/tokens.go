package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

const tokensSchema = `
CREATE TABLE IF NOT EXISTS tokens (
	id TEXT PRIMARY KEY, hash BLOB NOT NULL, caller TEXT NOT NULL, profile TEXT NOT NULL, trust INTEGER NOT NULL,
	quotas TEXT NOT NULL, operator INTEGER NOT NULL, note TEXT NOT NULL, created INTEGER NOT NULL,
	expires INTEGER NOT NULL, revoked INTEGER NOT NULL DEFAULT 0, used INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE IF NOT EXISTS call_counts (
	day TEXT NOT NULL, caller TEXT NOT NULL, calls INTEGER NOT NULL, PRIMARY KEY (day, caller)
) STRICT;
CREATE TABLE IF NOT EXISTS workspace_names (disk TEXT PRIMARY KEY, caller TEXT NOT NULL, name TEXT NOT NULL) STRICT;
CREATE INDEX IF NOT EXISTS workspace_names_caller ON workspace_names (caller, name);
`

// Token is a row. It stores only the SHA-256 of the secret.
type Token struct {
	ID       string
	Hash     []byte
	Caller   string
	Profile  string
	Trust    int
	Quotas   v1.Quotas
	Operator bool
	Note     string
	Created  time.Time
	Expires  time.Time // zero: never
	Revoked  time.Time // zero: valid
	Used     time.Time
}

const tokenColumns = "id, hash, caller, profile, trust, quotas, operator, note, created, expires, revoked, used"

// InsertToken records a new token.
func (s *Store) InsertToken(ctx context.Context, t Token) error {
	quotas, err := json.Marshal(t.Quotas)
	if err != nil {
		return err
	}
	_, err = exec(ctx, s.db, "INSERT INTO tokens ("+tokenColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		t.ID, t.Hash, t.Caller, t.Profile, t.Trust, string(quotas), t.Operator, t.Note, stamp(t.Created),
		stamp(t.Expires),
		stamp(t.Revoked), stamp(t.Used))
	return wrap("record token "+t.ID, err)
}

// Tokens returns all tokens, newest first.
func (s *Store) Tokens(ctx context.Context) ([]Token, error) {
	return queryAll(ctx, s.db, "list tokens", scanToken,
		"SELECT "+tokenColumns+" FROM tokens ORDER BY created DESC, id DESC")
}

// RevokeToken revokes a token and returns its row. It does not change a token that is already
// revoked. If the token does not exist, the error is of class NotFound.
func (s *Store) RevokeToken(ctx context.Context, id string, at time.Time) (Token, error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return Token{}, wrap("revoke token "+id, err)
	}
	defer conn.Close()
	row := conn.QueryRowContext(context.WithoutCancel(ctx), // see exec
		"UPDATE tokens SET revoked = CASE revoked WHEN 0 THEN ? ELSE revoked END WHERE id = ? RETURNING "+tokenColumns,
		stamp(at), id)
	t, err := scanToken(row)
	if errors.Is(err, sql.ErrNoRows) {
		return t, usererror.Errorf(errdefs.ErrNotFound, "token %q not found", id)
	}
	return t, wrap("revoke token "+id, err)
}

// TouchTokens records the last use of many tokens.
func (s *Store) TouchTokens(ctx context.Context, used map[string]time.Time) error {
	return s.touch(ctx, "record use of tokens", "UPDATE tokens SET used = ? WHERE id = ?", used)
}

func scanToken(row scanner) (Token, error) {
	var t Token
	var quotas string
	var created, expires, revoked, used int64
	if err := row.Scan(&t.ID, &t.Hash, &t.Caller, &t.Profile, &t.Trust, &quotas, &t.Operator, &t.Note, &created,
		&expires, &revoked, &used); err != nil {
		return t, err
	}
	t.Created, t.Expires, t.Revoked, t.Used = moment(created), moment(expires), moment(revoked), moment(used)
	return t, json.Unmarshal([]byte(quotas), &t.Quotas)
}

// Calls returns how many tools each caller has called on a day ("2006-01-02").
func (s *Store) Calls(ctx context.Context, day string) (map[string]int64, error) {
	return queryMap[int64](ctx, s.db, "count calls", "SELECT caller, calls FROM call_counts WHERE day = ?", day)
}

// SetCalls records how many tools each caller has called on a day, and deletes earlier days.
func (s *Store) SetCalls(ctx context.Context, day string, calls map[string]int64) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return wrap("count calls", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	for caller, n := range calls {
		if _, err := tx.ExecContext(ctx,
			"INSERT INTO call_counts (day, caller, calls) VALUES (?, ?, ?) "+
				"ON CONFLICT DO UPDATE SET calls = excluded.calls",
			day, caller, n); err != nil {
			return wrap("count calls", err)
		}
	}
	if _, err := tx.ExecContext(ctx, "DELETE FROM call_counts WHERE day < ?", day); err != nil {
		return wrap("count calls", err)
	}
	return wrap("count calls", tx.Commit())
}

// NameWorkspace records the caller's name for a workspace directory. Call it before the workspace
// is created, so that none lacks a name.
func (s *Store) NameWorkspace(ctx context.Context, disk, caller, name string) error {
	_, err := exec(ctx, s.db,
		"INSERT INTO workspace_names (disk, caller, name) VALUES (?, ?, ?) ON CONFLICT DO NOTHING", disk, caller, name)
	return wrap("name a workspace", err)
}

// UnnameWorkspace deletes such a name. Call it when the workspace is gone.
func (s *Store) UnnameWorkspace(ctx context.Context, disk string) error {
	_, err := exec(ctx, s.db, "DELETE FROM workspace_names WHERE disk = ?", disk)
	return wrap("forget the name of a workspace", err)
}

// WorkspaceNames returns a caller's workspace names by directory name. Some of the workspaces may
// not exist.
func (s *Store) WorkspaceNames(ctx context.Context, caller string) (map[string]string, error) {
	return queryMap[string](ctx, s.db, "list workspaces",
		"SELECT disk, name FROM workspace_names WHERE caller = ?", caller)
}
