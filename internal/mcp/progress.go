package mcp

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"
)

const (
	// progressEvery is the shortest time between two notifications of a call.
	progressEvery = 250 * time.Millisecond
	// heartbeat is the interval of notifications without progress. Many clients cancel a request
	// that is silent for a minute.
	heartbeat = 15 * time.Second
	maxLine   = 200 // runes of the last line
	keptLine  = 4 * maxLine
	// beatStep is what a heartbeat adds to the progress: the protocol requires an increase, and it
	// must stay below one byte.
	beatStep = 1.0 / (1 << 16)
)

// progress notifies a client of the progress of a call: the size of its output in bytes, and its
// last line. It merges updates that arrive faster than they can be sent.
type progress struct {
	send func(ctx context.Context, value float64, message string)

	mu    sync.Mutex
	bytes int64
	line  []byte
	ended bool   // the line is complete: the next output starts a new one
	note  string // what the call waits for
	wake  chan struct{}

	sent  float64
	began time.Time
	over  chan struct{}
	done  chan struct{}
}

// startProgress starts the notifications; finish ends them.
func startProgress(ctx context.Context, send func(ctx context.Context, value float64, message string)) *progress {
	p := &progress{
		send: send, wake: make(chan struct{}, 1), over: make(chan struct{}), done: make(chan struct{}),
		sent: -1, began: time.Now(),
	}
	go p.run(ctx) // finish waits for it
	return p
}

// finish sends the last notification and waits until all are sent: none may follow the result.
func (p *progress) finish() {
	close(p.over)
	<-p.done
}

func (p *progress) run(ctx context.Context) {
	defer close(p.done)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	wake := (<-chan struct{})(p.wake)
	var rest <-chan time.Time
	for {
		select {
		case <-wake:
			p.notify(ctx)
			wake, rest = nil, time.After(progressEvery)
		case <-rest:
			wake, rest = p.wake, nil
		case <-beat.C:
			p.notify(ctx)
		case <-p.over:
			select {
			case <-p.wake:
				p.notify(ctx)
			default:
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

func (p *progress) notify(ctx context.Context) {
	p.mu.Lock()
	value, message := float64(p.bytes), p.message()
	p.mu.Unlock()
	if value <= p.sent {
		value = p.sent + beatStep
	}
	p.sent = value
	p.send(ctx, value, message)
}

func (p *progress) message() string {
	took := time.Since(p.began).Round(time.Second)
	switch {
	case p.note != "":
		return fmt.Sprintf("%s (%s)", p.note, took)
	case p.bytes == 0:
		return fmt.Sprintf("no output yet (%s)", took)
	}
	return fmt.Sprintf("%d bytes of output (%s): %s", p.bytes, took, plain(string(p.line), maxLine))
}

// wait sets what the call waits for; "" means that it runs.
func (p *progress) wait(note string) {
	p.mu.Lock()
	p.note = note
	p.mu.Unlock()
	p.wakeUp()
}

// output adds a piece of output. It never waits.
func (p *progress) output(b []byte) {
	p.mu.Lock()
	p.bytes += int64(len(b))
	line := bytes.TrimSuffix(b, []byte("\n"))
	if p.ended && len(b) > 0 {
		p.line, p.ended = p.line[:0], false
	}
	p.ended = p.ended || len(line) < len(b)
	if i := bytes.LastIndexByte(line, '\n'); i >= 0 {
		p.line, line = p.line[:0], line[i+1:]
	}
	p.line = append(p.line, line[:min(len(line), keptLine-len(p.line))]...)
	p.mu.Unlock()
	p.wakeUp()
}

func (p *progress) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}
