package httpguard

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

const (
	// pieceSize is how many bytes of an answer a client must accept within the stall time.
	pieceSize = 64 << 10
	// sendRate is how many bytes per second a client must accept on average of an answer that is held
	// in memory, after the stall time.
	sendRate = 16 << 10
)

// Answer is a ResponseWriter that records whether an answer has begun, and fails writes to a client
// that accepts nothing for a set time. Without that limit, the writer would wait and keep its lease
// or sandbox. A slow client that accepts pieces is served.
type Answer struct {
	http.ResponseWriter
	ctl    *http.ResponseController
	stall  time.Duration
	status int
	end    time.Time // when the whole answer must have been accepted, or zero
	// budget, if set, counts the bytes that Send holds for principal.
	budget    *Budget
	principal caller.Principal
	retry     bool
}

// NewAnswer returns an answer whose client must accept each piece within stall.
func NewAnswer(w http.ResponseWriter, stall time.Duration) *Answer {
	a := &Answer{ResponseWriter: w, ctl: http.NewResponseController(w), stall: stall}
	a.disarm() // clears the deadline of the previous answer on this connection
	return a
}

// Status returns the status that was sent, or 0 before the answer has begun.
func (a *Answer) Status() int { return a.status }

// Hurry reduces the time in which the client must accept a piece to RefusedTime.
func (a *Answer) Hurry() { a.stall = min(a.stall, RefusedTime) }

// ChargeTo makes Send charge the budget for p. retry says that the request changes nothing, so that
// the client can ask again.
func (a *Answer) ChargeTo(b *Budget, p caller.Principal, retry bool) {
	a.budget, a.principal, a.retry = b, p, retry
}

func (a *Answer) arm() {
	at := time.Now().Add(a.stall)
	if !a.end.IsZero() && a.end.Before(at) {
		at = a.end
	}
	_ = a.ctl.SetWriteDeadline(at) // every connection supports it
}

func (a *Answer) disarm() { _ = a.ctl.SetWriteDeadline(time.Time{}) }

// Last bounds the time in which net/http sends the rest after the handler returned.
func (a *Answer) Last() { a.arm() }

// WriteHeader records the status. It drops informational responses except 101: a server in a
// sandbox could put untrusted fields into them.
func (a *Answer) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return
	}
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Expect bounds the time in which the client must accept the whole answer, which has n bytes.
func (a *Answer) Expect(n int64) {
	a.end = time.Now().Add(a.stall + time.Duration(n)*time.Second/sendRate)
}

// Account returns an account for what the request holds until the client has accepted it. It is nil
// without a budget.
func (a *Answer) Account() *Account {
	if a.budget == nil {
		return nil
	}
	return &Account{b: a.budget, p: a.principal}
}

// Send sends p as the whole body of the answer. Its bytes count against the caller's budget until
// the client has accepted them. Over the budget, Send sends nothing and returns a *BodyError. If
// the request may have changed something, that error is of class FailedPrecondition and says that
// the answer was dropped. The client must accept the answer at sendRate, after the stall time.
func (a *Answer) Send(status int, form string, p []byte) error {
	held := a.Account()
	if err := held.Charge(int64(len(p))); err != nil {
		if a.retry {
			return err
		}
		return Dropped("the request was carried out, but its answer")
	}
	defer held.Close()
	a.Expect(int64(len(p)))
	a.Header().Set("Content-Type", form)
	a.Header().Set("Content-Length", strconv.Itoa(len(p)))
	a.WriteHeader(status)
	_, err := a.Write(p)
	return err
}

// Write sends p in pieces, each with its own deadline. It records an implicit status of 200.
func (a *Answer) Write(p []byte) (n int, err error) {
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
func (a *Answer) FlushError() error {
	a.arm()
	defer a.disarm()
	return a.ctl.Flush()
}

// Unwrap returns the wrapped ResponseWriter, for http.ResponseController.
func (a *Answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
