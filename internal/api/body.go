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

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Limits of bodies that are held in memory, in bytes. A route without a limit has maxBody.
const (
	maxBody     = 1 << 20
	maxToolBody = 24 << 20 // the largest input fits, and an input that is one byte larger gets its own error
	maxMCPBody  = 17 << 20 // the largest input fits
	maxExecBody = 32 << 20 // the largest stdin fits in base64
)

const (
	// maxValues bounds the values of a JSON body. Each is charged valueCost bytes, because a
	// decoded value takes more memory than its text.
	maxValues = 128 << 10
	valueCost = 128

	// A body is read in pieces that double from firstPiece to lastPiece. After lastPiece bytes of a
	// body with a declared length, the rest is allocated at once, so that nothing is copied twice.
	firstPiece = 4 << 10
	lastPiece  = 1 << 20
	// The rest of a refused body is dropped in pieces of dropPiece, at the pace of refusals.
	dropPiece = 1 << 20
)

// bodyKind says how a route reads a body.
type bodyKind int

const (
	bodyNone   bodyKind = iota // not read
	bodyHeld                   // held in memory, within the route's limit and the budget
	bodyUpload                 // streamed; fails if nothing arrives for the stall time
	bodyStream                 // streamed without a deadline: stdin of commands, requests to servers in sandboxes
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

// bodyError reports why a body was refused. read and sum are the size and the SHA-256, in hex, of
// the bytes that arrived.
type bodyError struct {
	said   *usererror.Error
	status int // 0: the status of the error's class
	retry  time.Duration
	answer bool // about an answer, not a body
	read   int
	sum    string
}

func bodyProblem(class error, format string, args ...any) *bodyError {
	return &bodyError{said: usererror.Errorf(class, format, args...)}
}

// Error implements error.
func (e *bodyError) Error() string { return e.said.Message }

// Unwrap returns the error for callers, with its class.
func (e *bodyError) Unwrap() error { return e.said }

// callBody is the body of one request. Read streams it; hold reads it into memory.
type callBody struct {
	src       io.ReadCloser
	w         http.ResponseWriter
	ctl       *http.ResponseController
	principal caller.Principal
	budget    *budget
	refusals  *RefusalPacer
	pace      bodyPace
	stall     time.Duration // the longest pause in an upload
	kind      bodyKind
	limit     int64
	twice     bool
	declared  int64 // -1: unknown
	charged   int64
	taken     int // bytes of a held body that were read
	// The flags are atomic because a command's stdin may still be read after the handler returned.
	ended  atomic.Bool // the whole body was read
	broken atomic.Bool // a read failed
	waits  atomic.Bool // the client waits for "100 Continue", which was not sent
}

// receive replaces the body of a request, if it has one, by a callBody and returns both. It returns
// a copy of r, because net/http inspects the body of the original request.
func (s *Server) receive(
	w http.ResponseWriter, r *http.Request, rt route, p caller.Principal,
) (*http.Request, *callBody) {
	b := &callBody{
		src: r.Body, w: w, ctl: http.NewResponseController(w), principal: p, budget: s.bodies,
		refusals: s.opts.Refusals, pace: s.pace, stall: s.stall,
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

// Read implements io.Reader.
func (b *callBody) Read(p []byte) (int, error) {
	if b.kind == bodyUpload {
		_ = b.ctl.SetReadDeadline(time.Now().Add(b.stall)) // every connection supports it
	}
	b.waits.Store(false)
	n, err := b.src.Read(p)
	b.noteEnd(err)
	if b.kind == bodyUpload {
		_ = b.ctl.SetReadDeadline(time.Time{}) // a deadline that passes would end the request's context
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = tooSlow("no part of the body arrived for %s", b.stall)
		}
	}
	return n, err
}

// noteEnd records how a read ended.
func (b *callBody) noteEnd(err error) {
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

// release returns the body's memory to the budget. The body must not be used afterwards.
func (b *callBody) release() {
	b.budget.release(b.principal, b.charged)
	b.charged = 0
}

func (b *callBody) charge(n int64) error {
	if err := b.budget.charge(b.principal, b.charged, n); err != nil {
		return err
	}
	b.charged += n
	return nil
}

// refuse prepares an error answer to a client that may still be sending, so that the answer is sent
// before the body ends.
func (b *callBody) refuse() {
	if b.ended.Load() {
		return
	}
	_ = b.ctl.EnableFullDuplex() // every HTTP/1 connection supports it
	b.w.Header().Set("Connection", "close")
}

// discardRest reads and drops what a client still sends after the answer, for a bounded time. A
// client whose connection is reset may fail to read the answer.
func (b *callBody) discardRest() {
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

// boundRest bounds how long net/http waits for the unread rest of the body.
func (b *callBody) boundRest() {
	if !b.ended.Load() && !b.broken.Load() {
		_ = b.ctl.SetReadDeadline(time.Now().Add(refusedTime)) // every connection supports it
	}
}

// hold reads the whole body into memory and charges it to the budget. After an error, no memory
// stays charged.
func (b *callBody) hold() ([]byte, error) {
	h := heldBody{}
	err := b.fill(&h)
	b.taken = h.size
	if err == nil {
		_ = b.ctl.SetReadDeadline(time.Time{}) // a deadline that passes would end the request's context
		raw := h.bytes()
		if err = b.chargeValues(raw); err == nil {
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
	if err := b.budget.checkRoom(b.principal, max(b.declared, 0)); err != nil {
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
		_ = b.ctl.SetReadDeadline(b.pace.deadline(began, h.size)) // every connection supports it
		err := h.read(b.src)
		b.noteEnd(err)
		switch {
		case b.ended.Load():
		case errors.Is(err, os.ErrDeadlineExceeded):
			return tooSlow("body arrived too slowly: send it within %s, and at least %d bytes a second", b.pace.most,
				b.pace.rate)
		case err != nil:
			return bodyProblem(errdefs.ErrInvalidArgument,
				"body is incomplete: the connection ended, or its framing is not valid HTTP/1.1")
		}
	}
	return nil
}

func (b *callBody) tooLong() error {
	e := bodyProblem(errdefs.ErrInvalidArgument, "body is over %d bytes, which is the limit of this route", b.limit)
	e.status = http.StatusRequestEntityTooLarge
	return e
}

// grow charges and allocates memory for the next piece, if the current one is full.
func (b *callBody) grow(h *heldBody) error {
	all := b.limit + 1 // one more byte detects a body that is too long
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

// chargeValues bounds the values of a JSON body and charges the memory of its decoded form.
func (b *callBody) chargeValues(raw []byte) error {
	n := strictjson.Values(raw)
	if n > maxValues {
		return bodyProblem(errdefs.ErrInvalidArgument, "body has over %d JSON values, which is the limit", maxValues)
	}
	cost := int64(n) * valueCost
	if b.twice {
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

// bytes returns the body in one piece.
func (h *heldBody) bytes() []byte {
	if len(h.pieces) == 0 {
		return nil
	}
	if len(h.pieces) > 1 {
		h.merge(h.size)
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
