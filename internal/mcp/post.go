package mcp

import (
	"context"
	"slices"
	"sync"
	"time"
)

// decideTime bounds how long a POST whose client left waits for the decisions about its requests.
// Some never reach limit: the library answers those of a session that is closing.
const decideTime = time.Second

// post is an HTTP request that may contain calls. Its context outlives the connection, so that a
// client can resume. The post is over when the HTTP request and all calls have ended.
type post struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	in     *intake

	timer *time.Timer // ends a lost post; the session's lock guards it

	mu       sync.Mutex
	results  int64         // bytes charged to the budget of results
	ended    bool          // results are not charged any more
	stream   string        // the library's id of the answer; "" until it is opened
	requests int           // requests in the body
	pending  int           // requests for which limit has not decided
	decided  chan struct{} // closed when none is pending; nil if there never was one
	running  int           // requests in limit
	refused  int           // refusals that delay the end of the HTTP request, not an answer
	left     bool          // the HTTP request has ended
	over     []func()      // called when the post is over; nil after that
}

// newPost returns a post without requests. over is called once, when the post is over.
func newPost(ctx context.Context, over func()) *post {
	p := &post{over: []func(){over}}
	p.ctx, p.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	return p
}

// opened records the stream of the answer, and returns how many answers it will have.
func (p *post) opened(stream string) (answers int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stream = stream
	return p.requests
}

// expect sets how many requests will reach limit.
func (p *post) expect(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.requests = max(p.requests, n)
	if p.pending = n; n > 0 {
		p.decided = make(chan struct{})
	}
}

// begin records that a request is in limit, until end is called. p may be nil.
func (p *post) begin() (end func()) {
	if p == nil {
		return func() {}
	}
	p.mu.Lock()
	p.running++
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		p.running--
		p.mu.Unlock()
		p.check()
	}
}

// decide records that limit has admitted a request, or has refused it. p may be nil.
func (p *post) decide(refused bool) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if refused {
		p.refused++
	}
	if p.pending--; p.pending == 0 {
		close(p.decided)
	}
}

// refusals returns the number of requests that limit has refused. It waits for the decisions about
// pending ones, at most decideTime.
func (p *post) refusals() int {
	p.mu.Lock()
	decided := p.decided
	if p.pending <= 0 {
		decided = nil
	}
	p.mu.Unlock()
	if decided != nil {
		t := time.NewTimer(decideTime)
		defer t.Stop()
		select {
		case <-decided:
		case <-t.C:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// whenOver calls f when the post is over, or now if it is.
func (p *post) whenOver(f func()) {
	p.mu.Lock()
	if p.over != nil {
		p.over = append(p.over, f)
		f = func() {}
	}
	p.mu.Unlock()
	f()
}

// leave records that the HTTP request has ended.
func (p *post) leave() {
	p.mu.Lock()
	p.left = true
	p.mu.Unlock()
	context.AfterFunc(p.ctx, p.check)
	p.check()
}

// check calls the functions of over if the post is over. It does not wait for requests that have
// not begun when the post is canceled: they end as soon as they begin.
func (p *post) check() {
	p.mu.Lock()
	var call []func()
	if p.left && p.running == 0 && (p.pending <= 0 || p.ctx.Err() != nil) {
		call, p.over = p.over, nil
	}
	p.mu.Unlock()
	for _, f := range call {
		f()
	}
}

// addLost takes over a request whose stream broke. It is canceled unless the client resumes its
// stream in time.
func (x *session) addLost(p *post, in time.Duration) {
	x.mu.Lock()
	x.lost = append(x.lost, p)
	if len(x.lost) > maxLost { // bounds clients that leave repeatedly
		x.drop(x.lost[0], errGone)
	}
	x.startTimer(p, in)
	x.mu.Unlock()
	p.whenOver(func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.drop(p, context.Canceled)
	})
}

// resume records that the client resumed a stream. Its request is not canceled until the returned
// function records that the client left again. Other lost requests are not affected.
func (x *session) resume(stream string, in time.Duration) (gone func()) {
	x.addResumed(stream, 1, in)
	return func() { x.addResumed(stream, -1, in) }
}

func (x *session) addResumed(stream string, n int, in time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.resumed == nil {
		x.resumed = map[string]int{}
	}
	if x.resumed[stream] += n; x.resumed[stream] == 0 {
		delete(x.resumed, stream)
	}
	for _, p := range x.lost {
		if p.streamID() == stream {
			x.startTimer(p, in)
		}
	}
}

func (p *post) streamID() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stream
}

// startTimer gives a lost request its time, unless its stream is resumed. The caller holds x.mu.
func (x *session) startTimer(p *post, in time.Duration) {
	if p.timer != nil {
		p.timer.Stop()
	}
	if x.resumed[p.streamID()] == 0 {
		p.timer = time.AfterFunc(in, func() { x.giveUp(p) })
	}
}

// giveUp cancels a lost request whose stream is not resumed.
func (x *session) giveUp(p *post) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.resumed[p.streamID()] == 0 {
		x.drop(p, errGone)
	}
}

// drop cancels a lost request and forgets it. The caller holds x.mu.
func (x *session) drop(p *post, cause error) {
	if i := slices.Index(x.lost, p); i >= 0 {
		x.lost = slices.Delete(x.lost, i, i+1)
		if p.timer != nil {
			p.timer.Stop()
		}
		p.cancel(cause)
	}
}
