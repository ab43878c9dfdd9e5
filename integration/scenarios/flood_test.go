//go:build integration

package scenarios

import (
	"io"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// Bounds of memory whatever a command writes. The service has a few streams of
// at most a few hundred KiB each; Go's collector lets that double.
const (
	serviceMemory = 192 << 20
	guestMemory   = 32 << 20
)

// Commands that use their streams as nobody should: each ends as documented,
// and the memory of host and guest stays flat.
func TestFloods(t *testing.T) {
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
		const much = 10 << 30
		r, err := s.Client.Exec(t.Context(), id, v1.Exec{Command: "head -c 10G /dev/zero", MaxOutputBytes: 1000, TimeoutMS: time.Hour.Milliseconds()})
		if err != nil || r.Ending != "exited" || r.ExitCode != 0 || r.StdoutBytes != much || !r.Truncated {
			t.Errorf("10 GiB: %+v %v", r, err)
		}
		if r = exec(t, s, id, v1.Exec{Command: "exec >&- 2>&-; sleep 0.3; exit 3"}); r.Ending != "exited" || r.ExitCode != 3 {
			t.Errorf("closed: %+v", r)
		}
		word := mark()
		if r = exec(t, s, id, v1.Exec{Command: "exec -a " + word + " sleep 3000 & echo started"}); r.Ending != "exited" || r.Stdout != "started\n" {
			t.Errorf("held by a child: %+v", r)
		}
		gone(t, word)
		endless := client.Streams{Stdin: zeros{}, Stdout: io.Discard, Stderr: io.Discard}
		r, err = s.Client.ExecStream(within(t), id, v1.Exec{Argv: []string{"cat"}, TimeoutMS: 2000}, endless)
		if err != nil || r.Ending != "timeout" || r.ExitCode == 0 {
			t.Errorf("stdin for ever: %+v %v", r, err)
		}
		r, err = s.Client.ExecStream(within(t), id, v1.Exec{Command: "sleep 0.3; exit 4"}, endless)
		if err != nil || r.Ending != "exited" || r.ExitCode != 4 {
			t.Errorf("stdin that nobody reads: %+v %v", r, err)
		}
		if got := harness.PeakMemory(t, s.Pid()); got > serviceMemory {
			t.Errorf("the service had %d MiB", got>>20)
		}
		if got := harness.PeakMemory(t, s.Init(id)); got > guestMemory {
			t.Errorf("the guest had %d MiB", got>>20)
		}
		t.Logf("service %d MiB, guest %d MiB at most", harness.PeakMemory(t, s.Pid())>>20, harness.PeakMemory(t, s.Init(id))>>20)
	})
}
