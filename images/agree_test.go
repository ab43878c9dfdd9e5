package images

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Unpacks the same tar with GNU tar and with the store.
func TestUnpackMatchesGNUTar(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	sample, theirs := t.TempDir(), t.TempDir()
	script := `set -e; cd "$1"; mkdir -p a/b/c usr/lib tmp; ln -s usr/lib lib; echo hello >a/b/c/file
		ln a/b/c/file a/hard; ln -s ../nowhere a/dangling
		chmod 1777 tmp; chmod 0640 a/b/c/file; chown 1000:1001 a/b/c/file; chown -h 5:6 a/dangling; : >empty
		printf 'a\0b' >usr/lib/$'new\nline'; truncate -s 1M sparse; printf x >>sparse
		head -c 300000 /dev/urandom >big; touch -d 2001-02-03T04:05:06Z big
		n=$(printf 'long%.0s' {1..40}); mkdir -p $n/$n; echo deep >$n/$n/$n; chmod 0711 a/b
		tar --create --sparse --file ../sample.tar .
		cd "$2"; tar --extract --same-owner --preserve-permissions --file "$1/../sample.tar"`
	if out, err := exec.CommandContext(t.Context(), "bash", "-c", script, "bash", sample,
		theirs).CombinedOutput(); err != nil {
		t.Fatalf("make the sample: %v: %s", err, out)
	}
	s := newStore(t, Limits{})
	image, err := s.ImportPath(t.Context(), filepath.Join(filepath.Dir(sample), "sample.tar"), "sample")
	if err != nil {
		t.Fatal(err)
	}
	ours, err := s.Root(t.Context(), runtime.Image{ID: image.ID})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []string{"workspace", "run/orchestrator", "run", "proc", "sys", "dev", "home/user", "home"} {
		if err := os.Remove(filepath.Join(ours, m)); err != nil {
			t.Fatal(err)
		}
	}
	tell := `cd "$1"; find . -mindepth 1 -printf '%p %y %m %U:%G %n %l ' \
		\( -type f -printf '%s %T@ ' -exec sha256sum {} \; -o -printf '\n' \) | sort`
	var got [2]string
	for i, dir := range []string{theirs, ours} {
		out, err := exec.CommandContext(t.Context(), "bash", "-c", tell, "bash", dir).Output()
		if err != nil {
			t.Fatal(err)
		}
		got[i] = string(out)
	}
	if len(got[0]) < 1000 {
		t.Fatalf("the sample has %d bytes, want at least 1000:\n%s", len(got[0]), got[0])
	}
	// The link counts of directories must match too.
	if diff := cmp.Diff(strings.Split(got[0], "\n"), strings.Split(got[1], "\n")); diff != "" {
		t.Errorf("trees differ (-tar +store):\n%s", diff)
	}
}

// An engine computes the same id for the image it loads.
func TestDockerLoadsSameID(t *testing.T) {
	host := os.Getenv("ORCHESTRATOR_TEST_DOCKER")
	if host == "" {
		t.Skip("ORCHESTRATOR_TEST_DOCKER is not set")
	}
	docker := func(args ...string) string {
		out, err := exec.CommandContext(t.Context(), "docker",
			append([]string{"--host", host}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("docker %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	s := newStore(t, Limits{})
	l1, l2 := mkTar(t, dir("etc"), reg("etc/unique-of-this-test", t.TempDir())), mkTar(t, reg("a", "2"))
	config := mkConfig(t, nil, l1, l2, l1)
	for name, archive := range map[string][]byte{"rootfs": l1, "docker": mkDocker(t, "a:1", config, true, l1, l2, l1),
		"oci": mkTar(t, mkOCI(t, "a:1", config, nil, l1, l2, l1)...)} {
		image, err := s.Import(t.Context(), bytes.NewReader(archive), name)
		if err != nil {
			t.Fatal(err)
		}
		docker("load", "--quiet", "--input", s.archivePath(image.ID))
		t.Cleanup(func() {
			// t.Context is cancelled at cleanup.
			_ = exec.Command("docker", "--host", host, "rmi", "--force", image.ID).Run() // see above
		})
		if got := docker("image", "inspect", "--format", "{{.Id}}", EngineTag(image.ID)); got != image.ID {
			t.Errorf("%s: docker id %s, want %s", name, got, image.ID)
		}
		docker("rmi", "--force", image.ID)
	}
}
