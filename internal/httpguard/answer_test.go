package httpguard

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

// slowWriter is a ResponseWriter whose client accepts a piece every step.
type slowWriter struct {
	http.ResponseWriter
	step     time.Duration
	deadline time.Time
}

func (w *slowWriter) SetWriteDeadline(at time.Time) error {
	w.deadline = at
	return nil
}

func (w *slowWriter) Write(p []byte) (int, error) {
	accepts := time.Now().Add(w.step)
	if accepts.After(w.deadline) {
		time.Sleep(time.Until(w.deadline))
		return 0, http.ErrHandlerTimeout
	}
	time.Sleep(time.Until(accepts))
	return w.ResponseWriter.Write(p)
}

// A client that accepts each piece just in time does not hold an answer for the time of all pieces.
func TestHeldAnswerMustBeAcceptedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stall, size = time.Minute, 4 << 20
		for step, ok := range map[time.Duration]bool{time.Second: true, stall - time.Second: false} {
			w := &slowWriter{ResponseWriter: httptest.NewRecorder(), step: step}
			began := time.Now()
			err := NewAnswer(w, stall).Send(http.StatusOK, "text/plain", make([]byte, size))
			if (err == nil) != ok {
				t.Errorf("Send() to a client that needs %v for a piece = %v, want success %v", step, err, ok)
			}
			if took, most := time.Since(began), stall+size/sendRate*time.Second; took > most {
				t.Errorf("Send() to a client that needs %v for a piece took %v, want at most %v", step, took, most)
			}
		}
	})
}
