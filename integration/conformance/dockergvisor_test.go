//go:build integration

package conformance

import (
	"strconv"
	"strings"
	"testing"

	"orchestrator/runtime"
	"orchestrator/runtime/docker"
	"orchestrator/runtime/runtimetest"
)

func onDockerGVisor(t *testing.T, name string) {
	engine, guest := given(t, "DOCKER"), given(t, "GUEST")
	f := dockerFactory(name, engine, guest, docker.ModeLocal, image(t))
	f.Class, f.Outside = runtime.ClassGVisor, outside(runtime.ClassGVisor)
	f.Pid = func(t *testing.T, id string) int {
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
