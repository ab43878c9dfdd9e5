package httpguard

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// RefusedTime is how long a client may take to send the body of a refused request, and to accept a
// piece of its answer.
const RefusedTime = 5 * time.Second

// MaxValues is the largest number of values in a JSON body that is held in memory.
const MaxValues = 128 << 10

const (
	// valueCost is charged for each value of a JSON body, in bytes, because a decoded value takes more
	// memory than its text.
	valueCost = 128
	// maxUnasked bounds a body that the route does not read.
	maxUnasked = 64 << 10

	// A body is read in pieces that double from firstPiece to lastPiece. After lastPiece bytes of a
	// body with a declared length, the rest is allocated at once, so that nothing is copied twice.
	firstPiece = 4 << 10
	lastPiece  = 1 << 20
	// The rest of a refused body is dropped in pieces of dropPiece, at the pace of refusals.
	dropPiece = 1 << 20
	maxDrop   = 128 << 20
)

// BodyError reports why a body or an answer was refused.
type BodyError struct {
	said *usererror.Error
	// Status is the status to answer, or 0 for the status of the error's class.
	Status int
	// RetryAfter is when to try again, or 0 if the same request fails again.
	RetryAfter time.Duration
	// Answer reports that the error is about an answer, not a body. Dropped reports that the request
	// was carried out.
	Answer, Dropped bool
	// Read and Sum are the size and the SHA-256, in hex, of the bytes that arrived.
	Read int
	Sum  string
}

func bodyProblem(class error, format string, args ...any) *BodyError {
	return &BodyError{said: usererror.Errorf(class, format, args...)}
}

// Error implements error.
func (e *BodyError) Error() string { return e.said.Message }

// Unwrap returns the error for callers, with its class.
func (e *BodyError) Unwrap() error { return e.said }

// bodiesOver returns the error of a budget for bodies.
func bodiesOver(shared bool, _, limit int64) error {
	whose, key := "your requests", "requests.caller_bodies"
	if shared {
		whose, key = "all requests", "requests.bodies"
	}
	e := bodyProblem(errdefs.ErrResourceExhausted,
		"the bodies of %s are at their limit of %d bytes (%s): try again in %s", whose, limit, key, retryTime)
	e.RetryAfter = retryTime
	return e
}

// answersOver returns the error of a budget for answers.
func answersOver(shared bool, _, limit int64) error {
	whose := "your requests"
	if shared {
		whose = "all requests"
	}
	e := bodyProblem(errdefs.ErrResourceExhausted,
		"the unread answers to %s are at their limit of %d bytes: read them, or try again in %s", whose, limit, retryTime)
	e.Answer, e.RetryAfter = true, retryTime
	return e
}

// Dropped returns the error for an answer that was dropped, because the caller has not read earlier
// ones. what is the subject of its text. Its class is FailedPrecondition, so that clients do not
// repeat what was done.
func Dropped(what string) *BodyError {
	e := bodyProblem(errdefs.ErrFailedPrecondition, "%s was dropped: the unread answers are at their limit: read them first",
		what)
	e.Answer, e.Dropped = true, true
	return e
}

// BodyOptions configure how a Body is read.
type BodyOptions struct {
	// Limit bounds a body that is held in memory, in bytes. Twice charges it twice, because the
	// request's handler copies it.
	Limit int64
	Twice bool
	// Budget is charged for the memory of the body until Release.
	Budget *Budget
	// Pace is the minimum speed of a body that is held in memory.
	Pace Pace
	// Stall, if it is not zero, is the longest pause in a body that is streamed.
	Stall time.Duration
	// Refusals delays the reading of the rest of a refused body.
	Refusals *RefusalPacer
}

// Body is the body of one request. Read streams it; Hold reads it into memory. It is used by one
// goroutine, but a streamed body may still be read after the handler returned.
type Body struct {
	src       io.ReadCloser
	w         http.ResponseWriter
	ctl       *http.ResponseController
	principal caller.Principal
	opts      BodyOptions
	declared  int64 // -1: unknown
	charged   int64
	taken     int // bytes of a held body that were read
	// The flags are atomic because a command's stdin may still be read after the handler returned.
	ended  atomic.Bool // the whole body was read
	broken atomic.Bool // a read failed
	waits  atomic.Bool // the client waits for "100 Continue", which was not sent
}

// Receive replaces the body of a request, if it has one, by a Body and returns both. It returns a
// copy of r, because net/http inspects the body of the original request.
func Receive(w http.ResponseWriter, r *http.Request, p caller.Principal, o BodyOptions) (*http.Request, *Body) {
	b := &Body{src: r.Body, w: w, ctl: http.NewResponseController(w), principal: p, opts: o, declared: r.ContentLength}
	b.ended.Store(r.ContentLength == 0 || r.Body == nil)
	b.waits.Store(strings.EqualFold(r.Header.Get("Expect"), "100-continue"))
	if b.ended.Load() {
		return r, b
	}
	r = r.WithContext(r.Context())
	r.Body = b
	return r, b
}

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	if b.opts.Stall > 0 {
		_ = b.ctl.SetReadDeadline(time.Now().Add(b.opts.Stall)) // every connection supports it
	}
	b.waits.Store(false)
	n, err := b.src.Read(p)
	b.noteEnd(err)
	if b.opts.Stall > 0 {
		_ = b.ctl.SetReadDeadline(time.Time{}) // a deadline that passes would end the request's context
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = tooSlow("no part of the body arrived for %s", b.opts.Stall)
		}
	}
	return n, err
}

// noteEnd records how a read ended.
func (b *Body) noteEnd(err error) {
	switch {
	case errors.Is(err, io.EOF):
		b.ended.Store(true)
	case err != nil:
		b.broken.Store(true)
	}
}

func tooSlow(format string, args ...any) error {
	e := bodyProblem(errdefs.ErrInvalidArgument, format, args...)
	e.Status = http.StatusRequestTimeout
	return e
}

// Close implements io.Closer.
func (b *Body) Close() error { return b.src.Close() }

// Release returns the body's memory to the budget. The body must not be used afterwards.
func (b *Body) Release() {
	b.opts.Budget.Release(b.principal, b.charged)
	b.charged = 0
}

// Detach returns a function that returns the body's memory to the budget, in place of Release. It
// is for bodies that are in memory after the handler returned.
func (b *Body) Detach() (release func()) {
	n := b.charged
	b.charged = 0
	return func() { b.opts.Budget.Release(b.principal, n) }
}

func (b *Body) charge(n int64) error {
	if err := b.opts.Budget.Charge(b.principal, b.charged, n); err != nil {
		return err
	}
	b.charged += n
	return nil
}

// Refuse prepares an error answer to a client that may still be sending, so that the answer is sent
// before the body ends.
func (b *Body) Refuse() {
	if b.ended.Load() {
		return
	}
	_ = b.ctl.EnableFullDuplex() // every HTTP/1 connection supports it
	b.w.Header().Set("Connection", "close")
}

// DiscardRest reads and drops what a client still sends after the answer, for a bounded time. A
// client whose connection is reset may fail to read the answer.
func (b *Body) DiscardRest() {
	if b.ended.Load() || b.broken.Load() || b.waits.Load() {
		return
	}
	_ = b.ctl.Flush() // a client that is gone sends nothing
	_ = b.ctl.SetReadDeadline(time.Now().Add(RefusedTime))
	for left := maxDrop; left > 0; left -= dropPiece {
		if _, err := io.CopyN(io.Discard, b.src, dropPiece); err != nil {
			return
		}
		b.opts.Refusals.Wait(b.principal, dropPiece/refusalBytes)
	}
}

// BoundRest bounds how long net/http waits for the unread rest of the body.
func (b *Body) BoundRest() {
	if !b.ended.Load() && !b.broken.Load() {
		_ = b.ctl.SetReadDeadline(time.Now().Add(RefusedTime)) // every connection supports it
	}
}

// Weight returns how many refusals it counts as to refuse the body.
func (b *Body) Weight() int { return 1 + b.taken/refusalBytes }

// Hold reads the whole body into memory and charges it to the budget. After an error, no memory
// stays charged.
func (b *Body) Hold() ([]byte, error) {
	h := heldBody{}
	err := b.fill(&h)
	b.taken = h.size
	if err == nil {
		_ = b.ctl.SetReadDeadline(time.Time{}) // a deadline that passes would end the request's context
		if len(h.pieces) > 1 {                 // the length was not declared
			err = b.merge(&h)
		}
	}
	if err == nil {
		if err = b.chargeValues(h.bytes()); err == nil {
			return h.bytes(), nil
		}
	}
	if e, ok := errors.AsType[*BodyError](err); ok && h.size > 0 {
		e.Read, e.Sum = h.size, h.sum()
	}
	b.Release()
	return nil, err
}

func (b *Body) fill(h *heldBody) error {
	if b.declared > b.opts.Limit {
		return b.tooLong()
	}
	if err := b.opts.Budget.Check(b.principal, max(b.declared, 0)); err != nil {
		return err
	}
	began := time.Now()
	b.waits.Store(false)
	for !b.ended.Load() {
		if int64(h.size) > b.opts.Limit {
			return b.tooLong()
		}
		if err := b.grow(h); err != nil {
			return err
		}
		_ = b.ctl.SetReadDeadline(b.opts.Pace.deadline(began, h.size)) // every connection supports it
		err := h.read(b.src)
		b.noteEnd(err)
		switch {
		case b.ended.Load():
		case errors.Is(err, os.ErrDeadlineExceeded):
			return tooSlow("body arrived too slowly: send it within %s, and at least %d bytes a second", b.opts.Pace.Most,
				b.opts.Pace.Rate)
		case err != nil:
			return bodyProblem(errdefs.ErrInvalidArgument,
				"body is incomplete: the connection ended, or its framing is not valid HTTP/1.1")
		}
	}
	return nil
}

func (b *Body) tooLong() error {
	e := bodyProblem(errdefs.ErrInvalidArgument, "body is over %d bytes, which is the limit of this route", b.opts.Limit)
	e.Status = http.StatusRequestEntityTooLarge
	return e
}

// grow charges and allocates memory for the next piece, if the current one is full.
func (b *Body) grow(h *heldBody) error {
	all := b.opts.Limit + 1 // one more byte detects a body that is too long
	have := int64(h.room)
	switch {
	case h.size < h.room:
		return nil
	case b.declared >= 0:
		all = b.declared
	}
	if have == all {
		return nil
	}
	if b.declared >= 0 && have >= lastPiece {
		if err := b.charge(all - have); err != nil {
			return err
		}
		h.merge(int(all))
		return nil
	}
	n := min(max(have, firstPiece), lastPiece)
	if have == 0 && b.declared >= 0 {
		n = smallHeld
	}
	n = min(n, all-have)
	if err := b.charge(n); err != nil {
		return err
	}
	h.add(int(n))
	return nil
}

// merge copies the whole body into one piece. Both copies are charged until it returns.
func (b *Body) merge(h *heldBody) error {
	if err := b.charge(int64(h.size)); err != nil {
		return err
	}
	old := int64(h.room)
	h.merge(h.size)
	b.opts.Budget.Release(b.principal, old)
	b.charged -= old
	return nil
}

// chargeValues bounds the values of a JSON body and charges the memory of its decoded form.
func (b *Body) chargeValues(raw []byte) error {
	n := strictjson.Values(raw)
	if n > MaxValues {
		return bodyProblem(errdefs.ErrInvalidArgument, "body has over %d JSON values, which is the limit", MaxValues)
	}
	cost := int64(n) * valueCost
	if b.opts.Twice {
		cost += int64(len(raw))
	}
	return b.charge(cost)
}

// heldBody is a body in memory, or its first part.
type heldBody struct {
	pieces [][]byte
	size   int // bytes received
	room   int // bytes allocated in all pieces
}

func (h *heldBody) add(n int) {
	h.pieces = append(h.pieces, make([]byte, 0, n))
	h.room += n
}

// merge copies all pieces into one with room for n bytes.
func (h *heldBody) merge(n int) {
	one := make([]byte, 0, n)
	for i, p := range h.pieces {
		one = append(one, p...)
		h.pieces[i] = nil
	}
	h.pieces, h.room = [][]byte{one}, n
}

func (h *heldBody) read(r io.Reader) error {
	last := &h.pieces[len(h.pieces)-1]
	free := (*last)[len(*last):cap(*last)]
	if len(free) == 0 { // only the end may follow
		n, err := r.Read(make([]byte, 1))
		if n > 0 {
			err = io.ErrShortBuffer
		}
		return err
	}
	n, err := r.Read(free)
	*last = (*last)[:len(*last)+n]
	h.size += n
	return err
}

// bytes returns the body, which has at most one piece.
func (h *heldBody) bytes() []byte {
	if len(h.pieces) == 0 {
		return nil
	}
	return h.pieces[0]
}

// sum returns the SHA-256 of the received bytes, in hex.
func (h *heldBody) sum() string {
	sum := sha256.New()
	for _, p := range h.pieces {
		sum.Write(p)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// DropBody reads and drops the body of a request to a route that takes none. Otherwise net/http
// would read it before the answer, without a deadline.
func DropBody(w http.ResponseWriter, r *http.Request) error {
	ctl := http.NewResponseController(w)
	_ = ctl.SetReadDeadline(time.Now().Add(RefusedTime)) // every connection supports it
	if _, err := io.CopyN(io.Discard, r.Body, maxUnasked); !errors.Is(err, io.EOF) {
		return &strictjson.FieldError{Field: "body",
			Message: fmt.Sprintf("of a %s request is not used, and is too long or incomplete: send no body", r.Method)}
	}
	_ = ctl.SetReadDeadline(time.Time{}) // a deadline that passes would end the request's context
	return nil
}

// Pace is the minimum speed of a body that is held in memory.
type Pace struct {
	// Stall is the longest pause, and Most the longest time for the whole body. After Grace, Rate
	// bytes must have arrived for each second since the beginning.
	Stall, Grace, Most time.Duration
	Rate               int64
}

// DefaultPace returns the pace of bodies outside of tests.
func DefaultPace() Pace {
	return Pace{Stall: 10 * time.Second, Grace: 10 * time.Second, Most: 2 * time.Minute, Rate: 64 << 10}
}

// deadline returns when the next bytes must have arrived, for a body that began at began and of
// which got bytes have arrived.
func (p Pace) deadline(began time.Time, got int) time.Time {
	earned := time.Duration(float64(got) / float64(p.Rate) * float64(time.Second))
	at := began.Add(min(p.Most, p.Grace+earned))
	if stalled := time.Now().Add(p.Stall); stalled.Before(at) {
		return stalled
	}
	return at
}
