// Package harness runs the real program for tests: `orchestrator serve` in a
// process of its own, on a state directory of its own, which can be killed,
// stopped and started again; the command line beside it; and what the host
// shows of its sandboxes.
//
// It never looks into the program: what it knows comes from the HTTP
// interface, from /proc, the mount table, the cgroup trees, the engine and,
// while no server runs, the database. It is for tests only: what goes wrong
// ends the test, with the server's log. One goroutine per process that was
// started waits for its end; the test's clean-up waits for all of them, takes
// the service down and fails the test for anything that is left.
package harness

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The environment that integration/scripts/test.sh gives.
const (
	EnvBin     = "ORCHESTRATOR_TEST_BIN"
	EnvFaults  = "ORCHESTRATOR_TEST_BIN_FAULTS"
	EnvDocker  = "ORCHESTRATOR_TEST_DOCKER"
	EnvArchive = "ORCHESTRATOR_TEST_IMAGE_ARCHIVE"
	// EnvBrowser and EnvClients are archives of the images that stand on the
	// sandbox image.
	EnvBrowser = "ORCHESTRATOR_TEST_BROWSER_ARCHIVE"
	EnvClients = "ORCHESTRATOR_TEST_CLIENTS_ARCHIVE"
	// EnvContainerd is the socket of the containerd of the tests.
	EnvContainerd = "ORCHESTRATOR_TEST_CONTAINERD"
)

// Bounds of waiting. They are far more than what a loaded machine needs; what
// is not over by then hangs.
const (
	Long  = 3 * time.Minute // a start, a whole clean-up
	Short = time.Minute     // a state that is about to be reached
	pause = 20 * time.Millisecond
	rare  = 10 * pause
)

// Runtimes are those that every scenario is held on.
func Runtimes() []string { return []string{"oci", "docker"} }

// AllRuntimes are those and containerd, on which scenarios are held that are
// about what drivers do: walls, restarts, crashes, streams.
func AllRuntimes() []string { return append(Runtimes(), "containerd") }

// Need returns a variable of the environment, or skips the test where it is
// not given; the script that runs the tests gives it.
func Need(t testing.TB, name string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	v := os.Getenv(name)
	if v == "" {
		t.Skipf("%s is not set: run by integration/scripts/test.sh", name)
	}
	return v
}

// Eventually polls until ok, and fails the test when it is not so within d.
// what is asked for the state that was waited for, for the message. The longer
// it waits the more rarely it looks: others work meanwhile.
func Eventually(t testing.TB, d time.Duration, what string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); {
		waited := time.Since(began)
		if waited > d {
			t.Fatalf("not within %s: %s", d, what)
		}
		time.Sleep(min(pause+waited/16, rare))
	}
}

// TempDir is a folder with a short path, for sockets, that goes with the test.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "h")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left := MountsUnder(t, dir); len(left) > 0 {
			t.Errorf("not removed, since mounts are left under it: %s: %v", dir, left)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the test's folder: %v", err)
		}
	})
	return dir
}

// WriteFile writes a file of the test.
func WriteFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
