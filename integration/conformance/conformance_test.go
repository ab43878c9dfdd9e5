//go:build integration

// Package conformance runs the suite of runtime/runtimetest on every driver: docker on this host,
// docker reached only through streams of its API like a remote engine, containerd and oci; each
// also with class gvisor if supported.
package conformance

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/docker"
	"github.com/sandbox-orchestrator/orchestrator/runtime/oci"
	"github.com/sandbox-orchestrator/orchestrator/runtime/runtimetest"
)

// entrypoint is the sandbox image's entrypoint before the guest.
const entrypoint = "/usr/local/lib/orchestrator/entrypoint.sh"

// atOnce is the number of table columns tested at once. Each has separate sandboxes, directories
// and images and mostly waits for timeouts and kills, so it exceeds the number of cores. With four,
// gVisor on a busy machine needed longer to kill than a kill waits.
const atOnce = 3

// TestDrivers runs the suite on every driver, several at a time.
func TestDrivers(t *testing.T) {
	type column struct {
		name string
		run  func(t *testing.T, name string)
	}
	columns := make(chan column, 10)
	for _, c := range []column{ // the longest first
		{"oci-gvisor", func(t *testing.T, name string) { testOCI(t, name, runtime.ClassGVisor, false) }},
		{"containerd", func(t *testing.T, name string) { testContainerd(t, name, runtime.ClassContainer, false) }},
		{"containerd-userns", func(t *testing.T, name string) { testContainerd(t, name, runtime.ClassContainer, true) }},
		{"docker-local", func(t *testing.T, name string) { testDocker(t, name, docker.ModeLocal) }},
		{"oci-userns", func(t *testing.T, name string) { testOCI(t, name, runtime.ClassContainer, true) }},
		{"oci", func(t *testing.T, name string) { testOCI(t, name, runtime.ClassContainer, false) }},
		{"docker-stdio", func(t *testing.T, name string) { testDocker(t, name, docker.ModeStdio) }},
		{"containerd-gvisor", func(t *testing.T, name string) { testContainerd(t, name, runtime.ClassGVisor, false) }},
		{"docker-gvisor", testDockerGVisor},
	} {
		columns <- c
	}
	close(columns)
	var group sync.WaitGroup
	for range atOnce {
		group.Go(func() {
			for c := range columns {
				t.Run(c.name, func(t *testing.T) { c.run(t, c.name) })
			}
		})
	}
	group.Wait()
}

// given returns an environment variable that "make test" sets.
func given(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv("ORCHESTRATOR_TEST_" + name)
	if value == "" {
		t.Skipf("ORCHESTRATOR_TEST_%s is not set: make test sets it", name)
	}
	return value
}

// image returns the sandbox image. Its id is the digest of the configuration named by its archive.
func image(t *testing.T) runtime.Image {
	t.Helper()
	i := runtime.Image{Ref: "orchestrator/sandbox:latest", Root: given(t, "ROOTFS"), Archive: given(t, "IMAGE_ARCHIVE")}
	f, err := os.Open(i.Archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("%s has no manifest: %v", i.Archive, err)
		}
		if h.Name != "manifest.json" {
			continue
		}
		var manifest []struct{ Config string }
		text, err := io.ReadAll(r)
		if err = errors.Join(err, json.Unmarshal(text, &manifest)); err != nil || len(manifest) != 1 {
			t.Fatalf("manifest of %s = %q, %v; want one entry and no error", i.Archive, text, err)
		}
		i.ID = "sha256:" + strings.TrimSuffix(manifest[0].Config, ".json")
		return i
	}
}

// outside reports whether a run on a driver other than oci skips the checks that oci-gvisor makes
// with the same kernel and guest. ORCHESTRATOR_TEST_WHOLE in the environment disables skipping.
func outside(class runtime.Class) bool {
	return class != runtime.ClassContainer && os.Getenv("ORCHESTRATOR_TEST_WHOLE") == ""
}

// testOCI runs the suite on the embedded runtime.
func testOCI(t *testing.T, name string, class runtime.Class, userNamespace bool) {
	guest, at := given(t, "GUEST"), ""
	runtimetest.Run(t, runtimetest.Factory{
		Name: name, Class: class, UserNamespace: userNamespace, Image: image(t), Entrypoint: []string{entrypoint},
		HostPID: func(t *testing.T, id string) int {
			t.Helper()
			return pidIn(t, filepath.Join(at, "oci", id, "pid"))
		},
		Open: func(t *testing.T, state string) runtime.Driver {
			t.Helper()
			at = state
			d, err := oci.New(t.Context(),
				oci.Options{StateDir: state, GuestPath: guest, Runtime: os.Getenv("ORCHESTRATOR_TEST_RUNTIME"),
					GVisor: os.Getenv("ORCHESTRATOR_TEST_RUNSC")})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
	})
}

// testDocker runs the suite on Docker in a mode.
func testDocker(t *testing.T, name, mode string) {
	runtimetest.Run(t, dockerFactory(name, given(t, "DOCKER"), given(t, "GUEST"), mode, image(t)))
}

// dockerFactory returns the factory of a Docker driver in a mode.
func dockerFactory(name, engine, guest, mode string, i runtime.Image) runtimetest.Factory {
	return runtimetest.Factory{
		Name: name, Image: i, Entrypoint: []string{entrypoint},
		Open: func(t *testing.T, state string) runtime.Driver {
			t.Helper()
			d, err := docker.New(t.Context(), docker.Options{Host: engine, StateDir: state, GuestPath: guest, Mode: mode})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Leftovers: func(t *testing.T, id string) []string {
			t.Helper()
			// Containers by name and by label, in any state, and dangling volumes, as left by an
			// image's VOLUME.
			left := ask(t, engine, "ps", "--all", "--filter", "name="+id, "--format", "container {{.ID}} {{.Names}} {{.Status}}")
			left = append(left, ask(t, engine, "ps", "--all", "--filter", "label=orchestrator.id="+id, "--format",
				"container {{.ID}} {{.Names}} {{.Status}}")...)
			return append(left, ask(t, engine, "volume", "ls", "--filter", "name="+id, "--format", "volume {{.Name}}")...)
		},
		RemoveImage: func(t *testing.T, image runtime.Image) {
			t.Helper()
			ask(t, engine, "rmi", "--force", image.ID)
		},
	}
}

// pidIn reads a runtime's PID file.
func pidIn(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	pid, perr := strconv.Atoi(strings.TrimSpace(string(text)))
	if err = errors.Join(err, perr); err != nil {
		t.Fatal(err)
	}
	return pid
}

// ask returns the output lines of the engine's own client.
func ask(t *testing.T, engine string, args ...string) []string {
	t.Helper()
	out, err := exec.Command("docker", append([]string{"--host", engine}, args...)...).CombinedOutput()
	if err != nil {
		t.Errorf("docker %q: %v: %s", args, err, out)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}
