package server

import (
	"encoding/json"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

func TestTimeLimitsExceedOutage(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"stallTime": stallTime, "requestTime": requestTime} {
		if limit <= guestconn.OutageTime {
			t.Errorf("%s = %s, want more than an outage of %s", name, limit, guestconn.OutageTime)
		}
	}
}

// A connection may break between the frame that opens a stream and the request on it.
func TestRequestAfterOutageIsServed(t *testing.T) {
	s := testServer(t, false)
	request, err := json.Marshal(wire.Request{Version: wire.Version, Op: wire.OpPing})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		host, guest := net.Pipe()
		defer host.Close()
		go s.Serve(guest)
		time.Sleep(guestconn.OutageTime) // of the bubble's clock
		c := wire.NewExactConn(host)
		if err := c.WriteFrame(wire.KindRequest, request); err != nil {
			t.Fatalf("request after an outage: %v", err)
		}
		if kind, _, err := c.ReadFrame(); err != nil || kind != wire.KindReply {
			t.Errorf("answer = %q, %v; want %q", kind, err, wire.KindReply)
		}
	})
}
