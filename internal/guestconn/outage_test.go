package guestconn

import (
	"testing"
	"time"
)

func TestTimeLimitsExceedOutage(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"abandoned": abandoned, "muxStall": muxStall, "lingering": lingering} {
		if limit <= OutageTime {
			t.Errorf("%s = %s, want more than an outage of %s", name, limit, OutageTime)
		}
	}
}
