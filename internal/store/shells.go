package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"orchestrator/runtime"
)

// Shell is a background command's row. The guest holds its output.
type Shell struct {
	ID      string
	Sandbox string
	Caller  string
	Argv    []string
	Started time.Time
	Ended   time.Time
	Result  *runtime.Result
}

// InsertShell writes the promise of a shell, before the guest is asked.
func (s *Store) InsertShell(ctx context.Context, sh Shell) error {
	argv, err := json.Marshal(sh.Argv)
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, "INSERT INTO shells (id, sandbox, caller, argv, started) VALUES (?, ?, ?, ?, ?)", sh.ID, sh.Sandbox, sh.Caller, string(argv), stamp(sh.Started))
	return wrap("record shell "+sh.ID, err)
}

// EndShell records how a shell ended, once; later calls change nothing.
func (s *Store) EndShell(ctx context.Context, id string, at time.Time, result runtime.Result) error {
	body, err := json.Marshal(result)
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, "UPDATE shells SET ended = ?, result = ? WHERE id = ? AND ended = 0", stamp(at), string(body), id)
	return wrap("record the end of shell "+id, err)
}

// EndShells records result for every shell of the sandbox that has none.
func (s *Store) EndShells(ctx context.Context, sandbox string, at time.Time, result runtime.Result) error {
	body, err := json.Marshal(result)
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, "UPDATE shells SET ended = ?, result = ? WHERE sandbox = ? AND ended = 0", stamp(at), string(body), sandbox)
	return wrap("record the end of shells", err)
}

// DeleteShell forgets a shell.
func (s *Store) DeleteShell(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, "DELETE FROM shells WHERE id = ?", id)
	return wrap("forget shell "+id, err)
}

// Shell returns one row; NotFound if there is none.
func (s *Store) Shell(ctx context.Context, id string) (Shell, error) {
	sh, err := scanShell(s.db.QueryRowContext(ctx, "SELECT id, sandbox, caller, argv, started, ended, result FROM shells WHERE id = ?", id))
	if errors.Is(err, sql.ErrNoRows) {
		return sh, fmt.Errorf("shell %s: %w", id, errdefs.ErrNotFound)
	}
	return sh, wrap("read shell "+id, err)
}

// Shells returns the shells of a sandbox, oldest first.
func (s *Store) Shells(ctx context.Context, sandbox string) ([]Shell, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT id, sandbox, caller, argv, started, ended, result FROM shells WHERE sandbox = ? ORDER BY started, id", sandbox)
	if err != nil {
		return nil, wrap("list shells", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var out []Shell
	for rows.Next() {
		sh, err := scanShell(rows)
		if err != nil {
			return nil, wrap("list shells", err)
		}
		out = append(out, sh)
	}
	return out, wrap("list shells", rows.Err())
}

func scanShell(row scanner) (Shell, error) {
	var sh Shell
	var argv, result string
	var started, ended int64
	if err := row.Scan(&sh.ID, &sh.Sandbox, &sh.Caller, &argv, &started, &ended, &result); err != nil {
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
