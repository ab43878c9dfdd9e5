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
	// heartbeat tells a client that a silent call is alive: many give up a
	// request that says nothing for a minute.
	heartbeat = 15 * time.Second
	maxLine   = 200 // runes of the last line
	keptLine  = 4 * maxLine
	// beatStep makes a heartbeat's progress larger than the one before, as the
	// protocol wants, and smaller than that of one byte more.
	beatStep = 1.0 / (1 << 16)
)

// progress tells a client how far a call is: its output in bytes, and its last
// line. What comes faster than it can be sent is told together.
type progress struct {
	send func(ctx context.Context, value float64, message string)

	mu    sync.Mutex
	bytes int64
	line  []byte
	ended bool   // the line: the next output begins a new one
	note  string // what the call waits for
	wake  chan struct{}

	sent  float64
	began time.Time
	over  chan struct{}
	done  chan struct{}
}

// startProgress starts telling; finish ends it.
func startProgress(ctx context.Context, send func(ctx context.Context, value float64, message string)) *progress {
	p := &progress{send: send, wake: make(chan struct{}, 1), over: make(chan struct{}), done: make(chan struct{}), sent: -1, began: time.Now()}
	go p.run(ctx) // finish waits
	return p
}

// finish tells what is left, and waits until nothing more is told: after the
// result there must be none.
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
			p.tell(ctx)
			wake, rest = nil, time.After(progressEvery)
		case <-rest:
			wake, rest = p.wake, nil
		case <-beat.C:
			p.tell(ctx)
		case <-p.over:
			select {
			case <-p.wake:
				p.tell(ctx)
			default:
			}
			return
		case <-ctx.Done():
			return
		}
	}
}

func (p *progress) tell(ctx context.Context) {
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

// wait notes what the call waits for; "" that it runs.
func (p *progress) wait(note string) {
	p.mu.Lock()
	p.note = note
	p.mu.Unlock()
	p.nudge()
}

// output takes a piece of output; it never waits.
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
	p.nudge()
}

func (p *progress) nudge() {
	select {
	case p.wake <- struct{}{}:
	default: // it will look anyway
	}
}
