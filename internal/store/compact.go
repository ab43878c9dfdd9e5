package store

import "context"

// Trim deletes the oldest ended sandboxes and their shells, except the newest keep ones. It returns
// the number of deleted sandboxes.
func (s *Store) Trim(ctx context.Context, keep int) (int64, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, wrap("trim", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	const old = "(SELECT id FROM sandboxes WHERE state IN ('gone', 'failed') " +
		"ORDER BY ended DESC, id DESC LIMIT -1 OFFSET ?)"
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

// compactBytes is how much free space the file may hold, in bytes.
const compactBytes = 4 << 20

// Compact returns the file's free space to the disk if it is over half of the file and over 4 MiB.
// SQLite reuses free pages but never returns them. Writers block during it, about 10 ms per MiB in
// use.
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
