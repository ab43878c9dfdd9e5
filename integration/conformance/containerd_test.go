//go:build integration

package conformance

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/containerd"
	"github.com/sandbox-orchestrator/orchestrator/runtime/runtimetest"
)

// testContainerd runs the suite on containerd, and checks that removing the image leaves nothing.
func testContainerd(t *testing.T, name string, class runtime.Class, userNamespace bool) {
	address, guest := given(t, "CONTAINERD"), given(t, "GUEST")
	// A namespace of the suite, so that removing images affects nothing else.
	namespace := "orchestrator-suite-" + name
	open := func(t *testing.T, state string) *containerd.Driver {
		t.Helper()
		// The driver must work in cleanup, after the test's context has ended.
		d, err := containerd.New(context.WithoutCancel(t.Context()), containerd.Options{
			Address: address, Namespace: namespace, StateDir: state, GuestPath: guest,
			GVisor: os.Getenv("ORCHESTRATOR_TEST_RUNSC"),
		})
		if err == nil {
			err = d.Why(class)
		}
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	sandbox := image(t)
	drop := func(t *testing.T, i runtime.Image) {
		t.Helper()
		d := open(t, t.TempDir())
		defer d.Close()
		if err := d.Forget(context.WithoutCancel(t.Context()), i); err != nil {
			t.Error(err)
		}
	}
	t.Run("suite", func(t *testing.T) {
		runtimetest.Run(t, runtimetest.Factory{
			Name: name, Class: class, UserNamespace: userNamespace, Image: sandbox, Entrypoint: []string{entrypoint},
			RemoveImage: drop, SkipKernelChecks: outside(class),
			HostPID: func(t *testing.T, id string) int {
				t.Helper()
				return containerdPID(t, address, namespace, id)
			},
			Open: func(t *testing.T, state string) runtime.Driver { return open(t, state) },
			Leftovers: func(t *testing.T, id string) []string {
				t.Helper()
				return containerdLeftovers(t, address, namespace, id)
			},
		})
	})
	drop(t, sandbox)
	for what, args := range map[string][]string{
		"lease":    {"leases", "list", "--quiet"},
		"snapshot": {"snapshots", "list"},
		"content":  {"content", "list", "--quiet"},
	} {
		for _, line := range askContainerd(t, address, namespace, what, args...) {
			if !strings.HasPrefix(line, what+" KEY") {
				t.Errorf("%s left after the image was removed, want none: %s", what, line)
			}
		}
	}
}

// containerdPID returns the host PID of a sandbox's task.
func containerdPID(t *testing.T, address, namespace, id string) int {
	t.Helper()
	for _, line := range askContainerd(t, address, namespace, "task", "tasks", "list") {
		if fields := strings.Fields(line); len(fields) > 2 && fields[1] == id {
			pid, err := strconv.Atoi(fields[2])
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("task %s not found, want one of its id", id)
	return 0
}

// containerdLeftovers returns what containerd has of a sandbox.
func containerdLeftovers(t *testing.T, address, namespace, id string) []string {
	t.Helper()
	left := askContainerd(t, address, namespace, "container", "containers", "list", "--quiet", "id=="+id)
	for what, args := range map[string][]string{
		"task":     {"tasks", "list", "--quiet"},
		"snapshot": {"snapshots", "list"},
		"lease":    {"leases", "list"},
	} {
		for _, line := range askContainerd(t, address, namespace, what, args...) {
			if strings.Contains(line, id) {
				left = append(left, line)
			}
		}
	}
	return left
}

// askContainerd returns the output lines of ctr, each prefixed with what.
func askContainerd(t *testing.T, address, namespace, what string, args ...string) []string {
	t.Helper()
	out, err := exec.Command("ctr",
		append([]string{"--address", address, "--namespace", namespace}, args...)...).CombinedOutput()
	if err != nil {
		t.Errorf("ctr %q: %v: %s", args, err, out)
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, what+" "+line)
		}
	}
	return lines
}
