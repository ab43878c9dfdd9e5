package jobs_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// TestUnreadableArtifactDoesNotHideOthers keeps the files of a command that the sandbox lets it
// read, also those with unusual names.
func TestUnreadableArtifactDoesNotHideOthers(t *testing.T) {
	w := newWorld(t)
	w.files = []string{"a\nb", "refused", "z"}
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: "x"}, Artifacts: []string{"**"}})
	_, list := s.await(t, bob, j.ID)
	got, err := s.Jobs.Artifacts(t.Context(), bob, j.ID, 0, "")
	if want := "[{0 a\nb 3} {0 z 1}]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("artifacts = %q, %v; want %q", fmt.Sprint(got), err, want)
	}
	if d := list[0].Attempts[0].Result.Detail; d != "not all artifacts were kept: 1 of 3 files could not be read" {
		t.Errorf(`detail = %q, want "not all artifacts were kept: 1 of 3 files could not be read"`, d)
	}
	body, _, err := s.Jobs.Artifact(t.Context(), bob, j.ID, 0, "a\nb")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if text, err := io.ReadAll(body); err != nil || string(text) != "a\nb" {
		t.Errorf(`artifact = %q, %v; want "a\nb"`, text, err)
	}
	if _, _, err := s.Jobs.Artifact(t.Context(), bob, j.ID, 0, "refused"); !errdefs.IsNotFound(err) {
		t.Errorf("artifact that was not kept: %v, want NotFound", err)
	}
}

func TestArtifactsAreListedInPieces(t *testing.T) {
	s := newWorld(t).start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Commands: texts("a", "b")})
	s.await(t, bob, j.ID)
	for index := range 2 {
		var list []store.JobArtifact
		for n := range 510 {
			list = append(list, store.JobArtifact{Index: index, Path: fmt.Sprintf("f%03d", n)})
		}
		if err := s.store.Jobs().SetJobArtifacts(t.Context(), j.ID, index, list); err != nil {
			t.Fatal(err)
		}
	}
	first, err := s.Jobs.Artifacts(t.Context(), bob, j.ID, 0, "")
	if err != nil || len(first) != 1000 {
		t.Fatalf("first piece has %d artifacts, %v; want 1000", len(first), err)
	}
	last := first[999]
	rest, err := s.Jobs.Artifacts(t.Context(), bob, j.ID, last.Index, last.Path)
	if err != nil || len(rest) != 20 || fmt.Sprint(last, rest[0]) != "{1 f489 0} {1 f490 0}" {
		t.Errorf("the rest after %v has %d artifacts, %v; want 20", last, len(rest), err)
	}
}

// TestOutputOfRemovedJobIsNotEmpty reads output while its job is removed.
func TestOutputOfRemovedJobIsNotEmpty(t *testing.T) {
	s := newWorld(t).start(t, 20)
	text := strings.Repeat("x", 1000)
	for range 8 {
		j := s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: text}})
		s.await(t, bob, j.ID)
		var work sync.WaitGroup
		for range 2 {
			work.Go(func() {
				for {
					out, err := s.Jobs.Output(t.Context(), bob, j.ID, outputAt(0))
					if errdefs.IsNotFound(err) {
						return
					}
					if err != nil || out.Data != text {
						t.Errorf("output = %d bytes, %v; want all or NotFound", len(out.Data), err)
						return
					}
				}
			})
		}
		if err := s.Jobs.Remove(t.Context(), bob, j.ID); err != nil {
			t.Error(err)
		}
		work.Wait()
	}
}
