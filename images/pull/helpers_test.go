package pull

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	served "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/ref"
	"github.com/sandbox-orchestrator/orchestrator/images/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds waits on a busy machine.
const patience = 2 * time.Minute

// site is a test registry. before may answer a request itself.
type site struct {
	host string
	mu   sync.Mutex
	// seen lists requests as "METHOD path range".
	seen   []string
	before func(w http.ResponseWriter, r *http.Request) bool
}

func newSite(tb testing.TB) *site {
	tb.Helper()
	s := &site{}
	inner := served.New(served.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.seen = append(s.seen, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Range")))
		before := s.before
		s.mu.Unlock()
		if before != nil && before(w, r) {
			return
		}
		inner.ServeHTTP(w, r)
	}))
	tb.Cleanup(srv.Close)
	tb.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	s.host = strings.TrimPrefix(srv.URL, "http://")
	return s
}

func (s *site) on(before func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

// count returns the number of requests since the last forget that contain all parts.
func (s *site) count(parts ...string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
next:
	for _, line := range s.seen {
		for _, p := range parts {
			if !strings.Contains(line, p) {
				continue next
			}
		}
		n++
	}
	return n
}

func (s *site) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = nil
}

// push stores an image under a name and returns its reference.
func (s *site) push(tb testing.TB, at string, img v1.Image) string {
	tb.Helper()
	text := s.host + "/" + at
	r, err := name.ParseReference(text)
	if err != nil {
		tb.Fatal(err)
	}
	before := s.before
	s.on(nil)
	if err := remote.Write(r, img); err != nil {
		tb.Fatal(err)
	}
	s.on(before)
	s.forget()
	return text
}

func (s *site) pushIndex(tb testing.TB, at string, x v1.ImageIndex) string {
	tb.Helper()
	text := s.host + "/" + at
	r, err := name.ParseReference(text)
	if err != nil {
		tb.Fatal(err)
	}
	if err := remote.WriteIndex(r, x); err != nil {
		tb.Fatal(err)
	}
	s.forget()
	return text
}

// layer returns a layer with one file.
func layer(tb testing.TB, file, content string) v1.Layer {
	tb.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file, Mode: 0o644,
		Size: int64(len(content))}); err != nil {
		tb.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())),
			nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// image returns an image for this host with these layers.
func image(tb testing.TB, layers ...v1.Layer) v1.Image {
	tb.Helper()
	return imageFor(tb, goruntime.GOARCH, layers...)
}

func imageFor(tb testing.TB, arch string, layers ...v1.Layer) v1.Image {
	tb.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	c = c.DeepCopy()
	c.Architecture, c.OS = arch, "linux"
	c.Config.Env = []string{"PATH=/bin"}
	if img, err = mutate.ConfigFile(img, c); err != nil {
		tb.Fatal(err)
	}
	return img
}

func digestOf(tb testing.TB, x interface{ Digest() (v1.Hash, error) }) string {
	tb.Helper()
	h, err := x.Digest()
	if err != nil {
		tb.Fatal(err)
	}
	return h.String()
}

// world is a store with a Puller for it.
type world struct {
	dir   string
	store *images.Store
	*Puller
}

// memory returns a directory on a tmpfs if possible.
func memory(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "orchestrator-pull-*")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

func newWorld(tb testing.TB, s *site, change func(*Options, *registry.Options)) *world {
	tb.Helper()
	return worldIn(tb, filepath.Join(memory(tb), "images"), s, change)
}

func worldIn(tb testing.TB, dir string, s *site, change func(*Options, *registry.Options)) *world {
	tb.Helper()
	store, err := images.Open(images.Options{Dir: dir})
	if err != nil {
		tb.Fatal(err)
	}
	o := Options{Store: store}
	ro := registry.Options{
		Insecure: []string{s.host}, Pause: time.Millisecond, Patience: 2 * time.Second,
		Environment: func(string) (string, bool) { return "", false },
	}
	if change != nil {
		change(&o, &ro)
	}
	o.Registry = registry.New(ro)
	p := New(o)
	tb.Cleanup(func() { p.Close() })
	return &world{dir, store, p}
}

// blobs returns the names of the files of unfinished downloads.
func (w *world) blobs(tb testing.TB) []string {
	tb.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dir, "blobs"))
	if err != nil {
		tb.Fatal(err)
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func (w *world) pull(tb testing.TB, text string) (images.Image, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	return w.Pull(ctx, text, nil)
}

func list(tb testing.TB, patterns ...string) ref.List {
	tb.Helper()
	l, err := ref.ParseList(patterns)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}
