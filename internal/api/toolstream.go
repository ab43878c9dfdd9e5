package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

// maxPending bounds the output that waits for a client, in bytes. Each piece counts pieceCost more.
// Output that arrives while the queue, or the caller's budget for answers, is full is left out of
// the stream; the result still has it.
const (
	maxPending = 1 << 20
	pieceCost  = 256
)

// toolStream queues the events of one tool call for the client. Its methods may be called
// concurrently.
type toolStream struct {
	mu     sync.Mutex
	queue  []queuedEvent
	bytes  int
	missed map[string]int64 // bytes left out, by stream
	wake   chan struct{}
	held   *httpguard.Account // charged with the output until it is sent
}

// queuedEvent is an entry of the queue: an event, or a piece of output.
type queuedEvent struct {
	event  v1.ToolEvent
	output []byte
}

// cost is what the entry is charged.
func (q queuedEvent) cost() int { return len(q.output) + pieceCost }

// push queues an event. It never waits.
func (c *toolStream) push(q queuedEvent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(q.output); n > 0 {
		kind := q.event.Type
		if c.bytes+n > maxPending || c.held.Charge(int64(q.cost())) != nil {
			c.missed[kind] += int64(n)
			return
		}
		q.event.Missed = c.missed[kind]
		delete(c.missed, kind)
		c.bytes += q.cost()
	}
	c.queue = append(c.queue, q)
	select {
	case c.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

func (c *toolStream) takeQueue() []queuedEvent {
	c.mu.Lock()
	defer c.mu.Unlock()
	got := c.queue
	c.queue, c.bytes = nil, 0
	return got
}

// toolEvents runs a tool call and sends what happens as server-sent events. It sends nothing before
// the first event, so that an error still gets its status.
func (s *Server) toolEvents(
	w http.ResponseWriter, r *http.Request, principal caller.Principal, name string, req v1.ToolCall,
) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(context.Canceled)
	c := &toolStream{missed: map[string]int64{}, wake: make(chan struct{}, 1)}
	if a, ok := w.(*answer); ok {
		c.held = a.Account()
	}
	defer c.held.Close() // the call has ended by then
	var res v1.ToolResult
	var callErr error
	done := make(chan struct{})
	go func() { // waited for below: send returns after done is closed
		defer close(done)
		callErr = recovered(func() (err error) {
			res, err = s.opts.Engine.Governed.CallTool(ctx, principal, name, req, c.watch())
			return err
		})
	}()
	out := newToolEventer(w)
	if err := c.send(out, done); err != nil { // the client is gone: end the call
		err = fmt.Errorf("%w: %w", context.Canceled, err)
		cancel(err)
		<-done
		return err
	}
	switch {
	case callErr != nil && !out.began:
		return callErr
	case callErr != nil:
		if r.Context().Err() == nil { // else the client left a call that had begun
			s.paceRefusal(principal, callErr, 1)
		}
		return out.problem(callErr)
	}
	if limited(res) {
		s.opts.Refusals.Wait(principal, 1)
	}
	return c.end(out, &res)
}

// end sends the result, without its output if that is over the caller's budget for answers.
func (c *toolStream) end(out *toolEventStream, res *v1.ToolResult) error {
	b, err := json.Marshal(v1.ToolEvent{Type: "end", Result: res})
	if err != nil {
		return err
	}
	short := shortened(*res)
	*res = v1.ToolResult{} // sending may take long
	if c.held.Charge(int64(len(b))) != nil {
		return out.event(v1.ToolEvent{Type: "end", Result: &short})
	}
	return out.sendJSON("end", b)
}

func (c *toolStream) watch() governed.Watch {
	return governed.Watch{
		Asked:   func(a v1.Approval) { c.push(queuedEvent{event: v1.ToolEvent{Type: "approval", Approval: &a}}) },
		Started: func(sandbox string) { c.push(queuedEvent{event: v1.ToolEvent{Type: "started", SandboxID: sandbox}}) },
		Output: func(stream string, p []byte) {
			c.push(queuedEvent{event: v1.ToolEvent{Type: stream}, output: append([]byte(nil), p...)})
		},
	}
}

// send sends queued entries until the call is done and the queue is empty.
func (c *toolStream) send(out *toolEventStream, done <-chan struct{}) error {
	beat := time.NewTicker(heartbeatTime)
	defer beat.Stop()
	for over := false; !over; {
		select {
		case <-c.wake:
		case <-done:
			over = true
		case <-beat.C:
			if err := out.beat(); err != nil {
				return err
			}
		}
		for _, q := range c.takeQueue() {
			if err := out.queued(q); err != nil {
				return err
			}
			if q.output != nil {
				c.held.Release(int64(q.cost()))
			}
		}
	}
	return out.flush()
}
