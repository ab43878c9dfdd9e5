package store

import (
	"context"
	"database/sql"
)

// KeyBounds limits each caller's stored idempotency keys. All fields must be at least 1.
type KeyBounds struct {
	// Answers and Bytes limit the number and total size of stored answers. The oldest are evicted
	// first; their keys stay.
	Answers int
	Bytes   int64
	// Keys limits the number of keys without an answer. The oldest are evicted first, and a request
	// with an evicted key runs again.
	Keys int
}

// KeyState is the progress of a key's request.
type KeyState int

// The states, as they are stored.
const (
	KeyOpen     KeyState = iota // running or interrupted
	KeyAnswered                 // Answer is final
	KeyEvicted                  // the answer was evicted by newer ones
	KeyTooLarge                 // the answer exceeded the limit
)

// Triggers maintain the totals, so that every change of a key counts.
const keysSchema = `
CREATE INDEX IF NOT EXISTS keys_oldest ON keys (caller, done, created);
CREATE TABLE IF NOT EXISTS key_totals (
	caller TEXT PRIMARY KEY, answers INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0,
	bare INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS keys_updated AFTER UPDATE ON keys BEGIN
	INSERT INTO key_totals (caller, answers, bytes, bare)
	VALUES (NEW.caller, (NEW.done = 1) - (OLD.done = 1), length(NEW.answer) - length(OLD.answer),
		(NEW.done > 1) - (OLD.done > 1))
	ON CONFLICT DO UPDATE SET
		answers = answers + excluded.answers, bytes = bytes + excluded.bytes, bare = bare + excluded.bare;
END;
CREATE TRIGGER IF NOT EXISTS keys_deleted AFTER DELETE ON keys WHEN OLD.done > 0 BEGIN
	UPDATE key_totals SET
		answers = answers - (OLD.done = 1), bytes = bytes - length(OLD.answer), bare = bare - (OLD.done > 1)
	WHERE caller = OLD.caller;
	DELETE FROM key_totals WHERE caller = OLD.caller AND answers <= 0 AND bare <= 0;
END;
DELETE FROM key_totals;
INSERT INTO key_totals (caller, answers, bytes, bare)
	SELECT caller, sum(done = 1), sum(length(answer)), sum(done > 1) FROM keys WHERE done > 0 GROUP BY caller;
`

// evictKeys evicts the caller's keys that exceed the bounds. It never evicts keys of running
// requests.
func evictKeys(ctx context.Context, tx *sql.Tx, caller string, b KeyBounds) error {
	for {
		var answers, bytes, bare int64
		err := tx.QueryRowContext(ctx, "SELECT answers, bytes, bare FROM key_totals WHERE caller = ?",
			caller).Scan(&answers, &bytes, &bare)
		if err != nil {
			return err
		}
		switch {
		case answers > int64(b.Answers) || bytes > b.Bytes && answers > 0:
			_, err = tx.ExecContext(ctx, `UPDATE keys SET done = ?, answer = x'' WHERE rowid =
				(SELECT rowid FROM keys WHERE caller = ? AND done = ? ORDER BY created, rowid LIMIT 1)`,
				KeyEvicted, caller, KeyAnswered)
		case bare > int64(b.Keys):
			_, err = tx.ExecContext(ctx, `DELETE FROM keys WHERE rowid =
				(SELECT rowid FROM keys WHERE caller = ? AND done > ? ORDER BY created, rowid LIMIT 1)`,
				caller, KeyAnswered)
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
}
