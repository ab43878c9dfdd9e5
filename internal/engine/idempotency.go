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

// errLeft marks the error of a request that may have left something running.
var errLeft = errors.New("it may have been carried out all the same")

// once carries out do at most once for a caller's key, and gives every later
// request with it the first one's answer. Requests that come while the first
// is under way wait for it. An error gives the key back, since nothing was
// done, unless it is errLeft.
//
// ref is what do is going to make; after a crash it tells what had been begun.
func once[T any](ctx context.Context, e *Engine, call Call, op, ref string, request any, do func(context.Context) (T, error), keep func(T) T) (T, error) {
	var zero T
	if err := call.validate(); err != nil {
		return zero, err
	}
	if call.Key == "" {
		return do(ctx)
	}
	sum, err := hash(request)
	if err != nil {
		return zero, err
	}
	leave, err := e.enterKey(ctx, call)
	if err != nil {
		return zero, err
	}
	defer leave()
	k, fresh, err := e.opts.Store.BeginKey(ctx, store.Key{Caller: call.Caller, Key: call.Key, Op: op, Hash: sum, Ref: ref, Created: time.Now()})
	if err != nil {
		return zero, err
	}
	if !fresh {
		if !k.Done { // nobody could tell how far it came
			return zero, usererror.Errorf(errdefs.ErrUnavailable, "the first request with Idempotency-Key %q was cut short: look at what it made before trying with a new key", call.Key)
		}
		var answer T
		err := json.Unmarshal(k.Answer, &answer)
		return answer, err
	}
	answer, err := do(ctx)
	finish, cancel := detach(ctx, 10*time.Second)
	defer cancel()
	if errors.Is(err, errLeft) {
		return zero, err // the key stays: nothing is to be done twice
	}
	if err != nil {
		return zero, errors.Join(err, e.opts.Store.DropKey(finish, call.Caller, call.Key))
	}
	body, err := json.Marshal(keep(answer))
	if err != nil {
		return zero, err
	}
	if err := e.opts.Store.FinishKey(finish, call.Caller, call.Key, ref, body); err != nil {
		e.log.Error("answer of an idempotency key not recorded", "error", err)
	}
	return answer, nil
}

// enterKey lets one request at a time work under a key.
func (e *Engine) enterKey(ctx context.Context, call Call) (leave func(), err error) {
	return e.enterName(ctx, call.Caller+"\x00"+call.Key)
}

// enterName lets one request at a time work under a name.
func (e *Engine) enterName(ctx context.Context, name string) (leave func(), err error) {
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
