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

// The memory that the service and the guest may use, whatever a command writes. The service has a
// few streams of up to some hundred KiB each, and Go's collector doubles that.
const (
	maxServiceMemory = 192 << 20
	maxGuestMemory   = 32 << 20
)

// TestFloodsKeepMemoryBounded runs commands that misuse their streams. Each must end as documented,
// and the memory of service and guest must stay bounded.
func TestFloodsKeepMemoryBounded(t *testing.T) {
	onServer(t, onDemand, func(t *testing.T, s *harness.Server) {
		id := lease(t, s, v1.SandboxRequest{WhenEmpty: "cold"}).ID
		const size = 10 << 30
		r, err := s.Client.Exec(t.Context(), id, v1.Exec{
			Command: "head -c 10G /dev/zero", MaxOutputBytes: 1000, TimeoutMS: time.Hour.Milliseconds(),
		})
		if err != nil || r.Ending != "exited" || r.ExitCode != 0 || r.StdoutBytes != size || !r.Truncated {
			t.Errorf("10 GiB of output: %+v, %v; want all bytes counted and truncated", r, err)
		}
		if r = exec(t, s, id, v1.Exec{Command: "exec >&- 2>&-; sleep 0.3; exit 3"}); r.Ending != "exited" || r.ExitCode != 3 {
			t.Errorf("closed streams: %+v, want exit code 3", r)
		}
		word := uniqueWord()
		r = exec(t, s, id, v1.Exec{Command: "exec -a " + word + " sleep 3000 & echo started"})
		if r.Ending != "exited" || r.Stdout != "started\n" {
			t.Errorf("streams held by a child: %+v, want exited with stdout started", r)
		}
		assertNoProcess(t, word)
		endless := client.Streams{Stdin: zeros{}, Stdout: io.Discard, Stderr: io.Discard}
		r, err = s.Client.ExecStream(within(t), id, v1.Exec{Argv: []string{"cat"}, TimeoutMS: 2000}, endless)
		if err != nil || r.Ending != "timeout" || r.ExitCode == 0 {
			t.Errorf("endless input: %+v, %v; want timeout", r, err)
		}
		r, err = s.Client.ExecStream(within(t), id, v1.Exec{Command: "sleep 0.3; exit 4"}, endless)
		if err != nil || r.Ending != "exited" || r.ExitCode != 4 {
			t.Errorf("unread input: %+v, %v; want exit code 4", r, err)
		}
		service, guest := harness.PeakMemory(t, s.Pid()), harness.PeakMemory(t, s.Init(id))
		t.Logf("peak memory: service %d MiB, guest %d MiB", service>>20, guest>>20)
		if service > maxServiceMemory {
			t.Errorf("peak memory of the service is %d MiB, want at most %d MiB", service>>20, maxServiceMemory>>20)
		}
		if guest > maxGuestMemory {
			t.Errorf("peak memory of the guest is %d MiB, want at most %d MiB", guest>>20, maxGuestMemory>>20)
		}
	})
}
