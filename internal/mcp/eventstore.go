package mcp

import (
	"bytes"
	chain "container/list"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Limits of the events that are kept for clients that resume a stream.
const (
	maxEventBytes = 10 << 20 // of all sessions
	// eventCost and streamCost are the overhead of an event and of a stream, in bytes.
	eventCost  = 128
	streamCost = 512
)

// eventStore keeps the latest events of streams, for clients that resume a broken stream. It is
// bounded in bytes. When it is full, it takes the caller that holds the most and that caller's
// largest session. The session loses its least recently written stream, or the oldest event of its
// only one. A client that resumes a lost stream gets mcp.ErrEventsPurged. It implements
// mcp.EventStore and may be used concurrently.
type eventStore struct {
	max int

	mu       sync.Mutex
	bytes    int
	sessions map[string]*sessionEvents
}

// sessionEvents are the events of one session.
type sessionEvents struct {
	owner   string // the caller
	bytes   int
	streams map[string]*chain.Element // of *streamEvents in order
	order   chain.List                // of *streamEvents, the least recently written first
}

// streamEvents are the events of one stream.
type streamEvents struct {
	id    string
	first int // the index of events[0]
	// answers is how many requests of the stream are not answered yet.
	answers int
	data    [][]byte
	bytes   int
}

func newEventStore(maxBytes int) *eventStore {
	return &eventStore{max: maxBytes, sessions: map[string]*sessionEvents{}}
}

// Open implements mcp.EventStore. ctx belongs to the request that opens the stream, and identifies
// its caller.
func (e *eventStore) Open(ctx context.Context, session, stream string) error {
	a, _ := ctx.Value(accessContext{}).(Access)
	answers := 0
	if a.post != nil {
		answers = a.post.opened(stream)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[session]
	if s == nil {
		s = &sessionEvents{owner: a.Principal.Caller, streams: map[string]*chain.Element{}}
		e.sessions[session] = s
	}
	if s.streams[stream] == nil {
		st := &streamEvents{id: stream, answers: answers}
		s.streams[stream] = s.order.PushBack(st)
		e.grow(s, st, streamCost+len(stream))
	}
	e.purge()
	return nil
}

// Append implements mcp.EventStore. It ignores events of a purged stream, because their positions
// are unknown.
func (e *eventStore) Append(_ context.Context, session, stream string, data []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[session]
	if s == nil || s.streams[stream] == nil {
		return nil
	}
	at := s.streams[stream]
	s.order.MoveToBack(at)
	st := at.Value.(*streamEvents) // nothing else is in it
	if isAnswer(data) {
		st.answers--
	}
	if isCancelled(data) {
		data = nil // positions of events count, but clients get no empty ones
	}
	st.data = append(st.data, data)
	e.grow(s, st, eventCost+len(data))
	e.purge()
	return nil
}

// isAnswer reports whether a message is an answer. The library writes "jsonrpc" and "id" first.
func isAnswer(msg []byte) bool {
	d := json.NewDecoder(bytes.NewReader(msg))
	for range 5 { // {, the two keys and their values
		if _, err := d.Token(); err != nil {
			return false
		}
	}
	key, err := d.Token()
	return err == nil && (key == "result" || key == "error")
}

// ended reports whether all requests of a stream were answered, and no event is left after index.
func (e *eventStore) ended(session, stream string, index int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[session]
	if s == nil || s.streams[stream] == nil {
		return false
	}
	st := s.streams[stream].Value.(*streamEvents) // nothing else is in it
	if st.answers > 0 {
		return false
	}
	for i, data := range st.data {
		if st.first+i > index && len(data) > 0 {
			return false
		}
	}
	return true
}

// After implements mcp.EventStore.
func (e *eventStore) After(_ context.Context, session, stream string, index int) iter.Seq2[[]byte, error] {
	data, err := e.after(session, stream, index)
	return func(yield func([]byte, error) bool) {
		if err != nil {
			yield(nil, err)
			return
		}
		for _, d := range data {
			if !yield(d, nil) {
				return
			}
		}
	}
}

func (e *eventStore) after(session, stream string, index int) ([][]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.sessions[session]
	if s == nil || s.streams[stream] == nil {
		return nil, fmt.Errorf("stream %q of session %q: %w", stream, session, mcp.ErrEventsPurged)
	}
	st := s.streams[stream].Value.(*streamEvents) // nothing else is in it
	from := index + 1 - st.first
	if from < 0 {
		return nil, fmt.Errorf("event %d of stream %q of session %q: %w", index+1, stream, session, mcp.ErrEventsPurged)
	}
	return append([][]byte(nil), st.data[min(from, len(st.data)):]...), nil
}

// SessionClosed implements mcp.EventStore.
func (e *eventStore) SessionClosed(_ context.Context, session string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.sessions[session]; s != nil {
		e.bytes -= s.bytes
		delete(e.sessions, session)
	}
	return nil
}

func (e *eventStore) grow(s *sessionEvents, st *streamEvents, n int) {
	e.bytes += n
	s.bytes += n
	st.bytes += n
}

// purge drops events until the limit is kept. The caller holds the lock.
func (e *eventStore) purge() {
	for e.bytes > e.max {
		s := e.largest()
		at := s.order.Front()
		if at.Value.(*streamEvents).id == "" && at.Next() != nil {
			at = at.Next() // the session's own stream lasts as long as the session
		}
		st := at.Value.(*streamEvents) // nothing else is in it
		switch {
		case s.order.Len() > 1:
			s.order.Remove(at)
			delete(s.streams, st.id)
			e.grow(s, st, -st.bytes)
		case len(st.data) > 0:
			e.grow(s, st, -eventCost-len(st.data[0]))
			st.data[0] = nil
			st.data, st.first = st.data[1:], st.first+1
		default:
			return // only sessions are left, and their number is bounded
		}
	}
}

// largest returns the largest session of the caller that holds the most. The caller holds the lock.
func (e *eventStore) largest() (most *sessionEvents) {
	held := map[string]int{}
	for _, s := range e.sessions {
		held[s.owner] += s.bytes
	}
	for _, s := range e.sessions {
		if most == nil || held[s.owner] > held[most.owner] || s.owner == most.owner && s.bytes > most.bytes {
			most = s
		}
	}
	return most
}
