package pull

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/sandbox-orchestrator/orchestrator/images/registry"
)

func TestPullByTagAndByDigest(t *testing.T) {
	s := newSite(t)
	img := image(t, layer(t, "a", "one"), layer(t, "b", "two"))
	at := s.push(t, "team/app:1", img)
	w := newWorld(t, s, nil)
	var phases []string
	got, err := w.Pull(t.Context(), at, func(p Progress) { phases = append(phases, p.Phase) })
	if err != nil {
		t.Fatal(err)
	}
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != id.String() || !slices.Equal(got.Refs, []string{at}) || got.Format != "registry" {
		t.Errorf("Pull = %+v, want id %s, name %s, format registry", got, id, at)
	}
	pinned := s.host + "/team/app@" + digestOf(t, img)
	if !slices.Equal(got.Digests, []string{pinned}) {
		t.Errorf("digests = %v, want %s", got.Digests, pinned)
	}
	if phases[0] != Resolving {
		t.Errorf("phases %v, want %s first", phases, Resolving)
	}
	if left := w.blobs(t); len(left) > 0 {
		t.Errorf("leftover blobs = %v, want none", left)
	}
	found, err := w.store.Resolve(pinned)
	if err != nil || found.ID != got.ID {
		t.Fatalf("Resolve(%s) = %+v, %v; want id %s", pinned, found, err, got.ID)
	}
	root, err := w.store.Root(t.Context(), found)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"a": "one", "b": "two"} {
		if b, err := os.ReadFile(filepath.Join(root, file)); err != nil || string(b) != want {
			t.Errorf("file %s = %q, %v; want %q", file, b, err, want)
		}
	}
	// A pull by digest adds no name and does not download stored layers again.
	if err := w.store.Remove(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	got, err = w.pull(t, pinned)
	if err != nil || len(got.Refs) != 0 || !slices.Equal(got.Digests, []string{pinned}) {
		t.Errorf("Pull by digest = %+v, %v; want no name, the digest %s", got, err, pinned)
	}
	s.forget()
	if _, err := w.pull(t, pinned); err != nil || s.count("/blobs/") != 1 { // the configuration
		t.Errorf("second pull by digest: %d blobs, %v; want only the configuration", s.count("/blobs/"), err)
	}
}

func TestStoredLayersAreNotDownloaded(t *testing.T) {
	s := newSite(t)
	base := layer(t, "base", strings.Repeat("base", 1000))
	one := s.push(t, "one", image(t, base, layer(t, "x", "1")))
	two := s.push(t, "two", image(t, base, layer(t, "x", "2"), base))
	w := newWorld(t, s, nil)
	if _, err := w.pull(t, one); err != nil {
		t.Fatal(err)
	}
	s.forget()
	got, err := w.pull(t, two)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.count("/blobs/"); n != 2 { // configuration and one layer
		t.Errorf("downloaded %d blobs, want 2", n)
	}
	if err := w.store.Remove(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if found, err := w.store.Resolve(got.ID); err != nil {
		t.Error(err)
	} else if _, err := w.store.Root(t.Context(), found); err != nil {
		t.Error(err)
	}
}

func TestVariantForThisHost(t *testing.T) {
	s := newSite(t)
	own, other := image(t, layer(t, "f", "own")), imageFor(t, "riscv64", layer(t, "f", "other"))
	add := func(img v1.Image, arch, variant string) mutate.IndexAddendum {
		return mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch, Variant: variant}}}
	}
	w := newWorld(t, s, nil)
	arch := w.store.Architecture()
	x := mutate.AppendManifests(empty.Index, add(other, "riscv64", ""),
		add(image(t, layer(t, "f", "newer")), arch, "v4"), add(own, arch, ""),
		mutate.IndexAddendum{Add: image(t, layer(t, "f", "attestation")),
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}})
	got, err := w.pull(t, s.pushIndex(t, "multi", x))
	if err != nil {
		t.Fatal(err)
	}
	id, _ := own.ConfigName()
	want := []string{s.host + "/multi@" + digestOf(t, x), s.host + "/multi@" + digestOf(t, own)}
	if got.ID != id.String() || !slices.Equal(got.Digests, want) {
		t.Errorf("Pull = %+v, want id %s and digests %v", got, id, want)
	}
	for _, by := range want {
		if found, err := w.store.Resolve(by); err != nil || found.ID != got.ID {
			t.Errorf("Resolve(%s) = %v, %v; want id %s", by, found, err, got.ID)
		}
	}
	none := s.pushIndex(t, "none", mutate.AppendManifests(empty.Index, add(other, "riscv64", "")))
	if _, err := w.pull(t, none); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "no variant for linux/"+arch+", only for linux/riscv64") {
		t.Errorf("pull without a variant: %v, want FailedPrecondition", err)
	}
	nested := empty.Index
	deep := x
	for range 3 {
		deep = mutate.AppendManifests(nested,
			mutate.IndexAddendum{Add: deep,
				Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	if _, err := w.pull(t, s.pushIndex(t, "deep", deep)); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "nested") {
		t.Errorf("pull of nested indexes: %v, want FailedPrecondition", err)
	}
}

func TestConcurrentPullsShareDownload(t *testing.T) {
	s := newSite(t)
	at := s.push(t, "shared", image(t, layer(t, "f", "content")))
	held, free := make(chan struct{}, 100), make(chan struct{})
	s.on(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			held <- struct{}{}
			select {
			case <-free:
			case <-r.Context().Done():
			}
		}
		return false
	})
	w := newWorld(t, s, nil)
	impatient, leave := context.WithCancel(t.Context())
	errs := make(chan error, 4)
	var all sync.WaitGroup
	for i := range 4 {
		ctx := t.Context()
		if i == 0 {
			ctx = impatient
		}
		all.Go(func() {
			_, err := w.Pull(ctx, at, nil)
			if i == 0 && errors.Is(err, context.Canceled) {
				err = nil
			}
			errs <- err
		})
	}
	<-held
	// A caller that joins after the end of the pull correctly starts a new one.
	for end := time.Now().Add(patience); w.waiting() < 4 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	leave()
	close(free)
	all.Wait()
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := s.count("GET", "/blobs/"); n != 2 {
		t.Errorf("downloaded %d blobs for four callers, want 2", n)
	}
}

// waiting returns the number of callers that wait for a pull.
func (w *world) waiting() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.active {
		f.mu.Lock()
		n += f.waiting
		f.mu.Unlock()
	}
	return n
}

func TestPullStopsWithLastCaller(t *testing.T) {
	s := newSite(t)
	at := s.push(t, "left", image(t, layer(t, "f", "content")))
	held, gone := make(chan struct{}, 10), make(chan struct{}, 10)
	s.on(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			held <- struct{}{}
			<-r.Context().Done()
			gone <- struct{}{}
			return true
		}
		return false
	})
	w := newWorld(t, s, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := w.Pull(ctx, at, nil)
		done <- err
	}()
	<-held
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Pull = %v, want Canceled", err)
	}
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the request was not cancelled, want it cancelled with the pull")
	}
	s.on(nil)
	if _, err := w.pull(t, at); err != nil {
		t.Errorf("pull after a cancelled one = %v, want no error", err)
	}
	// Close cancels running pulls.
	s.on(func(_ http.ResponseWriter, r *http.Request) bool {
		held <- struct{}{}
		<-r.Context().Done()
		return true
	})
	go func() {
		_, err := w.Pull(t.Context(), s.host+"/other", nil)
		done <- err
	}()
	<-held
	w.Close()
	if err := <-done; !errdefs.IsUnavailable(err) {
		t.Errorf("Pull after Close = %v, want Unavailable", err)
	}
}

func TestPolicy(t *testing.T) {
	s := newSite(t)
	img := image(t, layer(t, "f", "x"))
	at := s.push(t, "team/app:1", img)
	w := newWorld(t, s, func(o *Options, _ *registry.Options) {
		o.Allow, o.RequireDigest = list(t, s.host+"/team/*"), true
	})
	if _, err := w.pull(t, s.host+"/teams/app:1"); !errdefs.IsPermissionDenied(err) ||
		!strings.Contains(err.Error(), "images.allow has "+s.host+"/team/*") {
		t.Errorf("pull of a reference that is not allowed = %v, want PermissionDenied with the allowed ones", err)
	}
	if s.count("") > 0 {
		t.Errorf("%d requests for a reference that is not allowed, want none", s.count(""))
	}
	pinned := s.host + "/team/app@" + digestOf(t, img)
	if _, err := w.pull(t, at); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), pinned) {
		t.Errorf("pull without a digest = %v, want FailedPrecondition with %s", err, pinned)
	}
	if _, err := w.pull(t, pinned); err != nil {
		t.Error(err)
	}
	if _, err := w.pull(t, s.host+"/team/app@sha256:"+strings.Repeat("0", 64)); !errdefs.IsNotFound(err) {
		t.Errorf("pull of an unknown digest: %v, want NotFound", err)
	}
	bare := newWorld(t, s, func(_ *Options, r *registry.Options) { r.Insecure = nil })
	if _, err := bare.pull(t, at); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "images.insecure") {
		t.Errorf("pull without TLS = %v, want FailedPrecondition with images.insecure", err)
	}
}
