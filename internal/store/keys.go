package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Key is an idempotency key. It ensures that its request runs at most once.
type Key struct {
	Caller string
	Key    string
	// Op and Hash identify the first request. A different request with the same key is refused.
	Op   string
	Hash string
	// State is the state of Answer. Ref identifies what the request created; it is known before the
	// answer.
	State   KeyState
	Ref     string
	Answer  []byte
	Created time.Time
}

// BeginKey reserves a key. If it exists, BeginKey returns the existing one, and fresh is false. If
// that belongs to a different request, the error is of class InvalidArgument.
func (s *Store) BeginKey(ctx context.Context, k Key) (got Key, fresh bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return Key{}, false, wrap("take idempotency key", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	got = Key{Caller: k.Caller, Key: k.Key}
	var created int64
	err = tx.QueryRowContext(ctx, "SELECT op, hash, done, ref, answer, created FROM keys WHERE caller = ? AND key = ?",
		k.Caller, k.Key).
		Scan(&got.Op, &got.Hash, &got.State, &got.Ref, &got.Answer, &created)
	switch {
	case err == nil && (got.Op != k.Op || got.Hash != k.Hash):
		return Key{}, false, usererror.Errorf(errdefs.ErrInvalidArgument,
			"Idempotency-Key %q was used for a different request: use a new key", k.Key)
	case err == nil:
		got.Created = moment(created)
		return got, false, nil
	case !errors.Is(err, sql.ErrNoRows):
		return Key{}, false, wrap("take idempotency key", err)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO keys (caller, key, op, hash, ref, created) VALUES (?, ?, ?, ?, ?, ?)",
		k.Caller, k.Key, k.Op, k.Hash, k.Ref, stamp(k.Created))
	if err == nil {
		err = tx.Commit()
	}
	return k, true, wrap("take idempotency key", err)
}

// HasKey reports whether a key exists. It writes nothing.
func HasKey(ctx context.Context, s *Store, caller, key string) (found bool, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM keys WHERE caller = ? AND key = ?)", caller,
		key).Scan(&found)
	return found, wrap("look for an idempotency key", err)
}

// FinishKey records the final answer and resets the age of the key. The caller's older answers are
// evicted as the bounds require. An answer that exceeds the bounds alone is not stored, but the key
// is.
func (s *Store) FinishKey(ctx context.Context, caller, key, ref string, answer []byte, b KeyBounds) error {
	const what = "record the answer of an idempotency key"
	state := KeyAnswered
	if int64(len(answer)) > b.Bytes {
		state, answer = KeyTooLarge, []byte{}
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return wrap(what, err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	res, err := tx.ExecContext(ctx,
		"UPDATE keys SET done = ?, ref = ?, answer = ?, created = ? WHERE caller = ? AND key = ?",
		state, ref, answer, stamp(time.Now()), caller, key)
	if err != nil {
		return wrap(what, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return wrap(what, err)
	}
	if err := evictKeys(ctx, tx, caller, b); err != nil {
		return wrap(what, err)
	}
	return wrap(what, tx.Commit())
}

// DropKey deletes a key whose request had no effect, so that it can be retried.
func (s *Store) DropKey(ctx context.Context, caller, key string) error {
	_, err := exec(ctx, s.db, "DELETE FROM keys WHERE caller = ? AND key = ? AND done = 0", caller, key)
	return wrap("release an idempotency key", err)
}

// OpenKeys returns the keys whose requests were interrupted when the process ended.
func (s *Store) OpenKeys(ctx context.Context) ([]Key, error) {
	scan := func(row scanner) (k Key, err error) {
		var created int64
		err = row.Scan(&k.Caller, &k.Key, &k.Op, &k.Hash, &k.Ref, &created)
		k.Created = moment(created)
		return k, err
	}
	return queryAll(ctx, s.db, "list idempotency keys", scan,
		"SELECT caller, key, op, hash, ref, created FROM keys WHERE done = 0")
}
