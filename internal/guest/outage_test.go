package guest

import (
	"context"
	"net"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

// resumable is a stream that continues after an outage.
type resumable struct{ net.Conn }

func (resumable) Carry(context.Context) error { return nil }

func TestTimeLimitsExceedOutage(t *testing.T) {
	t.Parallel()
	c := New(nil)
	if ShortTime <= guestconn.OutageTime {
		t.Errorf("ShortTime = %s, want more than an outage of %s", ShortTime, guestconn.OutageTime)
	}
	if got := (&stream{client: c, nc: resumable{}}).patience() + QuietTime; got <= guestconn.OutageTime {
		t.Errorf("patience of a resumable stream = %s, want more than an outage of %s", got, guestconn.OutageTime)
	}
	if got := (&stream{client: c, nc: &net.UnixConn{}}).patience(); got != PatienceTime {
		t.Errorf("patience of a local stream = %s, want %s", got, PatienceTime)
	}
}
