//go:build integration

package soak

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// engine is an engine separate from the other tests', so that it can be restarted.
type engine interface {
	address() string
	// restart stops the engine as an upgrade does and starts it again.
	restart(t *testing.T)
	// objects returns what the engine has, and its processes' memory. lost is the number of
	// containers on its disk that it does not list, so that they cannot be removed through it.
	objects(t *testing.T) (found map[string]string, memory int64, lost int)
}

// newEngine starts the engine of a driver. The embedded driver has none.
func newEngine(t *testing.T, driver string) engine {
	t.Helper()
	switch driver {
	case "docker":
		d := &docker{daemon: daemon{name: "engine.sh"}}
		d.host = d.start(t)
		return d
	case "containerd":
		c := &containerd{daemon: daemon{name: "containerd.sh"}}
		c.socket = c.start(t)
		t.Setenv(harness.EnvContainerd, c.socket)
		return c
	}
	return none{}
}

// none is for a driver without an engine: restart does nothing.
type none struct{}

func (none) address() string    { return "" }
func (none) restart(*testing.T) {}
func (none) objects(*testing.T) (map[string]string, int64, int) {
	return map[string]string{}, 0, 0
}

// state is the directory of this test's engines.
const state = "/var/lib/orchestrator-soak"

// daemon is an engine started and stopped by a script.
type daemon struct{ name string }

// start starts the engine until the end of the test and returns its address.
func (d daemon) start(t *testing.T) string {
	t.Helper()
	t.Cleanup(func() { d.script(t, "down"); removeAll(t, state) })
	return strings.TrimSpace(d.script(t, "up"))
}

func (d daemon) script(t *testing.T, verb string) string {
	t.Helper()
	return run(t, append(os.Environ(), "ORCHESTRATOR_TEST_STATE="+state), script(t, d.name), verb)
}

// docker is a Docker Engine with its own containerd. Its containers end with it.
type docker struct {
	daemon
	host string
}

func (d *docker) address() string { return d.host }

func (d *docker) restart(t *testing.T) {
	t.Helper()
	pid := pidIn(t, state+"/engine/docker.pid")
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Long, "the engine has ended", func() bool { return harness.Dead(pid) })
	d.script(t, "up")
}

func (d *docker) objects(t *testing.T) (map[string]string, int64, int) {
	t.Helper()
	found := map[string]string{}
	for _, list := range [][]string{
		{"ps", "--all", "--quiet", "--no-trunc"}, {"volume", "ls", "--quiet"}, {"network", "ls", "--quiet",
			"--no-trunc"}, {"image", "ls", "--all", "--quiet", "--no-trunc"},
	} {
		lines(run(t, nil, "docker", append([]string{"--host", d.host}, list...)...), list[0]+" ", found)
	}
	for _, dir := range []string{
		"data/overlay2", "data/containers", "containerd/state/io.containerd.runtime.v2.task/moby",
	} {
		entries, _ := os.ReadDir(state + "/engine/" + dir)
		for _, e := range entries {
			found[dir+"/"+e.Name()] = ""
		}
	}
	lost := d.forget(found)
	return found, sum(state + "/engine/"), lost
}

// forget removes containers that the engine has lost track of from found: one that was being
// created when the engine stopped stays on disk and is not listed.
func (d *docker) forget(found map[string]string) (lost int) {
	data := state + "/engine/data/"
	entries, _ := os.ReadDir(data + "containers")
	for _, e := range entries {
		if _, known := found["ps "+e.Name()]; known {
			continue
		}
		lost++
		delete(found, "data/containers/"+e.Name())
		for _, layer := range []string{"mount-id", "init-id"} {
			id, _ := os.ReadFile(data + "image/overlay2/layerdb/mounts/" + e.Name() + "/" + layer)
			delete(found, "data/overlay2/"+strings.TrimSpace(string(id)))
		}
	}
	return lost
}

// containerd is a daemon whose containers survive it.
type containerd struct {
	daemon
	socket string
}

func (c *containerd) address() string { return "" }

func (c *containerd) restart(t *testing.T) {
	t.Helper()
	c.script(t, "kill")
	c.script(t, "up")
}

func (c *containerd) objects(t *testing.T) (map[string]string, int64, int) {
	t.Helper()
	found := map[string]string{}
	for _, list := range [][]string{
		{"containers", "list", "-q"}, {"tasks", "list", "-q"}, {"leases", "list", "-q"}, {"snapshots", "list"},
		{"content", "list", "-q"}, {"images", "list", "-q"},
	} {
		lines(run(t, os.Environ(), "ctr", append([]string{"--address", c.socket, "--namespace", "orchestrator"}, list...)...),
			list[0]+" ", found)
	}
	return found, sum(state + "/containerd/"), 0
}

// sum returns the memory of all processes with a word in their command line.
func sum(word string) (total int64) {
	for _, pid := range harness.Marked(word) {
		if m, err := memory(pid); err == nil {
			total += m
		}
	}
	return total
}

// pidIn reads a PID file.
func pidIn(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// run runs a command and returns its output. Cleanup uses it too, so it does not end with the test.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Env = env
	out, err := c.Output()
	if err != nil {
		t.Fatalf("command %s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// removeAll removes a directory, unless something is mounted below it.
func removeAll(t *testing.T, dir string) {
	t.Helper()
	if left := harness.MountsUnder(t, dir); len(left) > 0 {
		t.Errorf("mounts left = %v, want none", left)
		return
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
}
