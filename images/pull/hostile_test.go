package pull

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandbox-orchestrator/orchestrator/images/registry"
)

// noise returns n bytes that do not compress.
func noise(n int) string {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return string(b)
}

// blobOf returns the path of a layer in the registry, its digest and its content.
func blobOf(tb testing.TB, l v1.Layer) (part, sum string, content []byte) {
	tb.Helper()
	h, err := l.Digest()
	if err != nil {
		tb.Fatal(err)
	}
	r, err := l.Compressed()
	if err != nil {
		tb.Fatal(err)
	}
	defer r.Close()
	if content, err = io.ReadAll(r); err != nil {
		tb.Fatal(err)
	}
	return "/blobs/" + h.String(), h.String(), content
}

// cut sends n bytes of the requested range and then closes the connection.
func cut(w http.ResponseWriter, r *http.Request, content []byte, n int) {
	from := 0
	if s := r.Header.Get("Range"); s != "" {
		from, _ = strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(s, "bytes="), "-"))
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(content)-1, len(content)))
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(content)-from))
	if from > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	_, _ = w.Write(content[from:min(len(content), from+n)])
	if from+n < len(content) {
		panic(http.ErrAbortHandler)
	}
}

func TestDownloadResumesAfterDisconnect(t *testing.T) {
	s := newSite(t)
	l := layer(t, "f", noise(1<<20))
	at := s.push(t, "cut", image(t, l))
	path, _, content := blobOf(t, l)
	var sent atomic.Int64
	s.on(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, path) {
			sent.Add(100_000)
			cut(w, r, content, 100_000)
			return true
		}
		return false
	})
	w := newWorld(t, s, nil)
	if _, err := w.pull(t, at); err != nil {
		t.Fatal(err)
	}
	if n := sent.Load(); n > int64(len(content))+200_000 {
		t.Errorf("registry sent %d bytes for a blob of %d, want at most 200000 more", n, len(content))
	}
	if s.count("bytes=") < 9 {
		t.Errorf("%d range requests, want at least 9", s.count("bytes="))
	}
}

// A new process resumes the download of an earlier one, even if its file is damaged.
func TestDownloadResumesAfterRestart(t *testing.T) {
	l := layer(t, "f", noise(1<<20))
	path, sum, content := blobOf(t, l)
	for name, damage := range map[string]func(path string) error{
		"whole":   func(string) error { return nil },
		"damaged": func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte{7}, 1000), 0o600) },
		"longer":  func(path string) error { return os.Truncate(path, 4<<20) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			at := s.push(t, "next", image(t, l))
			var first atomic.Bool
			s.on(func(w http.ResponseWriter, r *http.Request) bool {
				switch {
				case !strings.HasSuffix(r.URL.Path, path):
					return false
				case first.CompareAndSwap(false, true):
					cut(w, r, content, 300_000)
				default:
					panic(http.ErrAbortHandler)
				}
				return true
			})
			dir := filepath.Join(memory(t), "images")
			w := worldIn(t, dir, s, nil)
			if _, err := w.pull(t, at); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "are kept") {
				t.Fatalf("pull with repeated disconnects: %v, want Unavailable", err)
			}
			part := filepath.Join(dir, "blobs", strings.TrimPrefix(sum, "sha256:")+registry.PartSuffix)
			if info, err := os.Stat(part); err != nil || info.Size() < 100_000 {
				t.Fatalf("partial file: %v, %v; want at least 100000 bytes", info, err)
			}
			if err := damage(part); err != nil {
				t.Fatal(err)
			}
			s.on(nil)
			s.forget()
			w = worldIn(t, dir, s, nil)
			if _, err := w.pull(t, at); err != nil {
				t.Fatal(err)
			}
			if ranges := s.count("bytes="); (ranges > 0) != (name != "longer") {
				t.Errorf("%d range requests, want some: %v", ranges, name != "longer")
			}
			if left := w.blobs(t); len(left) > 0 {
				t.Errorf("leftover blobs = %v, want none", left)
			}
		})
	}
}

// response answers a request instead of the registry, and reports whether it did.
type response func(w http.ResponseWriter, r *http.Request) bool

// badResponse is a response with the text of the expected error.
type badResponse struct {
	do   response
	want string
}

// blobAt answers requests for the blob at path.
func blobAt(path string, do http.HandlerFunc) response {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, path) {
			return false
		}
		do(w, r)
		return true
	}
}

// manifest answers requests for manifests.
func manifest(do http.HandlerFunc) response {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		do(w, r)
		return true
	}
}

// endless sends data until the client disconnects.
func endless(w http.ResponseWriter, r *http.Request) {
	piece := bytes.Repeat([]byte("x"), 64<<10)
	for r.Context().Err() == nil {
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

// badBlobs returns wrong responses for the blob at path.
func badBlobs(path string, content []byte) map[string]badResponse {
	other := []byte(noise(len(content) + 1)[1:])
	blob := func(do http.HandlerFunc) response { return blobAt(path, do) }
	return map[string]badResponse{
		"other content": {blob(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(other[:len(content)])
		}), "content has digest"},
		"other length": {blob(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content[:1000]) }),
			"reports 1000 bytes"},
		"endless blob": {blob(endless), "sent more than"},
		"another range": {blob(func(w http.ResponseWriter, r *http.Request) { otherRange(w, r, content) }),
			"answered a request for bytes from 50000 with"},
		"all for a range": {blob(func(w http.ResponseWriter,
			r *http.Request) {
			allForRange(w, r, content, other)
		}), "content has digest"},
		"byte by byte": {blob(func(w http.ResponseWriter, r *http.Request) { drip(w, r, content) }),
			"sent less than 1024 bytes in"},
		"silence": {blob(func(w http.ResponseWriter, r *http.Request) { silence(w, r, content) }),
			"sent less than 1024 bytes in"},
	}
}

// badDocuments returns well-formed manifests with content that must be refused.
func badDocuments(t *testing.T) map[string]badResponse {
	t.Helper()
	descriptor := func(n int, size int64) imagespec.Descriptor {
		return imagespec.Descriptor{MediaType: imagespec.MediaTypeImageLayerGzip,
			Digest: digest.FromString(strconv.Itoa(n)), Size: size}
	}
	document := func(v any, kind string) func(http.ResponseWriter, *http.Request) {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(raw)
		}
	}
	many := imagespec.Manifest{MediaType: imagespec.MediaTypeImageManifest, Config: descriptor(0, 10)}
	many.SchemaVersion, many.Config.MediaType = 2, imagespec.MediaTypeImageConfig
	huge, negative, foreign := many, many, many
	for i := range 1000 {
		many.Layers = append(many.Layers, descriptor(i, 1))
	}
	huge.Layers = []imagespec.Descriptor{descriptor(1, 1<<62), descriptor(2, 1<<62), descriptor(3, 1<<62)}
	negative.Layers = []imagespec.Descriptor{descriptor(1, -5)}
	foreign.Layers = []imagespec.Descriptor{{MediaType: "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
		Digest: digest.FromString("x"), Size: 1, URLs: []string{"http://evil.example/x"}}}
	index := imagespec.Index{MediaType: imagespec.MediaTypeImageIndex}
	index.SchemaVersion = 2
	for i := range 2000 {
		index.Manifests = append(index.Manifests, descriptor(i, 1))
	}
	return map[string]badResponse{
		"old manifest": {manifest(document(map[string]any{"schemaVersion": 1},
			"application/vnd.docker.distribution.manifest.v1+json")), "schema version 1"},
		"two media types": {manifest(document(index, imagespec.MediaTypeImageManifest)),
			"but the registry sent"},
		"thousands of entries": {manifest(document(index, imagespec.MediaTypeImageIndex)), "2000 entries"},
		"thousands of layers": {manifest(document(many, imagespec.MediaTypeImageManifest)),
			"1000 layers, more than 127"},
		"huge layers":    {manifest(document(huge, imagespec.MediaTypeImageManifest)), "layers are larger than"},
		"negative layer": {manifest(document(negative, imagespec.MediaTypeImageManifest)), "invalid size of blob"},
		"foreign layers": {manifest(document(foreign, imagespec.MediaTypeImageManifest)), "unsupported media type"},
	}
}

// badAnswers returns wrong responses to requests for manifests.
func badAnswers() map[string]badResponse {
	return map[string]badResponse{
		"endless manifest": {manifest(endless), "response is too long"},
		"endless error": {manifest(func(w http.ResponseWriter,
			r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			endless(w, r)
		}), "requires credentials"},
		"endless ping": {func(w http.ResponseWriter, r *http.Request) bool { endless(w, r); return true },
			"response is too long"},
		"huge header": {manifest(func(w http.ResponseWriter,
			_ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
		}), "header"},
		"invalid JSON": {manifest(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }),
			"is not valid JSON"},
		"too many requests": {manifest(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }),
			"too many requests"},
		"long Retry-After": {manifest(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "86400")
			w.WriteHeader(http.StatusTooManyRequests)
		}), "too many requests"},
		"broken": {manifest(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }), "status 500"},
		"redirect loop": {manifest(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"x", http.StatusTemporaryRedirect)
		}), "redirects"},
		"redirect without TLS": {manifest(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.2:1/x", http.StatusTemporaryRedirect)
		}), "images.insecure"},
		"redirect to a file": {manifest(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "file:///etc/passwd", http.StatusTemporaryRedirect)
		}), "images.insecure"},
	}
}

// A registry that sends wrong, endless or slow responses causes a clear error in bounded time.
func TestMaliciousRegistry(t *testing.T) {
	t.Parallel()
	l := layer(t, "f", noise(200_000))
	img := image(t, l)
	path, _, content := blobOf(t, l)
	cases := badBlobs(path, content)
	maps.Copy(cases, badDocuments(t))
	maps.Copy(cases, badAnswers())
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			at := s.push(t, "evil", img)
			s.on(c.do)
			w := newWorld(t, s, func(_ *Options, r *registry.Options) { r.Stall = 500 * time.Millisecond })
			began := time.Now()
			_, err := w.pull(t, at)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("pull = %v, want %q", err, c.want)
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("pull took %s, want at most %s", took, patience/2)
			}
			if len(err.Error()) > 1500 || !errdefs.IsFailedPrecondition(err) && !errdefs.IsUnavailable(err) &&
				!errdefs.IsResourceExhausted(err) && !errdefs.IsNotImplemented(err) {
				t.Errorf("pull = %v, want an error of an expected class with at most 1500 bytes", err)
			}
			if got := w.store.List(); len(got) > 0 {
				t.Errorf("images: %v, want none", got)
			}
		})
	}
}

// otherRange sends a part, and then another range than requested.
func otherRange(w http.ResponseWriter, r *http.Request, content []byte) {
	if r.Header.Get("Range") == "" {
		cut(w, r, content, 50_000)
	}
	w.Header().Set("Content-Range", fmt.Sprintf("bytes 10-%d/%d", len(content)-1, len(content)))
	w.WriteHeader(http.StatusPartialContent)
	_, _ = w.Write(content[10:])
}

// allForRange sends a part, and then the full content of another blob.
func allForRange(w http.ResponseWriter, r *http.Request, content, other []byte) {
	if r.Header.Get("Range") == "" {
		cut(w, r, content, 50_000)
	}
	_, _ = w.Write(other[:len(content)])
}

func drip(w http.ResponseWriter, r *http.Request, content []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	for r.Context().Err() == nil {
		_, _ = w.Write([]byte("x"))
		_ = http.NewResponseController(w).Flush()
		time.Sleep(10 * time.Millisecond)
	}
}

func silence(w http.ResponseWriter, r *http.Request, content []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// A registry without range support works.
func TestRegistryWithoutRanges(t *testing.T) {
	s := newSite(t)
	l := layer(t, "f", noise(200_000))
	at := s.push(t, "plain", image(t, l))
	path, _, content := blobOf(t, l)
	var n atomic.Int32
	s.on(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, path) {
			return false
		}
		r.Header.Del("Range")
		if n.Add(1) == 1 {
			cut(w, r, content, 1000)
		}
		_, _ = w.Write(content)
		return true
	})
	if _, err := newWorld(t, s, nil).pull(t, at); err != nil {
		t.Fatal(err)
	}
}

func TestRetryAfter(t *testing.T) {
	s := newSite(t)
	at := s.push(t, "busy", image(t, layer(t, "f", "x")))
	var n atomic.Int32
	s.on(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/manifests/") && n.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return true
		}
		return false
	})
	began := time.Now()
	if _, err := newWorld(t, s, nil).pull(t, at); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("retried after %s, want at least 1s", took)
	}
}

// Credentials are not sent after a redirect to another host.
func TestRedirectsDropCredentials(t *testing.T) {
	s := newSite(t)
	l := layer(t, "f", noise(1000))
	at := s.push(t, "private", image(t, l))
	path, _, content := blobOf(t, l)
	var leaked atomic.Value
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaked.Store(r.Header.Get("Authorization"))
		_, _ = w.Write(content)
	}))
	defer elsewhere.Close()
	s.on(func(w http.ResponseWriter, r *http.Request) bool {
		if user, secret, _ := r.BasicAuth(); user != "ann" || secret != "s3cret" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		}
		if strings.HasSuffix(r.URL.Path, path) {
			http.Redirect(w, r, elsewhere.URL+"/blob?signature=s1gned", http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	config := t.TempDir()
	if err := os.WriteFile(filepath.Join(config, "config.json"),
		[]byte(`{"auths":{"`+s.host+`":{"username":"ann","password":"s3cret"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	use := func(o *registry.Options) {
		o.Environment = func(name string) (string, bool) { return config, name == "DOCKER_CONFIG" }
	}
	w := newWorld(t, s, func(_ *Options, o *registry.Options) {
		use(o)
		o.Insecure = append(o.Insecure, strings.TrimPrefix(elsewhere.URL, "http://"))
	})
	if _, err := w.pull(t, at); err != nil {
		t.Fatal(err)
	}
	if got := leaked.Load(); got != "" {
		t.Errorf("the other host got Authorization %q, want none", got)
	}
	// A URL with a signature does not appear in errors.
	elsewhere.Close()
	w = newWorld(t, s, func(_ *Options, o *registry.Options) {
		use(o)
		o.Insecure = append(o.Insecure, strings.TrimPrefix(elsewhere.URL, "http://"))
	})
	if _, err := w.pull(t, at); err == nil || strings.Contains(err.Error(), "s1gned") ||
		strings.Contains(err.Error(), "s3cret") {
		t.Errorf("error %v, want one without secrets", err)
	}
}

func TestFullDiskLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := newSite(t)
	at := s.push(t, "large", image(t, layer(t, "f", noise(2<<20))))
	w := worldIn(t, filepath.Join(dir, "images"), s, nil)
	if _, err := w.pull(t, at); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "image gc") {
		t.Errorf("pull of a large blob: %v, want ResourceExhausted", err)
	}
	// A blob that fits may not fit unpacked.
	at = s.push(t, "zeros", image(t, layer(t, "f", strings.Repeat("0", 2<<20))))
	if _, err := w.pull(t, at); !errdefs.IsResourceExhausted(err) {
		t.Errorf("pull of a large layer: %v, want ResourceExhausted", err)
	}
	for _, kind := range []string{"tmp", "archives", "roots"} {
		if entries, err := os.ReadDir(filepath.Join(dir, "images", kind)); err != nil || len(entries) > 0 {
			t.Errorf("directory %s: %v, %v; want it empty", kind, entries, err)
		}
	}
}
