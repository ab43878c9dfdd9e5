package engine

import (
	"archive/tar"
	"bytes"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// otherArchive returns a root filesystem that differs from archive's.
func otherArchive(t *testing.T) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "other/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// The image of a live lease stays even if no template uses it.
func TestRemoveImageFailsWhileInUse(t *testing.T) {
	w := newWorld(t)
	kept := &shelf{}
	kept.set(nil, from("default", here, 1), from("old", "old/image:1", 0))
	s := w.startOptions(t, func(o *Options) { o.Templates, o.LoadTemplates = nil, kept.load })
	op := caller.Local("")
	if _, err := s.Images.Import(t.Context(), op, otherArchive(t), "old/image:1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the template is ready", func() bool { return s.Templates.NotReady("old") == nil })
	box, err := s.Lease(t.Context(), op, v1.SandboxRequest{Template: "old"})
	if err != nil {
		t.Fatal(err)
	}
	kept.set(nil, from("default", here, 1))
	if _, err := s.Templates.ReloadFor(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	if err := s.Images.Remove(t.Context(), op, "old/image:1"); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), box.ID) {
		t.Errorf("Remove of a leased image: %v, want FailedPrecondition that names %s", err, box.ID)
	}
	if _, err := s.Images.Import(t.Context(), op, otherArchive(t), "other/name:1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Images.Remove(t.Context(), op, "other/name:1"); err != nil {
		t.Errorf("Remove of one name of two: %v", err)
	}
	if err := s.Remove(t.Context(), op, box.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the image can be removed",
		func() bool { return s.Images.Remove(t.Context(), op, "old/image:1") == nil })
}
