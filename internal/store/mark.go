package store

import (
	"context"
	"database/sql"
	"log/slog"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
)

// markTime is how often Run marks a changing database.
const markTime = 10 * time.Second

// Marker keeps the sequence numbers in a database and its owner file in step. Its methods may be
// called concurrently. Use Examined.Marker.
type Marker struct {
	db  *sql.DB
	dir string

	mu      sync.Mutex
	last    ownerRecord // as written
	changes int64       // rows changed by the connection at the last mark
	marked  bool
}

// Marker returns the marker for the store that Open returned.
func (x *Examined) Marker(s *Store) *Marker { return &Marker{db: s.db, dir: x.dir, last: x.file} }

// Mark checkpoints the write-ahead log into state.db and then raises the sequence number in the
// database and the owner file. The number is durable in the log before it is written to the file. A
// database with a lower number therefore lost its log, or is an older copy. Mark does nothing if
// nothing changed.
func (m *Marker) Mark(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	next, err := m.raise(ctx)
	if err != nil {
		return wrap("mark the state", err)
	}
	if next == m.last.Sequence {
		return nil
	}
	failpoint.Hit("start.mark.raised")
	record := m.last
	record.Sequence = next
	if err := record.write(m.dir); err != nil {
		m.marked = false
		return wrap("mark the state", err)
	}
	m.last = record
	return nil
}

// raise checkpoints the log, writes the next sequence number and returns it. If nothing changed, it
// returns the last one.
func (m *Marker) raise(ctx context.Context) (int64, error) {
	conn, err := m.db.Conn(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	var changes int64
	const count = "SELECT total_changes()"
	if err := conn.QueryRowContext(ctx, count).Scan(&changes); err != nil {
		return 0, err
	}
	if m.marked && changes == m.changes {
		return m.last.Sequence, nil
	}
	var busy, frames, folded int
	if err := conn.QueryRowContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)").Scan(&busy, &frames, &folded); err != nil {
		return 0, err
	}
	failpoint.Hit("start.mark.folded")
	if _, err := conn.ExecContext(ctx, "PRAGMA synchronous = FULL"); err != nil {
		return 0, err
	}
	defer conn.ExecContext(context.WithoutCancel(ctx), "PRAGMA synchronous = NORMAL") //nolint:errcheck // only faster
	const raise = "UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'sequence' " +
		"RETURNING CAST(value AS INTEGER)"
	var next int64
	if err := conn.QueryRowContext(ctx, raise).Scan(&next); err != nil {
		return 0, err
	}
	if err := conn.QueryRowContext(ctx, count).Scan(&m.changes); err != nil {
		return 0, err
	}
	m.marked = true
	return next, nil
}

// Run marks the database every 10 seconds until ctx ends.
func (m *Marker) Run(ctx context.Context, log *slog.Logger) error {
	t := time.NewTicker(markTime)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := m.Mark(ctx); err != nil && ctx.Err() == nil {
			log.Warn("failed to mark the state; will retry", "error", err)
		}
	}
}
