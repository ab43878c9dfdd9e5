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

func TestOCI(t *testing.T) {
	guest := given(t, "GUEST")
	runtimetest.Run(t, runtimetest.Factory{
		Name: "oci", Image: image(t), Entrypoint: []string{entrypoint},
		Open: func(t *testing.T, state string) runtime.Driver {
			t.Helper()
			d, err := oci.New(t.Context(), oci.Options{StateDir: state, GuestPath: guest})
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
	engine, guest := given(t, "DOCKER"), given(t, "GUEST")
	runtimetest.Run(t, runtimetest.Factory{
		Name: "docker-" + mode, Image: image(t), Entrypoint: []string{entrypoint},
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
	})
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
