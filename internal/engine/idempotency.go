package engine

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// answerBytes bounds each stream of a result that is stored under an idempotency key. Longer output
// is shortened and marked as truncated.
const answerBytes = 64 << 10

// defaultKeys limits the stored keys of each caller if Options sets no limits.
var defaultKeys = store.KeyBounds{Answers: 10_000, Bytes: 64 << 20, Keys: 100_000}

// errMayHaveRun marks the error of a request that may have left something running.
var errMayHaveRun = errors.New("the request may have run")

// errAnswered comes with an answer that is not stored: the request did nothing, and its key stays
// usable.
var errAnswered = errors.New("answered, but nothing was done")

// idempotent runs do at most once per idempotency key of the caller. Later requests with the key
// get the stored answer, or an error of class FailedPrecondition after it was dropped. Concurrent
// requests with the key wait for the first. An error releases the key, because nothing was done,
// unless it is errMayHaveRun.
//
// ref is the id of what do creates. After a crash it identifies what was begun.
func idempotent[T any](ctx context.Context, e *Engine, p Principal, op, ref string, request any, do func(context.Context) (T, error), keep func(T) T) (T, error) {
	var zero T
	if err := p.validate(); err != nil {
		return zero, err
	}
	if p.Key == "" {
		answer, err := do(ctx)
		if errors.Is(err, errAnswered) {
			err = nil
		}
		return answer, err
	}
	sum, err := hash(request)
	if err != nil {
		return zero, err
	}
	leave, err := e.lockKey(ctx, p)
	if err != nil {
		return zero, err
	}
	defer leave()
	k, fresh, err := e.opts.Store.BeginKey(ctx, store.Key{Caller: p.Caller, Key: p.Key, Op: op, Hash: sum, Ref: ref, Created: time.Now()})
	if err != nil {
		return zero, err
	}
	if !fresh {
		return storedAnswer[T](k)
	}
	answer, err := do(ctx)
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if errors.Is(err, errMayHaveRun) {
		return zero, err // Keep the key: the request may have run, so a retry must not repeat it.
	}
	if errors.Is(err, errAnswered) {
		return answer, e.opts.Store.DropKey(finish, p.Caller, p.Key)
	}
	if err != nil {
		return zero, errors.Join(err, e.opts.Store.DropKey(finish, p.Caller, p.Key))
	}
	body, err := json.Marshal(keep(answer))
	if err != nil {
		return zero, err
	}
	if err := e.opts.Store.FinishKey(finish, p.Caller, p.Key, ref, body, e.opts.Keys); err != nil {
		e.log.Error("failed to record the answer of an idempotency key", "error", err)
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
		err = usererror.Errorf(errdefs.ErrFailedPrecondition, "the answer for Idempotency-Key %q was evicted: the first request ran, and newer answers replaced its own: check what it did before you retry with a new key", k.Key)
	case store.KeyTooLarge:
		err = usererror.Errorf(errdefs.ErrFailedPrecondition, "the answer for Idempotency-Key %q was too large to keep: the first request ran: check what it did before you retry with a new key", k.Key)
	default: // the outcome is unknown
		err = usererror.Errorf(errdefs.ErrUnavailable, "the first request with Idempotency-Key %q was interrupted: check what it did before you retry with a new key", k.Key)
	}
	return answer, err
}

// lockKey serializes requests with the caller's key.
func (e *Engine) lockKey(ctx context.Context, p Principal) (leave func(), err error) {
	return e.lockName(ctx, p.Caller+"\x00"+p.Key)
}

// lockName serializes requests that lock the same name.
func (e *Engine) lockName(ctx context.Context, name string) (leave func(), err error) {
	for {
		e.mu.Lock()
		busy, taken := e.keys[name]
		if !taken {
			done := make(chan struct{})
			e.keys[name] = done
			e.mu.Unlock()
			return func() {
				e.mu.Lock()
				delete(e.keys, name)
				e.mu.Unlock()
				close(done)
			}, nil
		}
		e.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// shorten returns the beginning and the end of s, together at most n bytes, and reports whether it
// cut.
func shorten(s string, n int) (string, bool) {
	if len(s) <= n {
		return s, false
	}
	k := tool.NewKeeper(tool.Cut{Limit: int64(n)})
	k.Write([]byte(s)) //nolint:errcheck // it cannot fail
	return k.Text()
}
