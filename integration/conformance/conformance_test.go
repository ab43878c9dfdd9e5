//go:build integration

// Package conformance runs the suite of runtime/runtimetest on every driver: docker on this host, docker reached by nothing but
// streams of its API, as a remote engine is, and oci.
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
	"testing"

	"orchestrator/runtime"
	"orchestrator/runtime/docker"
	"orchestrator/runtime/oci"
	"orchestrator/runtime/runtimetest"
)

// entrypoint is what the sandbox image wants in front of the guest.
const entrypoint = "/usr/local/lib/orchestrator/entrypoint.sh"

// given is an environment variable that "make test" sets.
func given(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv("ORCHESTRATOR_TEST_" + name)
	if value == "" {
		t.Skipf("ORCHESTRATOR_TEST_%s is not set: make test sets it", name)
	}
	return value
}

// image is the sandbox image; its id is the digest of the configuration that its archive names.
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
			t.Fatalf("the manifest of %s: %q, %v", i.Archive, text, err)
		}
		i.ID = "sha256:" + strings.TrimSuffix(manifest[0].Config, ".json")
		return i
	}
}

func TestOCI(t *testing.T) { onOCI(t, "oci", runtime.ClassContainer) }

// The runs on class gvisor wait much and are slow: they go on side by side when all others are over.
func TestOCIGVisor(t *testing.T) {
	t.Parallel()
	onOCI(t, "oci-gvisor", runtime.ClassGVisor)
}

// outside says whether a run on another driver than oci leaves out what its class shows inside: TestOCIGVisor shows that, with the same
// kernel and the same guest. ORCHESTRATOR_TEST_WHOLE in the environment leaves nothing out.
func outside(class runtime.Class) bool {
	return class != runtime.ClassContainer && os.Getenv("ORCHESTRATOR_TEST_WHOLE") == ""
}

func onOCI(t *testing.T, name string, class runtime.Class) {
	guest, at := given(t, "GUEST"), ""
	runtimetest.Run(t, runtimetest.Factory{
		Name: name, Class: class, Image: image(t), Entrypoint: []string{entrypoint},
		Pid: func(t *testing.T, id string) int {
			t.Helper()
			return pidIn(t, filepath.Join(at, "oci", id, "pid"))
		},
		Open: func(t *testing.T, state string) runtime.Driver {
			t.Helper()
			at = state
			d, err := oci.New(t.Context(), oci.Options{StateDir: state, GuestPath: guest, GVisor: os.Getenv("ORCHESTRATOR_TEST_RUNSC")})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
	})
}

func TestDockerLocal(t *testing.T) { onDocker(t, docker.ModeLocal) }

func TestDockerStdio(t *testing.T) { onDocker(t, docker.ModeStdio) }

func onDocker(t *testing.T, mode string) {
	runtimetest.Run(t, dockerFactory(given(t, "DOCKER"), given(t, "GUEST"), mode, image(t)))
}

func dockerFactory(engine, guest, mode string, i runtime.Image) runtimetest.Factory {
	return runtimetest.Factory{
		Name: "docker-" + mode, Image: i, Entrypoint: []string{entrypoint},
		Open: func(t *testing.T, state string) runtime.Driver {
			t.Helper()
			d, err := docker.New(t.Context(), docker.Options{Host: engine, StateDir: state, GuestPath: guest, Mode: mode})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Left: func(t *testing.T, id string) []string {
			t.Helper()
			// Containers by name and by label, in any state; volumes that no container has, as an image's VOLUME leaves them.
			left := ask(t, engine, "ps", "--all", "--filter", "name="+id, "--format", "container {{.ID}} {{.Names}} {{.Status}}")
			left = append(left, ask(t, engine, "ps", "--all", "--filter", "label=orchestrator.id="+id, "--format", "container {{.ID}} {{.Names}} {{.Status}}")...)
			return append(left, ask(t, engine, "volume", "ls", "--filter", "name="+id, "--format", "volume {{.Name}}")...)
		},
		Drop: func(t *testing.T, image runtime.Image) {
			t.Helper()
			ask(t, engine, "rmi", "--force", image.ID)
		},
	}
}

// pidIn reads the file in which a runtime told a pid.
func pidIn(t *testing.T, path string) int {
	t.Helper()
	text, err := os.ReadFile(path)
	pid, perr := strconv.Atoi(strings.TrimSpace(string(text)))
	if err = errors.Join(err, perr); err != nil {
		t.Fatal(err)
	}
	return pid
}

// ask gives the lines that the engine's own client says.
func ask(t *testing.T, engine string, args ...string) []string {
	t.Helper()
	out, err := exec.Command("docker", append([]string{"--host", engine}, args...)...).CombinedOutput()
	if err != nil {
		t.Errorf("docker %q: %v: %s", args, err, out)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}
