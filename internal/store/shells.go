package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Shell is the row of a background command. The guest holds its output.
type Shell struct {
	ID      string
	Sandbox string
	Caller  string
	Argv    []string
	Started time.Time
	Ended   time.Time
	Result  *runtime.Result
	// TTY reports that it runs on a terminal.
	TTY bool
}

// terminalsSchema marks the shells that run on terminals.
const terminalsSchema = `
CREATE TABLE IF NOT EXISTS terminals (shell TEXT PRIMARY KEY REFERENCES shells (id) ON DELETE CASCADE) STRICT;
`

// shellColumns lists the columns that scanShell reads.
const shellColumns = "id, sandbox, caller, argv, started, ended, result, " +
	"EXISTS (SELECT 1 FROM terminals WHERE shell = shells.id)"

// InsertShell records a shell before the guest is called.
func (s *Store) InsertShell(ctx context.Context, sh Shell) error {
	argv, err := json.Marshal(sh.Argv)
	if err != nil {
		return err
	}
	return wrap("record shell "+sh.ID, s.insertShell(ctx, sh, string(argv)))
}

func (s *Store) insertShell(ctx context.Context, sh Shell, argv string) error {
	const row = "INSERT INTO shells (id, sandbox, caller, argv, started) VALUES (?, ?, ?, ?, ?)"
	values := []any{sh.ID, sh.Sandbox, sh.Caller, argv, stamp(sh.Started)}
	if !sh.TTY {
		_, err := exec(ctx, s.db, row, values...)
		return err
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // it was committed, or the error is told
	if _, err := tx.ExecContext(ctx, row, values...); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO terminals (shell) VALUES (?)", sh.ID); err != nil {
		return err
	}
	return tx.Commit()
}

// EndShell records the result of a shell. Later calls change nothing.
func (s *Store) EndShell(ctx context.Context, id string, at time.Time, result runtime.Result) error {
	body, err := json.Marshal(result)
	if err != nil {
		return err
	}
	_, err = exec(ctx, s.db, "UPDATE shells SET ended = ?, result = ? WHERE id = ? AND ended = 0", stamp(at),
		string(body), id)
	return wrap("record the end of shell "+id, err)
}

// EndShells records result for every shell of the sandbox without one.
func (s *Store) EndShells(ctx context.Context, sandbox string, at time.Time, result runtime.Result) error {
	body, err := json.Marshal(result)
	if err != nil {
		return err
	}
	_, err = exec(ctx, s.db, "UPDATE shells SET ended = ?, result = ? WHERE sandbox = ? AND ended = 0", stamp(at),
		string(body), sandbox)
	return wrap("record the end of shells", err)
}

// DeleteShell deletes a shell.
func (s *Store) DeleteShell(ctx context.Context, id string) error {
	_, err := exec(ctx, s.db, "DELETE FROM shells WHERE id = ?", id)
	return wrap("forget shell "+id, err)
}

// Shell returns one row, or an error of class NotFound.
func (s *Store) Shell(ctx context.Context, id string) (Shell, error) {
	sh, err := scanShell(s.db.QueryRowContext(ctx, "SELECT "+shellColumns+" FROM shells WHERE id = ?", id))
	return sh, missing("shell", id, err)
}

// Shells returns the shells of a sandbox, oldest first.
func (s *Store) Shells(ctx context.Context, sandbox string) ([]Shell, error) {
	return queryAll(ctx, s.db, "list shells", scanShell,
		"SELECT "+shellColumns+" FROM shells WHERE sandbox = ? ORDER BY started, id", sandbox)
}

func scanShell(row scanner) (Shell, error) {
	var sh Shell
	var argv, result string
	var started, ended int64
	if err := row.Scan(&sh.ID, &sh.Sandbox, &sh.Caller, &argv, &started, &ended, &result, &sh.TTY); err != nil {
		return sh, err
	}
	sh.Started, sh.Ended = moment(started), moment(ended)
	if result != "" {
		sh.Result = new(runtime.Result)
		if err := json.Unmarshal([]byte(result), sh.Result); err != nil {
			return sh, err
		}
	}
	return sh, json.Unmarshal([]byte(argv), &sh.Argv)
}
