// Package harness runs the real program for tests: `orchestrator serve` as a separate process with
// a separate state directory, which can be killed, stopped and restarted; the command line; and
// what the host sees of the sandboxes.
//
// It treats the program as a black box: it uses the HTTP interface, /proc, the mount table, the
// cgroup trees, the engine and, while no server runs, the database. Errors end the test and show
// the server's log. One goroutine per started process waits for its exit. The test's cleanup waits
// for all of them, stops the service and fails the test for anything left behind.
package harness

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtime"
)

// Environment variables set by integration/scripts/test.sh.
const (
	EnvBin     = "ORCHESTRATOR_TEST_BIN"
	EnvFaults  = "ORCHESTRATOR_TEST_BIN_FAULTS"
	EnvDocker  = "ORCHESTRATOR_TEST_DOCKER"
	EnvArchive = "ORCHESTRATOR_TEST_IMAGE_ARCHIVE"
	// EnvBrowser and EnvClients name archives of images that extend the sandbox image.
	EnvBrowser = "ORCHESTRATOR_TEST_BROWSER_ARCHIVE"
	EnvClients = "ORCHESTRATOR_TEST_CLIENTS_ARCHIVE"
	// EnvContainerd is the socket of the test containerd.
	EnvContainerd = "ORCHESTRATOR_TEST_CONTAINERD"
)

// Timeouts, far longer than a loaded machine needs.
var (
	Long  = testtime.Scale(3 * time.Minute) // a start, a complete cleanup
	Short = testtime.Scale(time.Minute)     // a state that is about to be reached
)

// Times between two looks at a state.
const (
	pause = 20 * time.Millisecond
	rare  = 10 * pause
)

// Runtimes returns the runtimes that every scenario runs on.
func Runtimes() []string { return []string{"oci", "docker"} }

// AllRuntimes adds containerd, for scenarios about what drivers do: isolation, restarts, crashes
// and streams.
func AllRuntimes() []string { return append(Runtimes(), "containerd") }

// Need returns an environment variable that the test script sets, or skips the test if it is not
// set.
func Need(tb testing.TB, name string) string {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("not root")
	}
	v := os.Getenv(name)
	if v == "" {
		tb.Skipf("%s is not set: run by integration/scripts/test.sh", name)
	}
	return v
}

// Eventually polls until ok returns true and fails the test after d. what describes the awaited
// state in the message. The interval grows, to leave the CPU to others.
func Eventually(tb testing.TB, d time.Duration, what string, ok func() bool) {
	tb.Helper()
	for began := time.Now(); !ok(); {
		waited := time.Since(began)
		if waited > d {
			tb.Fatalf("not within %s: %s", d, what)
		}
		time.Sleep(min(pause+waited/16, rare))
	}
}

// TempDir returns a directory with a short path, for sockets. It is removed with the test.
func TempDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "h")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if left := MountsUnder(tb, dir); len(left) > 0 {
			tb.Errorf("not removed, since mounts are left under it: %s: %v", dir, left)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			tb.Errorf("remove the test's directory: %v", err)
		}
	})
	return dir
}

// WriteFile writes a file and fails the test on error.
func WriteFile(tb testing.TB, path, content string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		tb.Fatal(err)
	}
}
