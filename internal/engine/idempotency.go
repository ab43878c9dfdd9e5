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

// answerBytes bounds what is kept of an answer under an idempotency key, per
// stream: a result with more is kept shortened, and says so.
const answerBytes = 64 << 10

// defaultKeys bound what is kept of each caller's keys where Options say nothing.
var defaultKeys = store.KeyBounds{Answers: 10_000, Bytes: 64 << 20, Keys: 100_000}

// errMayHaveRun marks the error of a request that may have left something running.
var errMayHaveRun = errors.New("it may have been carried out all the same")

// errAnswered comes with an answer that is not kept: the request did nothing, and
// its key can be used again.
var errAnswered = errors.New("answered, and nothing was done")

// idempotent carries out do at most once for a caller's key. Later requests with
// the key get the first one's answer, as long as that is kept; then they get an
// error of class FailedPrecondition. Requests that come while the first is under
// way wait for it. An error gives the key back, since nothing was done, unless it
// is errMayHaveRun.
//
// ref is what do is going to make; after a crash it tells what had been begun.
func idempotent[T any](ctx context.Context, e *Engine, call Call, op, ref string, request any, do func(context.Context) (T, error), keep func(T) T) (T, error) {
	var zero T
	if err := call.validate(); err != nil {
		return zero, err
	}
	if call.Key == "" {
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
	leave, err := e.lockKey(ctx, call)
	if err != nil {
		return zero, err
	}
	defer leave()
	k, fresh, err := e.opts.Store.BeginKey(ctx, store.Key{Caller: call.Caller, Key: call.Key, Op: op, Hash: sum, Ref: ref, Created: time.Now()})
	if err != nil {
		return zero, err
	}
	if !fresh {
		return storedAnswer[T](k)
	}
	answer, err := do(ctx)
	finish, cancel := detach(ctx, 10*time.Second)
	defer cancel()
	if errors.Is(err, errMayHaveRun) {
		return zero, err // Keep the key: the request may have run, so a retry must not repeat it.
	}
	if errors.Is(err, errAnswered) {
		return answer, e.opts.Store.DropKey(finish, call.Caller, call.Key)
	}
	if err != nil {
		return zero, errors.Join(err, e.opts.Store.DropKey(finish, call.Caller, call.Key))
	}
	body, err := json.Marshal(keep(answer))
	if err != nil {
		return zero, err
	}
	if err := e.opts.Store.FinishKey(finish, call.Caller, call.Key, ref, body, e.opts.Keys); err != nil {
		e.log.Error("failed to record the answer of an idempotency key", "error", err)
	}
	return answer, nil
}

// storedAnswer is what became of the first request with a key.
func storedAnswer[T any](k store.Key) (answer T, err error) {
	switch k.State {
	case store.KeyAnswered:
		err = json.Unmarshal(k.Answer, &answer)
	case store.KeyEvicted:
		err = usererror.Errorf(errdefs.ErrFailedPrecondition, "the answer for Idempotency-Key %q was evicted: the first request was carried out, and newer answers took its place: look at what it made before trying with a new key", k.Key)
	case store.KeyTooLarge:
		err = usererror.Errorf(errdefs.ErrFailedPrecondition, "the answer for Idempotency-Key %q was too large to keep: the first request was carried out: look at what it made before trying with a new key", k.Key)
	default: // how far it came is not known
		err = usererror.Errorf(errdefs.ErrUnavailable, "the first request with Idempotency-Key %q was cut short: look at what it made before trying with a new key", k.Key)
	}
	return answer, err
}

// lockKey lets one request at a time work under a key.
func (e *Engine) lockKey(ctx context.Context, call Call) (leave func(), err error) {
	return e.lockName(ctx, call.Caller+"\x00"+call.Key)
}

// lockName lets one request at a time work under a name.
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

// shorten cuts what is kept of a text to at most n bytes, both ends of it.
func shorten(s string, n int) (string, bool) {
	if len(s) <= n {
		return s, false
	}
	k := tool.NewKeeper(tool.Cut{Limit: int64(n)})
	k.Write([]byte(s)) //nolint:errcheck // it cannot fail
	return k.Text()
}
