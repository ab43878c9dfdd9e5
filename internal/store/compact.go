package store

import "context"

// Trim removes the oldest rows of sandboxes that ended, with their shells, but
// for the newest ones that are to be kept. It returns how many sandboxes went.
func (s *Store) Trim(ctx context.Context, keep int) (int64, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, wrap("trim", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	const old = "(SELECT id FROM sandboxes WHERE state IN ('gone', 'failed') ORDER BY ended DESC, id DESC LIMIT -1 OFFSET ?)"
	if _, err := tx.ExecContext(ctx, "DELETE FROM shells WHERE sandbox IN "+old, keep); err != nil {
		return 0, wrap("trim", err)
	}
	res, err := tx.ExecContext(ctx, "DELETE FROM sandboxes WHERE id IN "+old, keep)
	if err != nil {
		return 0, wrap("trim", err)
	}
	n, err := res.RowsAffected()
	if err == nil {
		err = tx.Commit()
	}
	return n, wrap("trim", err)
}

// compactBytes is what may be free in the file before it is made smaller.
const compactBytes = 4 << 20

// Compact gives the disk back what removed rows left in the file, if that is
// more than half of it and more than 4 MiB: SQLite uses free pages again, and
// never gives one back by itself. Writers wait meanwhile, some 10 ms for a MiB
// that is still used.
func (s *Store) Compact(ctx context.Context) (freed int64, err error) {
	var pages, free, size int64
	for pragma, to := range map[string]*int64{"page_count": &pages, "freelist_count": &free, "page_size": &size} {
		if err := s.db.QueryRowContext(ctx, "PRAGMA "+pragma).Scan(to); err != nil {
			return 0, wrap("compact", err)
		}
	}
	if free*size < compactBytes || 2*free < pages {
		return 0, nil
	}
	if _, err := s.db.ExecContext(ctx, "VACUUM"); err != nil {
		return 0, wrap("compact", err)
	}
	return free * size, nil
}
