package api

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Limits of bodies that are held in memory, in bytes. A route has maxBody unless it says otherwise.
const (
	maxBody     = 1 << 20
	maxToolBody = 24 << 20 // an input of the greatest size fits, and one over it gets its own error
	maxMCPBody  = 17 << 20 // likewise an input
	maxExecBody = 32 << 20 // stdin of the greatest size in base64 fits
)

const (
	// maxValues bounds the values of a JSON body. Each is charged valueCost bytes: a decoded value
	// takes more memory than its text.
	maxValues = 128 << 10
	valueCost = 128

	// A body is read in pieces that double from firstPiece to lastPiece. When that much has come of
	// one whose length is declared, the rest is allocated at once, so that nothing is copied twice.
	firstPiece = 4 << 10
	lastPiece  = 1 << 20
	// The rest of a refused body is dropped in pieces of dropPiece, at the pace of refusals.
	dropPiece = 1 << 20
)

// bodyKind says what a route does with a body.
type bodyKind int

const (
	bodyNone   bodyKind = iota // it is not read
	bodyHeld                   // it is held in memory, within its limit and the budget
	bodyUpload                 // it is streamed, and has to go on coming
	bodyStream                 // it is streamed, and may be silent: input of commands, other servers' requests
)

func (rt route) kind() bodyKind {
	switch {
	case rt.takes != bodyNone:
		return rt.takes
	case rt.body != nil:
		return bodyHeld
	}
	return bodyNone
}

// bodyError says why a body was not taken. read and sum are the size and the SHA-256, in hex, of
// what had come.
type bodyError struct {
	said   *usererror.Error
	status int // 0: that of the class
	retry  time.Duration
	read   int
	sum    string
}

func bodyProblem(class error, format string, args ...any) *bodyError {
	return &bodyError{said: usererror.Errorf(class, format, args...)}
}

// Error implements error.
func (e *bodyError) Error() string { return e.said.Message }

// Unwrap returns the error for callers, which has the class.
func (e *bodyError) Unwrap() error { return e.said }

// callBody is the body of one request. Reading it streams it; hold takes it into memory.
type callBody struct {
	src       io.ReadCloser
	w         http.ResponseWriter
	ctl       *http.ResponseController
	principal engine.Principal
	budget    *budget
	refusals  *RefusalPacer
	pace      pace
	stall     time.Duration // for an upload
	kind      bodyKind
	limit     int64
	twice     bool
	declared  int64 // -1: not known
	charged   int64
	taken     int // bytes of a held body that were read
	// What commands read as input may still be read when the handler is through.
	ended  atomic.Bool // all of it was read
	broken atomic.Bool // reading it failed
	waits  atomic.Bool // the client sends nothing before it is asked to, and it was not
}

// receive puts a callBody in place of a request's body, if it has one, and returns it. r is copied:
// net/http looks at the body of its own request.
func (s *Server) receive(
	w http.ResponseWriter, r *http.Request, rt route, p engine.Principal,
) (*http.Request, *callBody) {
	b := &callBody{
		src: r.Body, w: w, ctl: http.NewResponseController(w), principal: p, budget: s.bodies, refusals: s.opts.Refusals, pace: s.pace, stall: s.stall,
		kind: rt.kind(), limit: rt.limit, twice: rt.twice, declared: r.ContentLength,
	}
	if b.limit == 0 {
		b.limit = maxBody
	}
	b.ended.Store(r.ContentLength == 0 || r.Body == nil)
	b.waits.Store(strings.EqualFold(r.Header.Get("Expect"), "100-continue"))
	if b.ended.Load() {
		return r, b
	}
	r = r.WithContext(r.Context())
	r.Body = b
	return r, b
}

// Read streams the body.
func (b *callBody) Read(p []byte) (int, error) {
	if b.kind == bodyUpload {
		_ = b.ctl.SetReadDeadline(time.Now().Add(b.stall)) // any connection can
	}
	b.waits.Store(false)
	n, err := b.src.Read(p)
	b.note(err)
	if b.kind == bodyUpload {
		_ = b.ctl.SetReadDeadline(time.Time{}) // it would end the request's context
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = tooSlow("nothing of the body came for %s", b.stall)
		}
	}
	return n, err
}

// note remembers how a read ended.
func (b *callBody) note(err error) {
	switch {
	case errors.Is(err, io.EOF):
		b.ended.Store(true)
	case err != nil:
		b.broken.Store(true)
	}
}

func tooSlow(format string, args ...any) error {
	e := bodyProblem(errdefs.ErrInvalidArgument, format, args...)
	e.status = http.StatusRequestTimeout
	return e
}

// Close implements io.Closer.
func (b *callBody) Close() error { return b.src.Close() }

// release gives the budget back. The body's memory is not used any more.
func (b *callBody) release() {
	b.budget.give(b.principal, b.charged)
	b.charged = 0
}

func (b *callBody) take(n int64) error {
	if err := b.budget.take(b.principal, b.charged, n); err != nil {
		return err
	}
	b.charged += n
	return nil
}

// refuse prepares an answer to a client that may still be sending: it gets the answer first.
func (b *callBody) refuse() {
	if b.ended.Load() {
		return
	}
	_ = b.ctl.EnableFullDuplex() // every connection of HTTP/1 can
	b.w.Header().Set("Connection", "close")
}

// drop takes what a client still sends after the answer, for a bounded time: a client that finds
// its connection reset may not get to read the answer. Nothing of it is kept.
func (b *callBody) drop() {
	if b.ended.Load() || b.broken.Load() || b.waits.Load() {
		return
	}
	_ = b.ctl.Flush() // a client that is gone sends nothing
	_ = b.ctl.SetReadDeadline(time.Now().Add(refusedTime))
	for left := int64(maxDrop); left > 0; left -= dropPiece {
		if _, err := io.CopyN(io.Discard, b.src, dropPiece); err != nil {
			return
		}
		b.refusals.Wait(b.principal, dropPiece/refusalBytes)
	}
}

// leave bounds how long net/http waits for what nobody has read.
func (b *callBody) leave() {
	if !b.ended.Load() && !b.broken.Load() {
		_ = b.ctl.SetReadDeadline(time.Now().Add(refusedTime)) // any connection can
	}
}

// hold reads all of the body into memory. With an error nothing of it is kept, nor charged.
func (b *callBody) hold() ([]byte, error) {
	h := heldBody{}
	err := b.fill(&h)
	b.taken = h.size
	if err == nil {
		_ = b.ctl.SetReadDeadline(time.Time{}) // it would end the request's context
		raw := h.whole()
		if err = b.weigh(raw); err == nil {
			return raw, nil
		}
	}
	if e, ok := errors.AsType[*bodyError](err); ok && h.size > 0 {
		e.read, e.sum = h.size, h.sum()
	}
	b.release()
	return nil, err
}

func (b *callBody) fill(h *heldBody) error {
	if b.declared > b.limit {
		return b.tooLong()
	}
	if err := b.budget.room(b.principal, max(b.declared, 0)); err != nil {
		return err
	}
	began := time.Now()
	b.waits.Store(false)
	for !b.ended.Load() {
		if int64(h.size) > b.limit {
			return b.tooLong()
		}
		if err := b.grow(h); err != nil {
			return err
		}
		_ = b.ctl.SetReadDeadline(b.pace.deadline(began, h.size)) // any connection can
		err := h.read(b.src)
		b.note(err)
		switch {
		case b.ended.Load():
		case errors.Is(err, os.ErrDeadlineExceeded):
			return tooSlow("body came too slowly: send it within %s, and at least %d bytes a second", b.pace.most, b.pace.rate)
		case err != nil:
			return bodyProblem(errdefs.ErrInvalidArgument,
				"body did not come whole: the connection ended, or its framing is not that of HTTP/1.1")
		}
	}
	return nil
}

func (b *callBody) tooLong() error {
	e := bodyProblem(errdefs.ErrInvalidArgument, "body is over %d bytes, which is the limit of this route", b.limit)
	e.status = http.StatusRequestEntityTooLarge
	return e
}

// grow charges and allocates memory for more, if there is none left.
func (b *callBody) grow(h *heldBody) error {
	all := b.limit + 1 // one byte more tells a body that is too long
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
		if err := b.take(all - have); err != nil {
			return err
		}
		h.join(int(all))
		return nil
	}
	n := min(max(have, firstPiece), lastPiece)
	if have == 0 && b.declared >= 0 {
		n = smallHeld
	}
	n = min(n, all-have)
	if err := b.take(n); err != nil {
		return err
	}
	h.add(int(n))
	return nil
}

// weigh bounds the values of a JSON body, and charges what decoding it takes.
func (b *callBody) weigh(raw []byte) error {
	n := strictjson.Values(raw)
	if n > maxValues {
		return bodyProblem(errdefs.ErrInvalidArgument, "body has over %d JSON values, which is the limit", maxValues)
	}
	cost := int64(n) * valueCost
	if b.twice {
		cost += int64(len(raw))
	}
	return b.take(cost)
}

// heldBody is a body in memory, or the beginning of one.
type heldBody struct {
	pieces [][]byte
	size   int // of all that has come
	room   int // of all pieces
}

func (h *heldBody) add(n int) {
	h.pieces = append(h.pieces, make([]byte, 0, n))
	h.room += n
}

// join puts all that has come into one piece with room for n bytes.
func (h *heldBody) join(n int) {
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
	if len(free) == 0 { // nothing but the end should come
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

// whole is all of it in one piece.
func (h *heldBody) whole() []byte {
	if len(h.pieces) == 0 {
		return nil
	}
	if len(h.pieces) > 1 {
		h.join(h.size)
	}
	return h.pieces[0]
}

// sum is the SHA-256 of what has come, in hex.
func (h *heldBody) sum() string {
	sum := sha256.New()
	for _, p := range h.pieces {
		sum.Write(p)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
