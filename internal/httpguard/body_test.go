package httpguard

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// A body is copied into one piece when its end is known. Both copies are charged.
func TestCopyOfChunkedBodyIsCharged(t *testing.T) {
	const size = 3 << 20
	for _, c := range []struct {
		total    int64
		declared int64
		ok       bool
	}{{64 << 20, -1, true}, {5 << 20, -1, false}, {5 << 20, size, true}} {
		b := NewBodyBudget(2*c.total, c.total)
		r := httptest.NewRequest(http.MethodPost, "/", io.NopCloser(bytes.NewReader(make([]byte, size))))
		r.ContentLength = c.declared
		_, in := Receive(httptest.NewRecorder(), r, caller.Principal{Caller: "ann"},
			BodyOptions{Limit: 8 << 20, Budget: b, Pace: Pace{time.Minute, time.Minute, time.Minute, 1}})
		raw, err := in.Hold()
		held, peak, _ := b.Held()
		if (err == nil) != c.ok || c.ok && len(raw) != size {
			t.Errorf("Hold() with a bound of %d and length %d = %d bytes, %v; want ok %v", c.total, c.declared, len(raw), err,
				c.ok)
		}
		if c.declared < 0 && c.ok && peak < 2*size {
			t.Errorf("at most %d bytes were charged, want at least %d", peak, 2*size)
		}
		if c.ok && (held < size || held > size+1<<10) || !c.ok && held != 0 {
			t.Errorf("%d bytes are charged after Hold(): %v; want %d to %d if it succeeds, else 0", held, err, size, size+1<<10)
		}
		in.Release()
	}
}
