package api

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// sse writes server-sent events. It is used by one goroutine.
type sse struct {
	w     http.ResponseWriter
	ctl   *http.ResponseController
	began bool
}

func newSSE(w http.ResponseWriter) sse {
	h := w.Header()
	h.Set("Content-Type", formEvents)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no")
	return sse{w: w, ctl: http.NewResponseController(w)}
}

func (e *sse) send(kind string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return e.sendJSON(kind, b)
}

// sendJSON sends an event whose data is already encoded. It does not copy the data.
func (e *sse) sendJSON(kind string, data []byte) error {
	return e.write([]byte("event: "+kind+"\ndata: "), data, []byte("\n\n"))
}

func (e *sse) write(parts ...[]byte) error {
	e.began = true
	for _, p := range parts {
		if _, err := e.w.Write(p); err != nil {
			return err
		}
	}
	return e.ctl.Flush()
}

// problem ends a stream that has begun with an error event.
func (e *sse) problem(err error) error { return e.send("problem", redactedProblem(e.w, err)) }

// beat sends a comment, so that proxies keep the connection open.
func (e *sse) beat() error {
	if !e.began {
		return nil // a later error needs its own status
	}
	return e.write([]byte(": still here\n\n"))
}

// follow sends the events that watch passes to its sink, until watch returns, the client leaves or
// a hand-over begins. first begins the stream. After the last event it sends "end".
func follow[T any](
	s *Server, w http.ResponseWriter, r *http.Request, watch func(ctx context.Context, sink func(T) error) error,
	first func(*sse) error, send func(*sse, T) error,
) error {
	ctx, cancel := s.untilStop(r)
	defer cancel()
	live := make(chan T)
	ended := make(chan error, 1)
	go func() { // waited for below
		ended <- recovered(func() error {
			return watch(ctx, func(e T) error {
				select {
				case live <- e:
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
		})
	}()
	out := newSSE(w)
	beat := time.NewTicker(heartbeatTime)
	defer beat.Stop()
	for err := first(&out); ; {
		if err != nil {
			cancel()
			<-ended
			return err
		}
		select {
		case e := <-live:
			err = send(&out, e)
		case <-beat.C:
			err = out.beat()
		case err := <-ended:
			switch {
			case ctx.Err() != nil:
				return nil // the client left, or asks the next process
			case err == nil:
				return out.send("end", struct{}{})
			}
			return out.problem(err)
		}
	}
}

// toolEventStream sends the events of a tool call. If a piece of output ends inside a character,
// the partial character waits for the next piece.
type toolEventStream struct {
	sse
	rest map[string][]byte
}

func newToolEventer(w http.ResponseWriter) *toolEventStream {
	return &toolEventStream{sse: newSSE(w), rest: map[string][]byte{}}
}

func (e *toolEventStream) event(v v1.ToolEvent) error { return e.send(v.Type, v) }

func (e *toolEventStream) queued(q queuedEvent) error {
	if q.output == nil {
		return e.event(q.event)
	}
	kind := q.event.Type
	if q.event.Missed > 0 {
		if err := e.flushStream(kind); err != nil {
			return err
		}
	}
	data := slices.Concat(e.rest[kind], q.output)
	whole := data[:len(data)-incompleteSuffix(data)]
	e.rest[kind] = data[len(whole):]
	if len(whole) == 0 && q.event.Missed == 0 {
		return nil
	}
	v := outputEvent(kind, whole)
	v.Missed = q.event.Missed
	return e.event(v)
}

// flush sends partial characters that were not completed.
func (e *toolEventStream) flush() error {
	for _, kind := range []string{"stdout", "stderr"} {
		if err := e.flushStream(kind); err != nil {
			return err
		}
	}
	return nil
}

func (e *toolEventStream) flushStream(kind string) error {
	rest := e.rest[kind]
	if len(rest) == 0 {
		return nil
	}
	delete(e.rest, kind)
	return e.event(outputEvent(kind, rest))
}

func outputEvent(kind string, b []byte) v1.ToolEvent {
	p := outputPiece(kind, b)
	return v1.ToolEvent{Type: kind, Data: p.Data, Base64: p.Base64}
}
