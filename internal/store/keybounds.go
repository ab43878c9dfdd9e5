package store

import (
	"context"
	"database/sql"
)

// KeyBounds bound what is kept of each caller's idempotency keys. All are at
// least 1.
type KeyBounds struct {
	// Answers and Bytes are how many answers are kept, and how large together. The
	// oldest ones go first; their keys stay, without the answer.
	Answers int
	Bytes   int64
	// Keys is how many keys without an answer stay. The oldest ones go first, and a
	// request with such a key is carried out again.
	Keys int
}

// KeyState says how far the request of a key is.
type KeyState int

// The states, as they are stored.
const (
	KeyOpen     KeyState = iota // under way, or cut short
	KeyAnswered                 // Answer is final
	KeyEvicted                  // it was, and gave way to newer ones
	KeyTooLarge                 // it was larger than the bound
)

// The totals are kept by triggers, so that every way of changing a key counts.
const keysSchema = `
CREATE INDEX IF NOT EXISTS keys_oldest ON keys (caller, done, created);
CREATE TABLE IF NOT EXISTS key_totals (
	caller TEXT PRIMARY KEY, answers INTEGER NOT NULL DEFAULT 0, bytes INTEGER NOT NULL DEFAULT 0, bare INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS keys_updated AFTER UPDATE ON keys BEGIN
	INSERT INTO key_totals (caller, answers, bytes, bare)
	VALUES (NEW.caller, (NEW.done = 1) - (OLD.done = 1), length(NEW.answer) - length(OLD.answer), (NEW.done > 1) - (OLD.done > 1))
	ON CONFLICT DO UPDATE SET answers = answers + excluded.answers, bytes = bytes + excluded.bytes, bare = bare + excluded.bare;
END;
CREATE TRIGGER IF NOT EXISTS keys_deleted AFTER DELETE ON keys WHEN OLD.done > 0 BEGIN
	UPDATE key_totals SET answers = answers - (OLD.done = 1), bytes = bytes - length(OLD.answer), bare = bare - (OLD.done > 1) WHERE caller = OLD.caller;
	DELETE FROM key_totals WHERE caller = OLD.caller AND answers <= 0 AND bare <= 0;
END;
DELETE FROM key_totals;
INSERT INTO key_totals (caller, answers, bytes, bare) SELECT caller, sum(done = 1), sum(length(answer)), sum(done > 1) FROM keys WHERE done > 0 GROUP BY caller;
`

// evictKeys brings the keys of a caller within bounds. Keys under way never go.
func evictKeys(ctx context.Context, tx *sql.Tx, caller string, b KeyBounds) error {
	for {
		var answers, bytes, bare int64
		err := tx.QueryRowContext(ctx, "SELECT answers, bytes, bare FROM key_totals WHERE caller = ?", caller).Scan(&answers, &bytes, &bare)
		if err != nil {
			return err
		}
		switch {
		case answers > int64(b.Answers) || bytes > b.Bytes && answers > 0:
			_, err = tx.ExecContext(ctx, `UPDATE keys SET done = ?, answer = x'' WHERE rowid =
				(SELECT rowid FROM keys WHERE caller = ? AND done = ? ORDER BY created, rowid LIMIT 1)`, KeyEvicted, caller, KeyAnswered)
		case bare > int64(b.Keys):
			_, err = tx.ExecContext(ctx, `DELETE FROM keys WHERE rowid =
				(SELECT rowid FROM keys WHERE caller = ? AND done > ? ORDER BY created, rowid LIMIT 1)`, caller, KeyAnswered)
		default:
			return nil
		}
		if err != nil {
			return err
		}
	}
}
