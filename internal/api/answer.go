package api

import (
	"net/http"
	"time"
)

// pieceSize is how much of an answer a client has to take within its time.
const pieceSize = 64 << 10

// answer remembers whether anything was sent, and gives up a client that takes
// nothing for a set time: what is sent would wait for it with all that it
// holds, a lease or a sandbox of its own. A slow client that takes pieces is
// fine.
type answer struct {
	http.ResponseWriter
	ctl    *http.ResponseController
	stall  time.Duration
	status int
	// seen is what the caller may see of an error.
	seen func(error) error
}

func newAnswer(w http.ResponseWriter, stall time.Duration) *answer {
	a := &answer{ResponseWriter: w, ctl: http.NewResponseController(w), stall: stall}
	a.disarm() // what the last answer on this connection left
	return a
}

func (a *answer) arm()    { _ = a.ctl.SetWriteDeadline(time.Now().Add(a.stall)) } // any connection can
func (a *answer) disarm() { _ = a.ctl.SetWriteDeadline(time.Time{}) }

// last bounds what net/http sends when the handler is through.
func (a *answer) last() { a.arm() }

// WriteHeader notes the status. What only informs is not sent: servers in
// sandboxes would put foreign fields in it.
func (a *answer) WriteHeader(status int) {
	if status < http.StatusOK && status != http.StatusSwitchingProtocols {
		return
	}
	if a.status == 0 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write notes an implicit 200.
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

// FlushError is for http.ResponseController, which would go round us.
func (a *answer) FlushError() error {
	a.arm()
	defer a.disarm()
	return a.ctl.Flush()
}

// Unwrap is for http.ResponseController.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }
