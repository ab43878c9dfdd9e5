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

// slowly carries connections to an address, at a bounded speed. It counts what
// came back.
type slowly struct {
	host string
	came atomic.Int64
	free atomic.Bool // the bound is lifted
}

func carrySlowly(t *testing.T, to string, perSecond int64) *slowly {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &slowly{host: l.Addr().String()}
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
					s.came.Add(n)
					if err != nil {
						return
					}
					if !s.free.Load() {
						time.Sleep(50 * time.Millisecond)
					}
				}
			})
		}
	})
	return s
}

// From a registry with TLS and a login: a template's image is pulled at the
// start; a pull that was killed goes on; the collector leaves what is needed.
func TestImagesFromARegistry(t *testing.T) {
	t.Parallel()
	r := harness.StartRegistry(t)
	digest := r.Push(t, harness.Need(t, harness.EnvArchive), "team/sandbox:1")
	each(t, func(t *testing.T, runtime string) {
		at := r.Host + "/team/sandbox:1"
		s := harness.New(t, harness.Options{Runtime: runtime, Config: fmt.Sprintf(`
templates:
  default:
    image: %s
    limits: {memory: 192MiB, pids: 160}
    pool: {min: 1, max: 4, rate: 10, parallel: 2}
images: {budget: 1B, allow: ["%s/team/*"]}
`, at, r.Host)})
		// Without the login it is not ready, and says why.
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
		list, err := s.Client.Images(t.Context())
		if err != nil || len(list) != 1 || list[0].Ref != at || len(list[0].Digests) != 1 || list[0].Digests[0] != r.Host+"/team/sandbox@"+digest {
			t.Fatalf("images %+v: %v", list, err)
		}
		if got := s.CLI(t, "image", "pull", "--quiet", r.Host+"/team/sandbox@"+digest); got.Code != 0 || got.Stdout != list[0].ID+"\n" || got.Stderr != "" {
			t.Errorf("pull by digest: %+v", got)
		}
		s.CLI(t, "image", "pull", r.Host+"/other/sandbox:1").Is(t, 77, "images.allow")
		s.CLI(t, "image", "pull", r.Host+"/team/nope:1").Is(t, 66, "not found in the registry")
		got, err := s.Client.CollectImages(t.Context(), false)
		if err != nil || len(got.Items) != 1 || got.Items[0].Removed || !strings.Contains(got.Items[0].Why, "needed by template:default") {
			t.Errorf("collected %+v: %v", got, err)
		}
		if n := s.CLI(t, "run", "--", "echo", "still").Stdout; n != "still\n" {
			t.Errorf("after collecting: %q", n)
		}
	})
}

func TestKilledPullResumes(t *testing.T) {
	t.Parallel()
	r := harness.StartRegistry(t)
	archive := harness.Need(t, harness.EnvArchive)
	r.Push(t, archive, "sandbox:1")
	way := carrySlowly(t, r.Host, 10<<20)
	r.Login(t, way.host)
	at := way.host + "/sandbox:1"
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: strings.Replace(onDemand, "default:", "default:\n    image: "+at, 1) + "\nimages: {prepull: false}\n"})
	s.Kill9()
	s.Start(r.Environment()...)
	var last, whole atomic.Int64
	done := make(chan error, 1)
	go func() {
		_, err := s.Client.PullImage(t.Context(), v1.PullRequest{Ref: at}, func(e v1.PullEvent) {
			for _, l := range e.Layers {
				last.Store(l.HaveBytes)
				whole.Store(l.SizeBytes)
			}
		})
		done <- err
	}()
	const enough = 20 << 20
	harness.Eventually(t, harness.Long, "a part of it has come", func() bool { return last.Load() > enough })
	s.Kill9()
	if err := <-done; err == nil {
		t.Fatal("it was pulled before the kill")
	}
	parts, err := filepath.Glob(filepath.Join(s.Dir(), "images", "blobs", "*.part"))
	if err != nil || len(parts) != 1 {
		t.Fatalf("parts %v: %v", parts, err)
	}
	info, err := os.Stat(parts[0])
	if err != nil || info.Size() < enough {
		t.Fatalf("%v: %v", info, err)
	}
	before := way.came.Load()
	way.free.Store(true)
	s.Start(r.Environment()...)
	list, err := s.Client.PullImage(t.Context(), v1.PullRequest{Ref: at}, nil)
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v: %v", list, err)
	}
	// What was here did not come again; manifests and TLS are little.
	if again, missing := way.came.Load()-before, whole.Load()-info.Size(); again > missing+5<<20 {
		t.Errorf("%d bytes came after the kill, %d were missing", again, missing)
	}
	if left, _ := filepath.Glob(filepath.Join(s.Dir(), "images", "blobs", "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	harness.Eventually(t, harness.Long, "the template is ready", func() bool {
		return s.CLI(t, "run", "--", "echo", "here").Stdout == "here\n"
	})
}

// A Dockerfile is built by the engine, from the store and into it; what cannot
// be built leaves nothing.
func TestBuildFromADockerfile(t *testing.T) {
	t.Parallel()
	host := harness.Need(t, harness.EnvDocker)
	each(t, func(t *testing.T, runtime string) {
		s := harness.Run(t, harness.Options{Runtime: runtime, Docker: host, Seed: &seed, Config: onDemand})
		dir := harness.TempDir(t)
		harness.WriteFile(t, filepath.Join(dir, "Dockerfile"), "ARG BASE=orchestrator/sandbox:latest\nFROM $BASE\nARG WORD=none\nCOPY . /ctx\nRUN echo $WORD > /etc/built\n")
		harness.WriteFile(t, filepath.Join(dir, "file"), "content")
		harness.WriteFile(t, filepath.Join(dir, "secret"), "s3cret")
		harness.WriteFile(t, filepath.Join(dir, ".dockerignore"), "secret\n")
		got := s.CLI(t, "image", "build", "-t", "built:"+runtime, "--network", "none", "--build-arg", "WORD=hello", dir)
		_, tag, _ := strings.Cut(got.Stderr, "Successfully tagged ")
		if tag = strings.TrimSpace(tag); got.Code != 0 || !strings.HasPrefix(tag, "orchestrator/build:") {
			t.Fatalf("build: %+v", got)
		}
		if left := harness.Docker(t, "images", "--quiet", tag); left != "" {
			t.Errorf("the engine still has %s", tag)
		}
		s.CLI(t, "image", "build", "-t", "bad", "--build-arg", "BASE=orchestrator/sandbox:latest", "-f", "nope", dir).Is(t, 64, "nope")
		harness.WriteFile(t, filepath.Join(dir, "Dockerfile"), "FROM orchestrator/sandbox:latest\nRUN exit 3\n")
		s.CLI(t, "image", "build", "-t", "bad", "--network", "none", dir).Is(t, 64, "non-zero code: 3")
		if _, err := s.Client.PinImage(t.Context(), "bad", true); err == nil {
			t.Error("a build that failed has made an image")
		}
		s.Configure(strings.Replace(onDemand, "default:", "default:\n    image: built:"+runtime, 1))
		s.Signal(15)
		s.Ended()
		s.Start()
		if got := s.CLI(t, "run", "-c", "cat /etc/built; ls /ctx"); got.Stdout != "hello\nDockerfile\nfile\n" {
			t.Errorf("in a sandbox of it: %+v", got)
		}
	})
}

// A list of packages is made an image without an engine; what cannot be built
// leaves nothing.
func TestBuildFromPackages(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Seed: &seed, Config: onDemand})
	s.CLI(t, "image", "build", "-t", "bad", "--packages", "no-such-package").Is(t, 69, "no-such-package")
	s.CLI(t, "image", "build", "-t", "bad", "--packages", "x;reboot").Is(t, 64, "x;reboot")
	if got := s.CLI(t, "image", "build", "-q", "-t", "listed:1", "--packages", "busybox"); got.Code != 0 || len(got.Stdout) < 12 {
		t.Fatalf("build: %+v", got)
	}
	if _, err := s.Client.PinImage(t.Context(), "bad", true); err == nil {
		t.Error("a build that failed has made an image")
	}
	s.Configure(strings.Replace(onDemand, "default:", "default:\n    image: listed:1\n    entrypoint: []", 1))
	s.Signal(15)
	s.Ended()
	s.Start()
	if got := s.CLI(t, "run", "-c", "busybox echo here; id -u"); got.Stdout != "here\n1000\n" {
		t.Errorf("in a sandbox of it: %+v", got)
	}
}
