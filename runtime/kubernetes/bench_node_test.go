//go:build kubernetes

package kubernetes

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// TestFigures measures calls through the open stream and logs p50 and p99, for docs/kubernetes.md.
// It asserts nothing about speed.
func TestFigures(t *testing.T) {
	needNetwork(t, NetworkNone)
	for _, protocol := range []string{StreamWebSocket, StreamSPDY} {
		o := options(t, newNamespace(t, "baseline"))
		o.Stream = protocol
		d := opened(t, o)
		spec := specOf(t)
		began := time.Now()
		s := start(t, d, spec)
		t.Logf("%s: create to first answer %s", protocol, time.Since(began).Round(time.Millisecond))
		c := guest.New(s)
		measure(t, protocol+": exec /bin/true", 200, func() error {
			_, err := c.Exec(t.Context(), wire.Command{Argv: []string{"/bin/true"}}, guest.IO{})
			return err
		})
		measure(t, protocol+": ping", 200, func() error {
			_, err := c.Ping(t.Context())
			return err
		})
		measure(t, protocol+": a new pods/exec and a ping", 20, func() error {
			m, err := newStream(d, s.name).dial(t.Context())
			if err != nil {
				return err
			}
			return m.Close()
		})
		began = time.Now()
		_, err := c.Exec(
			t.Context(),
			wire.Command{Argv: []string{"head", "-c", "134217728", "/dev/zero"}},
			guest.IO{Stdout: io.Discard},
		)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: 128 MiB of output %.0f MB/s", protocol, 134.2/time.Since(began).Seconds())
	}
}

func measure(t *testing.T, what string, n int, call func() error) {
	t.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		if err := call(); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	t.Logf(
		"%s: p50 %s, p99 %s, n %d",
		what,
		took[n/2].Round(10*time.Microsecond),
		took[n*99/100].Round(10*time.Microsecond),
		n,
	)
}
