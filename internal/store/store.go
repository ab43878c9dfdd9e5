// Package store persists leases, shells, idempotency keys, approvals, budgets and the audit log in
// SQLite. It uses WAL and synchronous NORMAL: a commit survives a crash of the process, but a power
// loss may lose the last commits.
//
// The store enforces the allowed state transitions of sandboxes and makes no other decisions. It
// starts no goroutines. All methods may be called concurrently; one connection serializes writes.
// Errors have errdefs classes.
package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// Store is an open database. Use Open.
type Store struct {
	db      *sql.DB
	owner   string
	onWrite func(operation string, took time.Duration)
}

// Names of the writes that OnWrite reports.
const (
	OpInsertSandbox = "sandbox_insert"
	OpUpdateSandbox = "sandbox_update"
	OpAppendAudit   = "audit_append"
)

// OnWrite has f called after each write to the table of sandboxes, with its duration and an Op
// constant. Call it before other goroutines use the store. f must not block.
func (s *Store) OnWrite(f func(operation string, took time.Duration)) { s.onWrite = f }

// wrote reports a write that began at the given time.
func (s *Store) wrote(operation string, began time.Time) {
	if s.onWrite != nil {
		s.onWrite(operation, time.Since(began))
	}
}

// Waits returns how often a request waited for the database's connection, and how long all of them
// together, since Open.
func (s *Store) Waits() (count int64, total time.Duration) {
	stats := s.db.Stats()
	return stats.WaitCount, stats.WaitDuration
}

const schema = `
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS sandboxes (
	id TEXT PRIMARY KEY, state TEXT NOT NULL, template TEXT NOT NULL, runtime TEXT NOT NULL, image TEXT NOT NULL,
	build TEXT NOT NULL, memory INTEGER NOT NULL, caller TEXT NOT NULL DEFAULT '', lease TEXT NOT NULL DEFAULT '{}',
	warm INTEGER NOT NULL DEFAULT 0, created INTEGER NOT NULL, expires INTEGER NOT NULL DEFAULT 0,
	idle INTEGER NOT NULL DEFAULT 0, used INTEGER NOT NULL DEFAULT 0, ended INTEGER NOT NULL DEFAULT 0,
	reason TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS sandboxes_state ON sandboxes (state);
CREATE TABLE IF NOT EXISTS shells (
	id TEXT PRIMARY KEY, sandbox TEXT NOT NULL, caller TEXT NOT NULL, argv TEXT NOT NULL, started INTEGER NOT NULL,
	ended INTEGER NOT NULL DEFAULT 0, result TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX IF NOT EXISTS shells_sandbox ON shells (sandbox);
CREATE TABLE IF NOT EXISTS keys (
	caller TEXT NOT NULL, key TEXT NOT NULL, op TEXT NOT NULL, hash TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0,
	ref TEXT NOT NULL DEFAULT '', answer BLOB NOT NULL DEFAULT x'', created INTEGER NOT NULL, PRIMARY KEY (caller,
	key)
) STRICT;
`

// schemaVersion is the schema version. Older programs refuse a newer database.
const schemaVersion = 1

// Open opens or creates a database in dir for a single run of one process. For the database of a
// state directory use OpenState or Examine.
func Open(ctx context.Context, dir string) (*Store, error) {
	return openStore(ctx, dir, newOwner(), 0)
}

// openStore opens or creates the database in dir. A new one gets the owner id. An existing one gets
// at least the given sequence number.
func openStore(ctx context.Context, dir, owner string, sequence int64) (*Store, error) {
	path := filepath.Join(dir, StateFile)
	// Use one connection: SQLite allows one writer, and waiting in Go is fairer than in the
	// library.
	db, err := openFile(path, "immediate", 1, "foreign_keys(ON)", "journal_size_limit(16777216)")
	if err != nil {
		return nil, err
	}
	s := &Store{db: db}
	if err := s.migrate(ctx, owner, sequence); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, classify(err)), db.Close())
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// openFile opens a database with the common settings: a write-ahead log, and commits that survive a
// crash of the process.
func openFile(path, lock string, conns int, pragmas ...string) (*sql.DB, error) {
	pragmas = append([]string{"journal_mode(WAL)", "synchronous(NORMAL)", "busy_timeout(5000)"}, pragmas...)
	q := url.Values{"_pragma": pragmas, "_txlock": {lock}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// exec runs one statement that writes. It waits for a connection until ctx ends. A statement that
// has begun is completed: the driver would report the end of ctx for one that it has committed.
func exec(ctx context.Context, db *sql.DB, query string, args ...any) (sql.Result, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	return conn.ExecContext(context.WithoutCancel(ctx), query, args...)
}

func (s *Store) migrate(ctx context.Context, owner string, sequence int64) error {
	var found int
	if err := s.db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&found); err != nil {
		return err
	}
	if found > schemaVersion {
		return newerError(found)
	}
	if err := addTrust(ctx, s.db); err != nil {
		return err
	}
	for _, part := range []string{schema, terminalsSchema, tokensSchema, approvalsSchema, budgetsSchema, keysSchema,
		jobsSchema} {
		if _, err := s.db.ExecContext(ctx, part); err != nil {
			return err
		}
	}
	if _, err := s.db.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", schemaVersion)); err != nil {
		return err
	}
	if _, err := s.db.ExecContext(ctx, "INSERT OR IGNORE INTO meta (key, value) VALUES ('owner', ?), ('sequence', '0')",
		owner); err != nil {
		return err
	}
	const raise = "UPDATE meta SET value = ?1 WHERE key = 'sequence' AND CAST(value AS INTEGER) < ?1"
	if _, err := s.db.ExecContext(ctx, raise, sequence); err != nil {
		return err
	}
	return s.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = 'owner'").Scan(&s.owner)
}

func newerError(found int) error {
	return fmt.Errorf("database version %d, want %d: use the newer program: %w", found, schemaVersion,
		errdefs.ErrFailedPrecondition)
}

// Owner returns the id of this state directory. Every container that it creates is labeled with it.
func (s *Store) Owner() string { return s.owner }

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// Ping reports whether the database can be read. It writes nothing.
func (s *Store) Ping(ctx context.Context) error {
	var owner string
	return classify(s.db.QueryRowContext(ctx, "SELECT value FROM meta WHERE key = 'owner'").Scan(&owner))
}

// classify adds an errdefs class to SQLite errors.
func classify(err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, sql.ErrNoRows):
		return fmt.Errorf("no such row: %w", errdefs.ErrNotFound)
	case strings.Contains(err.Error(), "database or disk is full"), errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: free some space under the state directory: %w", err, errdefs.ErrResourceExhausted)
	default:
		return err
	}
}
