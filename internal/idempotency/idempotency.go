// Package idempotency runs a request at most once for each idempotency key of a caller.
package idempotency

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/namedlock"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// AnswerBytes bounds each stream of a result that is stored under an idempotency key. Longer output
// is shortened and marked as truncated.
const AnswerBytes = 64 << 10

// defaultKeys limits the stored keys of each caller if Options sets no limits.
var defaultKeys = store.KeyBounds{Answers: 10_000, Bytes: 64 << 20, Keys: 100_000}

// ErrMayHaveRun marks the error of a request that may have left something running.
var ErrMayHaveRun = errors.New("the request may have run")

// ErrAnswered comes with an answer that is not stored: the request did nothing, and its key stays
// usable.
var ErrAnswered = errors.New("answered, but nothing was done")

// Keys holds the idempotency keys of callers, and locks by name.
type Keys struct {
	store  *store.Store
	bounds store.KeyBounds
	log    *slog.Logger
	namedlock.Locks
}

// Open returns the keys in st. Zero fields of bounds take the defaults.
func Open(st *store.Store, bounds store.KeyBounds, log *slog.Logger) *Keys {
	bounds.Answers = cmp.Or(bounds.Answers, defaultKeys.Answers)
	bounds.Bytes = cmp.Or(bounds.Bytes, defaultKeys.Bytes)
	bounds.Keys = cmp.Or(bounds.Keys, defaultKeys.Keys)
	return &Keys{store: st, bounds: bounds, log: log}
}

// Finish stores the answer of a request that an earlier process left open.
func (k *Keys) Finish(ctx context.Context, row store.Key, body []byte) error {
	return k.store.FinishKey(ctx, row.Caller, row.Key, row.Ref, body, k.bounds)
}

// DoNew is Do for a request that creates something. do gets its new id, which is also the ref.
func DoNew[T any](
	ctx context.Context,
	keys *Keys,
	p caller.Principal,
	op string,
	request any,
	do func(ctx context.Context, id string) (T, error),
	keep func(T) T,
) (T, error) {
	id, err := uuid.NewV7()
	if err != nil {
		var zero T
		return zero, err
	}
	ref := id.String()
	return Do(ctx, keys, p, op, ref, request, func(ctx context.Context) (T, error) { return do(ctx, ref) }, keep)
}

// Do runs do at most once per idempotency key of the caller. Later requests with the key
// get the stored answer, or an error of class FailedPrecondition after it was dropped. Concurrent
// requests with the key wait for the first. An error releases the key, because nothing was done,
// unless it is ErrMayHaveRun.
//
// ref is the id of what do creates. After a crash it identifies what was begun.
func Do[T any](
	ctx context.Context,
	keys *Keys,
	p caller.Principal,
	op, ref string,
	request any,
	do func(context.Context) (T, error),
	keep func(T) T,
) (T, error) {
	var zero T
	if err := p.Validate(); err != nil {
		return zero, err
	}
	if p.Key == "" {
		answer, err := do(ctx)
		if errors.Is(err, ErrAnswered) {
			err = nil
		}
		return answer, err
	}
	sum, err := Hash(request)
	if err != nil {
		return zero, err
	}
	leave, err := keys.LockKey(ctx, p)
	if err != nil {
		return zero, err
	}
	defer leave()
	k, fresh, err := keys.store.BeginKey(
		ctx,
		store.Key{Caller: p.Caller, Key: p.Key, Op: op, Hash: sum, Ref: ref, Created: time.Now()},
	)
	if err != nil {
		return zero, err
	}
	if !fresh {
		return storedAnswer[T](k)
	}
	answer, err := do(ctx)
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if errors.Is(err, ErrMayHaveRun) {
		return zero, err // Keep the key: the request may have run, so a retry must not repeat it.
	}
	if errors.Is(err, ErrAnswered) {
		return answer, keys.store.DropKey(finish, p.Caller, p.Key)
	}
	if err != nil {
		return zero, errors.Join(err, keys.store.DropKey(finish, p.Caller, p.Key))
	}
	body, err := json.Marshal(keep(answer))
	if err != nil {
		return zero, err
	}
	if err := keys.store.FinishKey(finish, p.Caller, p.Key, ref, body, keys.bounds); err != nil {
		keys.log.Error("failed to record the answer of an idempotency key", "error", err)
	}
	return answer, nil
}

// storedAnswer returns the answer of the first request with the key, or the reason why there is
// none.
func storedAnswer[T any](k store.Key) (answer T, err error) {
	switch k.State {
	case store.KeyAnswered:
		err = json.Unmarshal(k.Answer, &answer)
	case store.KeyEvicted:
		err = usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"the answer for Idempotency-Key %q was evicted: "+
				"the first request ran, and newer answers replaced its own: check what it did before you retry with a new key",
			k.Key,
		)
	case store.KeyTooLarge:
		err = usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"the answer for Idempotency-Key %q was too large to keep: the first request ran: check what it did before you retry with a new key",
			k.Key,
		)
	default: // the outcome is unknown
		err = usererror.Errorf(
			errdefs.ErrUnavailable,
			"the first request with Idempotency-Key %q was interrupted: check what it did before you retry with a new key",
			k.Key,
		)
	}
	return answer, err
}

// LockKey serializes requests with the caller's key.
func (k *Keys) LockKey(ctx context.Context, p caller.Principal) (leave func(), err error) {
	return k.Lock(ctx, p.Caller+"\x00"+p.Key)
}

// Shorten returns the beginning and the end of s, together at most n bytes, and reports whether it
// cut.
func Shorten(s string, n int) (string, bool) {
	if len(s) <= n {
		return s, false
	}
	k := tool.NewKeeper(tool.Cut{Limit: int64(n)})
	k.Write([]byte(s)) //nolint:errcheck // it cannot fail
	return k.Text()
}
