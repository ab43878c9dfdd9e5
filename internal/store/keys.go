package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Key is an idempotency key: the promise that a request with it is carried out
// once.
type Key struct {
	Caller string
	Key    string
	// Op and Hash are of the first request; another request under the same key
	// is refused.
	Op   string
	Hash string
	// Done says that Answer is final. Ref is what the request made, known
	// before it is done.
	Done    bool
	Ref     string
	Answer  []byte
	Created time.Time
}

// BeginKey takes a key. If it was taken before, the earlier one is returned
// with fresh false; one of another request is an error of class
// InvalidArgument.
func (s *Store) BeginKey(ctx context.Context, k Key) (got Key, fresh bool, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return Key{}, false, wrap("take idempotency key", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it does nothing
	got = Key{Caller: k.Caller, Key: k.Key}
	var created int64
	err = tx.QueryRowContext(ctx, "SELECT op, hash, done, ref, answer, created FROM keys WHERE caller = ? AND key = ?", k.Caller, k.Key).
		Scan(&got.Op, &got.Hash, &got.Done, &got.Ref, &got.Answer, &created)
	switch {
	case err == nil && (got.Op != k.Op || got.Hash != k.Hash):
		return Key{}, false, usererror.Errorf(errdefs.ErrInvalidArgument, "Idempotency-Key %q was used for another request: use a new key", k.Key)
	case err == nil:
		got.Created = moment(created)
		return got, false, nil
	case !errors.Is(err, sql.ErrNoRows):
		return Key{}, false, wrap("take idempotency key", err)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO keys (caller, key, op, hash, ref, created) VALUES (?, ?, ?, ?, ?, ?)", k.Caller, k.Key, k.Op, k.Hash, k.Ref, stamp(k.Created))
	if err == nil {
		err = tx.Commit()
	}
	return k, true, wrap("take idempotency key", err)
}

// FinishKey records the final answer; the key counts as made now.
func (s *Store) FinishKey(ctx context.Context, caller, key, ref string, answer []byte) error {
	_, err := s.db.ExecContext(ctx, "UPDATE keys SET done = 1, ref = ?, answer = ?, created = ? WHERE caller = ? AND key = ?",
		ref, answer, stamp(time.Now()), caller, key)
	return wrap("record the answer of an idempotency key", err)
}

// DropKey gives a key back whose request did nothing, so that it can be tried
// again.
func (s *Store) DropKey(ctx context.Context, caller, key string) error {
	_, err := s.db.ExecContext(ctx, "DELETE FROM keys WHERE caller = ? AND key = ? AND done = 0", caller, key)
	return wrap("give back an idempotency key", err)
}

// OpenKeys returns the keys whose requests were cut short by the end of the
// process.
func (s *Store) OpenKeys(ctx context.Context) ([]Key, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT caller, key, op, hash, ref, created FROM keys WHERE done = 0")
	if err != nil {
		return nil, wrap("list idempotency keys", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err tells
	var out []Key
	for rows.Next() {
		var k Key
		var created int64
		if err := rows.Scan(&k.Caller, &k.Key, &k.Op, &k.Hash, &k.Ref, &created); err != nil {
			return nil, wrap("list idempotency keys", err)
		}
		k.Created = moment(created)
		out = append(out, k)
	}
	return out, wrap("list idempotency keys", rows.Err())
}
