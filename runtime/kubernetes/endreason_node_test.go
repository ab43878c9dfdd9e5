//go:build kubernetes

package kubernetes

import (
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// awaitEnd waits for the end of a sandbox and returns the reason that the driver reports.
func awaitEnd(t *testing.T, s *Sandbox) string {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Fatalf("the end of the pod was not reported in %s, want it reported", patience)
	}
	return s.EndReason()
}

func TestEvictionAndMemoryLimitAreReportedAsReasons(t *testing.T) {
	t.Parallel()
	o := options(t, newNamespace(t, "baseline"))
	d := opened(t, o)
	evicted := start(t, d, specOf(t))
	a := admin(t)
	a.namespace = o.Namespace
	body := `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"` + evicted.name + `"}}`
	if err := a.core.Post().Namespace(o.Namespace).Resource("pods").Name(evicted.name).SubResource("eviction").
		SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(bounded(t)).Error(); err != nil {
		t.Fatal(err)
	}
	if got := awaitEnd(t, evicted); got != errDrained.Error() {
		t.Errorf("EndReason after an eviction = %q, want %q", got, errDrained)
	}

	// The contents of memory volumes stay charged after its writer was killed, so that in the end
	// the guest is the only process to kill.
	spec := specOf(t)
	spec.Limits.MemoryBytes, spec.Limits.TmpBytes = 64<<20, 64<<20
	full := start(t, d, spec)
	c := guest.New(full)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		_, err := c.Exec(bounded(t), wire.Command{
			Argv: []string{"sh", "-c", "for d in /tmp /home/user; do head -c 64M /dev/zero >>$d/full; done"},
		}, guest.IO{})
		if err != nil {
			break
		}
	}
	if got := awaitEnd(t, full); !strings.HasPrefix(got, errOOM.Error()) {
		t.Errorf("EndReason after the first process exceeded the memory limit = %q, want %q", got, errOOM)
	}
	if _, err := d.Adopt(bounded(t), full.ID()); err == nil {
		t.Error("Adopt of an ended sandbox succeeded, want an error")
	}
}
