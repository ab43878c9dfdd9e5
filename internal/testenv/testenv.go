// Package testenv has fixtures that the tests of several packages share. Only tests import it.
package testenv

import (
	"archive/tar"
	"bytes"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/internal/testenv/testtime"
)

// ImageRef is the name of the image in the store that Images returns.
const ImageRef = "test/image:latest"

// patience bounds Eventually. It is for tests that hang, on a machine that is busy.
var patience = testtime.Scale(2 * time.Minute)

// Eventually calls ok every few milliseconds until it returns true. The test fails if it never
// does.
func Eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// Images opens an image store in dir with one image that has an empty root filesystem.
func Images(tb testing.TB, dir string) *images.Store {
	tb.Helper()
	store, err := images.Open(images.Options{Dir: dir})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := store.Import(tb.Context(), Rootfs(tb), ImageRef); err != nil {
		tb.Fatal(err)
	}
	return store
}

// Rootfs returns an archive of a root filesystem with one directory.
func Rootfs(tb testing.TB) *bytes.Buffer {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return &b
}
