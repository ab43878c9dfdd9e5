package images

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// newAgedStore returns a store with one image per name and their ids. The last image was used one
// hour ago, the one before it two hours ago, and so on.
func newAgedStore(t *testing.T, names ...string) (*Store, map[string]string) {
	t.Helper()
	s := newStore(t, Limits{})
	ids := map[string]string{}
	for i, name := range names {
		img, err := s.Import(t.Context(), bytes.NewReader(mkTar(t, reg("f", strings.Repeat(name, 100_000)))), name)
		if err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-time.Duration(len(names)-i) * time.Hour)
		if err := os.Chtimes(filepath.Join(filepath.Dir(s.archivePath(img.ID)), "config.json"), at, at); err != nil {
			t.Fatal(err)
		}
		ids[name] = img.ID
	}
	return s, ids
}

// verdicts returns the first letters of the removed images, and the reason per image.
func verdicts(c Collected) (gone string, whys map[string]string) {
	whys = map[string]string{}
	for _, v := range c.Verdicts {
		whys[v.Image.Refs[0][:1]] = v.Why
		if v.Removed {
			gone += v.Image.Refs[0][:1]
		}
	}
	return gone, whys
}

func TestCollectByBudget(t *testing.T) {
	s, ids := newAgedStore(t, "a", "b", "c", "d", "e")
	if _, err := s.Pin("b", true); err != nil {
		t.Fatal(err)
	}
	release := s.Hold(ids["c"])
	s.Touch(ids["e"])
	need := Collection{Budget: 1, Needed: map[string][]string{ids["d"]: {"template:default"}}, Dry: true}
	for _, dry := range []bool{true, false} {
		need.Dry = dry
		got, err := s.Collect(t.Context(), need)
		if err != nil {
			t.Fatal(err)
		}
		gone, whys := verdicts(got)
		if gone != "a" || got.Freed < 100_000 {
			t.Errorf("dry %v: removed %q and %d bytes, want \"a\"", dry, gone, got.Freed)
		}
		for name, want := range map[string]string{"b": "pinned", "c": "operation in progress",
			"d": "needed by template:default",
			"e": "used within"} {
			if !strings.Contains(whys[name], want) {
				t.Errorf("reason for %s = %q, want %q", name, whys[name], want)
			}
		}
	}
	if _, err := s.Get("a"); !errdefs.IsNotFound(err) {
		t.Errorf("Get of a collected image: %v, want NotFound", err)
	}
	release()
	if _, err := s.Pin("b", false); err != nil {
		t.Fatal(err)
	}
	// The budget has room for three images, so only the oldest goes.
	got, err := s.Collect(t.Context(), Collection{Budget: 350_000})
	if err != nil {
		t.Fatal(err)
	}
	if gone, _ := verdicts(got); gone != "b" {
		t.Errorf("removed %q, want \"b\"", gone)
	}
	checkNoLeftovers(t, s)
}

func TestCollectByAge(t *testing.T) {
	s, _ := newAgedStore(t, "a", "b", "c")
	got, err := s.Collect(t.Context(), Collection{MaxAge: 90 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if gone, whys := verdicts(got); gone != "ab" || !strings.Contains(whys["c"], "within") {
		t.Errorf("removed %q for %v, want \"ab\"", gone, whys)
	}
}

func TestCollectBlobs(t *testing.T) {
	s := newStore(t, Limits{})
	hex := func(c string) string { return strings.Repeat(c, 64) }
	write := func(name string, age time.Duration) {
		path := filepath.Join(s.path("blobs"), name)
		if err := os.WriteFile(path, make([]byte, 1000), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(-age)
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
	}
	write(hex("a")+".part", 48*time.Hour)
	write(hex("b"), 48*time.Hour)
	write(hex("c")+".part", time.Hour)
	held, err := s.HoldBlob("sha256:" + hex("b"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Collect(t.Context(), Collection{})
	if err != nil || got.Blobs != 1 || got.BlobBytes != 1000 {
		t.Errorf("Collect = %+v, %v; want one blob of 1000 bytes", got, err)
	}
	if err := held.Release(false); err != nil {
		t.Fatal(err)
	}
	if got, err = s.Collect(t.Context(), Collection{Budget: 100}); err != nil || got.Blobs != 2 || got.Used != 0 {
		t.Errorf("Collect over budget = %+v, %v; want two blobs", got, err)
	}
	if gone, err := s.dropBlob(hex("d"), false); gone || err != nil { // removed by its pull
		t.Errorf("dropBlob of a missing blob = %v, %v; want false, nil", gone, err)
	}
}

// An image that comes into use during the collection stays.
func TestCollectRechecksUse(t *testing.T) {
	s, ids := newAgedStore(t, "a")
	was, err := s.Get("a")
	if err != nil {
		t.Fatal(err)
	}
	s.Touch(ids["a"])
	if err := s.discard(t.Context(), ids["a"], s.unchanged(was)); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("discard of a used image: %v, want FailedPrecondition", err)
	}
	if _, err := s.Get("a"); err != nil {
		t.Error(err)
	}
}
