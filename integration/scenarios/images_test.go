//go:build integration

package scenarios

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// throttledProxy forwards connections to an address and bounds the speed of the answers.
type throttledProxy struct {
	host      string
	received  atomic.Int64 // bytes that the address has sent
	unlimited atomic.Bool
}

// newThrottledProxy forwards to an address at a speed in bytes per second, until the end of the
// test.
func newThrottledProxy(t *testing.T, to string, perSecond int64) *throttledProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &throttledProxy{host: l.Addr().String()}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to)
			if err != nil {
				down.Close()
				continue
			}
			all.Go(func() {
				_, _ = io.Copy(up, down)
				up.Close()
			})
			all.Go(func() {
				defer down.Close()
				piece := perSecond / 20
				for {
					n, err := io.CopyN(down, up, piece)
					s.received.Add(n)
					if err != nil {
						return
					}
					if !s.unlimited.Load() {
						time.Sleep(50 * time.Millisecond)
					}
				}
			})
		}
	})
	return s
}

// TestImagesFromARegistry uses a registry with TLS and a login. A template's image must be pulled
// at the start, with the login only, and the collector must keep images that are in use.
func TestImagesFromARegistry(t *testing.T) {
	t.Parallel()
	r := harness.StartRegistry(t)
	digest := r.Push(t, harness.Need(t, harness.EnvArchive), "team/sandbox:1")
	onRuntimes(t, func(t *testing.T, runtime string) {
		at := r.Host + "/team/sandbox:1"
		s := harness.New(t, harness.Options{Runtime: runtime, Config: fmt.Sprintf(`
templates:
  default:
    image: %s
    limits: {memory: 192MiB, pids: 160}
    pool: {min: 1, max: 4, rate: 10, parallel: 2}
images: {budget: 1B, allow: ["%s/team/*"]}
`, at, r.Host)})
		// Without the login the template is not ready, with the reason.
		s.Begin("SSL_CERT_FILE=" + r.CA)
		harness.Eventually(t, harness.Long, "the template says why it is not ready", func() bool {
			got := s.CLI(t, "run", "--", "true")
			return got.Code != 0 && strings.Contains(got.Stderr, "not ready") && strings.Contains(got.Stderr, "docker login")
		})
		s.Kill9()
		s.Start(r.Environment()...)
		harness.Eventually(t, harness.Long, "the template is ready", func() bool {
			return s.CLI(t, "run", "--", "echo", "here").Stdout == "here\n"
		})
		list, err := s.Client.Images.List(t.Context())
		if err != nil || len(list) != 1 {
			t.Fatalf("Images = %+v, %v; want one", list, err)
		}
		image, byDigest := list[0], r.Host+"/team/sandbox@"+digest
		if image.Ref != at || len(image.Digests) != 1 || image.Digests[0] != byDigest {
			t.Fatalf("Images = %+v, want reference %s with digest %s", list, at, byDigest)
		}
		if got := s.CLI(t, "image", "pull", "--quiet", byDigest); got.Code != 0 || got.Stdout != image.ID+"\n" ||
			got.Stderr != "" {
			t.Errorf("image pull by digest = %+v, want only the id %s", got, image.ID)
		}
		s.CLI(t, "image", "pull", r.Host+"/other/sandbox:1").Is(t, 77, "images.allow")
		s.CLI(t, "image", "pull", r.Host+"/team/nope:1").Is(t, 66, "not found in the registry")
		got, err := s.Client.Images.Collect(t.Context(), false)
		kept := err == nil && len(got.Items) == 1 && !got.Items[0].Removed
		if !kept || !strings.Contains(got.Items[0].Why, "needed by template:default") {
			t.Errorf("CollectImages = %+v, %v; want the image kept because the template needs it", got, err)
		}
		if n := s.CLI(t, "run", "--", "echo", "still").Stdout; n != "still\n" {
			t.Errorf("a run after the collection printed %q, want still", n)
		}
	})
}

// TestKilledPullResumes kills the service during a pull. The next pull must transfer only what is
// missing.
func TestKilledPullResumes(t *testing.T) {
	t.Parallel()
	r := harness.StartRegistry(t)
	archive := harness.Need(t, harness.EnvArchive)
	r.Push(t, archive, "sandbox:1")
	proxy := newThrottledProxy(t, r.Host, 10<<20)
	r.Login(t, proxy.host)
	at := proxy.host + "/sandbox:1"
	config := strings.Replace(onDemand, "default:", "default:\n    image: "+at, 1) + "\nimages: {prepull: false}\n"
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: config})
	s.Kill9()
	s.Start(r.Environment()...)
	var have, size atomic.Int64
	done := make(chan error, 1)
	go func() { // the result is received from done
		_, err := s.Client.Images.Pull(t.Context(), v1.PullRequest{Ref: at}, func(e v1.PullEvent) {
			for _, l := range e.Layers {
				have.Store(l.HaveBytes)
				size.Store(l.SizeBytes)
			}
		})
		done <- err
	}()
	const enough = 20 << 20
	harness.Eventually(t, harness.Long, "a part of the image is pulled", func() bool { return have.Load() > enough })
	s.Kill9()
	if err := <-done; err == nil {
		t.Fatal("the pull succeeded before the service was killed, want error")
	}
	parts, err := filepath.Glob(filepath.Join(s.Dir(), "images", "blobs", "*.part"))
	if err != nil || len(parts) != 1 {
		t.Fatalf("partial files = %v, %v; want one", parts, err)
	}
	info, err := os.Stat(parts[0])
	if err != nil || info.Size() < enough {
		t.Fatalf("partial file = %v, %v; want at least %d bytes", info, err, enough)
	}
	before := proxy.received.Load()
	proxy.unlimited.Store(true)
	s.Start(r.Environment()...)
	list, err := s.Client.Images.Pull(t.Context(), v1.PullRequest{Ref: at}, nil)
	if err != nil || len(list) != 1 {
		t.Fatalf("PullImage after the kill = %+v, %v; want one image", list, err)
	}
	// Manifests and TLS add up to little.
	again, missing := proxy.received.Load()-before, size.Load()-info.Size()
	if again > missing+5<<20 {
		t.Errorf("%d bytes were transferred after the kill, want about the %d that were missing", again, missing)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Dir(), "images", "blobs", "*")); len(left) > 0 {
		t.Errorf("files left in the blob store: %v, want none", left)
	}
	harness.Eventually(t, harness.Long, "the template is ready", func() bool {
		return s.CLI(t, "run", "--", "echo", "here").Stdout == "here\n"
	})
}

// TestBuildFromADockerfile builds an image with the engine, from the image store and into it. A
// failed build must leave no image.
func TestBuildFromADockerfile(t *testing.T) {
	t.Parallel()
	host := harness.Need(t, harness.EnvDocker)
	onRuntimes(t, func(t *testing.T, runtime string) {
		s := harness.Run(t, harness.Options{Runtime: runtime, Docker: host, Seed: &seed, Config: onDemand})
		dir := harness.TempDir(t)
		harness.WriteFile(t, filepath.Join(dir, "Dockerfile"), `ARG BASE=orchestrator/sandbox:latest
FROM $BASE
ARG WORD=none
COPY . /ctx
RUN echo $WORD > /etc/built
`)
		harness.WriteFile(t, filepath.Join(dir, "file"), "content")
		harness.WriteFile(t, filepath.Join(dir, "secret"), "s3cret")
		harness.WriteFile(t, filepath.Join(dir, ".dockerignore"), "secret\n")
		got := s.CLI(t, "image", "build", "-t", "built:"+runtime, "--network", "none", "--build-arg", "WORD=hello", dir)
		_, tag, _ := strings.Cut(got.Stderr, "Successfully tagged ")
		if tag = strings.TrimSpace(tag); got.Code != 0 || !strings.HasPrefix(tag, "orchestrator/build:") {
			t.Fatalf("image build = %+v, want success and a tag orchestrator/build", got)
		}
		if left := harness.Docker(t, "images", "--quiet", tag); left != "" {
			t.Errorf("the engine still has the built image %s, want it removed", tag)
		}
		s.CLI(t, "image", "build", "-t", "bad", "--build-arg", "BASE=orchestrator/sandbox:latest",
			"-f", "nope", dir).Is(t, 64, "nope")
		harness.WriteFile(t, filepath.Join(dir, "Dockerfile"), "FROM orchestrator/sandbox:latest\nRUN exit 3\n")
		s.CLI(t, "image", "build", "-t", "bad", "--network", "none", dir).Is(t, 64, "non-zero code: 3")
		if _, err := s.Client.Images.Pin(t.Context(), "bad", true); err == nil {
			t.Error("Pin of an image whose build failed succeeded, want error")
		}
		s.Configure(strings.Replace(onDemand, "default:", "default:\n    image: built:"+runtime, 1))
		s.Signal(15)
		s.Ended()
		s.Start()
		if got := s.CLI(t, "run", "-c", "cat /etc/built; ls /ctx"); got.Stdout != "hello\nDockerfile\nfile\n" {
			t.Errorf("a run with the built image = %+v, want the word and the files of the context", got)
		}
	})
}

// TestBuildFromPackages builds an image from a list of packages, without an engine. A failed build
// must leave no image.
func TestBuildFromPackages(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Seed: &seed, Config: onDemand})
	s.CLI(t, "image", "build", "-t", "bad", "--packages", "no-such-package").Is(t, 69, "no-such-package")
	s.CLI(t, "image", "build", "-t", "bad", "--packages", "x;reboot").Is(t, 64, "x;reboot")
	got := s.CLI(t, "image", "build", "-q", "-t", "listed:1", "--packages", "busybox")
	if got.Code != 0 || len(got.Stdout) < 12 {
		t.Fatalf("image build = %+v, want success and the image's id", got)
	}
	if _, err := s.Client.Images.Pin(t.Context(), "bad", true); err == nil {
		t.Error("Pin of an image whose build failed succeeded, want error")
	}
	s.Configure(strings.Replace(onDemand, "default:", "default:\n    image: listed:1\n    entrypoint: []", 1))
	s.Signal(15)
	s.Ended()
	s.Start()
	got = s.CLI(t, "run", "-c", "busybox echo here; id -u")
	if got.Stdout != "here\n1000\n" {
		t.Errorf("a run with the built image = %+v, want here and id 1000", got)
	}
}
