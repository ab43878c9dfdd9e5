package filesync

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// If the file system has no space for the stream, the directory stays unchanged and usable.
func TestApplyFullDiskChangesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "nr_inodes=60,size=4m"); err != nil {
		t.Skip("no mount: ", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	must(t, received(t, dir, file("old", 3)))
	for name, kind := range map[string]tar.Header{
		"folders": {Typeflag: tar.TypeDir, Mode: 0o755},
		"links":   {Typeflag: tar.TypeSymlink, Linkname: "x"},
	} {
		var headers []tar.Header
		for i := range 100 {
			h := kind
			h.Name = fmt.Sprintf("n%d", i)
			headers = append(headers, h)
		}
		err := received(t, dir, headers...)
		if told, ok := errors.AsType[*usererror.Error](err); !ok || !errdefs.IsFailedPrecondition(err) ||
			!strings.Contains(told.Message, "resize it") {
			t.Errorf("%s: Apply: %v, want FailedPrecondition", name, err)
		}
		if got := look(t, dir); len(got) != 1 || got["old"] == "" {
			t.Errorf("%s: %d entries, want only old", name, len(got))
		}
		if err := Recover(t.Context(), dir, me); err != nil {
			t.Errorf("%s: Recover = %v, want no error", name, err)
		}
	}
}

func received(t *testing.T, dir string, headers ...tar.Header) error {
	t.Helper()
	_, err := Apply(t.Context(), bytes.NewReader(stream(t, headers...)), dir, room, me)
	return err
}
