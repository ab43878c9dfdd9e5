//go:build integration

package conformance

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/docker"
	"github.com/sandbox-orchestrator/orchestrator/runtime/runtimetest"
)

// testDockerGVisor runs the suite on a local Docker Engine with class gvisor.
func testDockerGVisor(t *testing.T, name string) {
	engine, guest := given(t, "DOCKER"), given(t, "GUEST")
	f := dockerFactory(name, engine, guest, docker.ModeLocal, image(t))
	f.Class, f.SkipKernelChecks = runtime.ClassGVisor, outside(runtime.ClassGVisor)
	f.HostPID = func(t *testing.T, id string) int {
		t.Helper()
		lines := ask(t, engine, "inspect", "--format", "{{.State.Pid}}", "orchestrator-"+id)
		pid, err := strconv.Atoi(strings.Join(lines, " "))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	runtimetest.Run(t, f)
}
