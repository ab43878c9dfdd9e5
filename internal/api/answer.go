package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// pieceSize is how many bytes of an answer a client must accept within the stall time.
const pieceSize = 64 << 10

// answer is a ResponseWriter that records whether an answer has begun, and fails writes to a client
// that accepts nothing for a set time. Without that limit, the writer would wait and keep its lease
// or sandbox. A slow client that accepts pieces is served.
type answer struct {
	http.ResponseWriter
	ctl    *http.ResponseController
	stall  time.Duration
	status int
	// budget, if set, counts the bytes that sendCounted holds for principal. retry is set if the
	// request changes nothing, so that the client can ask again.
	budget    *budget
	principal caller.Principal
	retry     bool
	// redact returns the part of an error that the caller may see.
	redact func(error) error
}

func newAnswer(w http.ResponseWriter, stall time.Duration) *answer {
	a := &answer{ResponseWriter: w, ctl: http.NewResponseController(w), stall: stall}
	a.disarm() // clears the deadline of the previous answer on this connection
	return a
}

func (a *answer) arm()    { _ = a.ctl.SetWriteDeadline(time.Now().Add(a.stall)) } // every connection supports it
func (a *answer) disarm() { _ = a.ctl.SetWriteDeadline(time.Time{}) }

// last bounds the time in which net/http sends the rest after the handler returned.
func (a *answer) last() { a.arm() }

// WriteHeader records the status. It drops informational responses except 101: a server in a
// sandbox could put untrusted fields into them.
func (a *answer) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return
	}
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// sendCounted sends p as the whole body of an answer. Its bytes count against the caller's budget
// until the client has accepted them. Over the budget, sendCounted returns a *bodyError if the
// request changes nothing. Otherwise the client must accept the answer within a shorter time.
func sendCounted(w http.ResponseWriter, status int, form string, p []byte) error {
	if a, ok := w.(*answer); ok && a.budget != nil {
		n := int64(len(p))
		if a.retry {
			if err := a.budget.charge(a.principal, 0, n); err != nil {
				return err
			}
		} else if !a.budget.force(a.principal, n) {
			a.stall = min(a.stall, refusedTime)
		}
		defer a.budget.release(a.principal, n)
	}
	w.Header().Set("Content-Type", form)
	w.Header().Set("Content-Length", strconv.Itoa(len(p)))
	w.WriteHeader(status)
	_, err := w.Write(p)
	return err
}

// Write sends p in pieces, each with its own deadline. It records an implicit status of 200.
func (a *answer) Write(p []byte) (n int, err error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	defer a.disarm()
	for first := true; first || n < len(p) && err == nil; first = false {
		a.arm()
		var m int
		m, err = a.ResponseWriter.Write(p[n:min(n+pieceSize, len(p))])
		n += m
	}
	return n, err
}

// FlushError implements flushing for http.ResponseController, with the deadline of Write.
func (a *answer) FlushError() error {
	a.arm()
	defer a.disarm()
	return a.ctl.Flush()
}

// Unwrap returns the wrapped ResponseWriter, for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
