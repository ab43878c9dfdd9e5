//go:build linux

package standalone

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

// rootfsTar writes a root filesystem with one file.
func rootfsTar(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	for _, h := range []*tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "bin/sh", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestImportSharedImportsOnce checks that processes at the same time share one unpacked root, that
// another archive has another, and that stores which nobody used for a week are removed.
func TestImportSharedImportsOnce(t *testing.T) {
	dir := t.TempDir()
	shared, archive := filepath.Join(dir, "shared"), filepath.Join(dir, "a.tar")
	rootfsTar(t, archive, "one")
	a := &cli.App{Stderr: io.Discard}
	give := func(state string) (root string, err error) {
		c := config.Default()
		c.StateDir = filepath.Join(dir, state)
		list, err := ImportShared(t.Context(), a, c, archive, "test:1", shared)
		if err != nil || len(list) != 1 {
			return "", err
		}
		hex := strings.TrimPrefix(list[0].ID, "sha256:")
		return filepath.EvalSymlinks(filepath.Join(engine.DirsOf(c.StateDir).Images, "roots", hex, "fs", "bin", "sh"))
	}
	roots, errs := make([]string, 4), make([]error, 4)
	var work sync.WaitGroup
	for i := range roots {
		work.Go(func() { roots[i], errs[i] = give("state" + string(rune('0'+i))) })
	}
	work.Wait()
	for i, root := range roots {
		if errs[i] != nil || root != roots[0] || !strings.HasPrefix(root, shared) {
			t.Errorf("ImportShared %d = %q, %v; want the root of all below %s: %q", i, root, errs[i], shared, roots[0])
		}
	}
	if _, err := give("state0"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("ImportShared into a used state directory = %v, want FailedPrecondition", err)
	}

	store := strings.Split(strings.TrimPrefix(roots[0], shared+"/"), "/")[0]
	old := time.Now().Add(-sharedAge - time.Hour)
	if err := os.Chtimes(filepath.Join(shared, store), old, old); err != nil {
		t.Fatal(err)
	}
	rootfsTar(t, archive, "two")
	other, err := give("other")
	if err != nil || other == roots[0] {
		t.Errorf("ImportShared of another archive = %q, %v; want another root than %q", other, err, roots[0])
	}
	if _, err := os.Stat(filepath.Join(shared, store)); err == nil {
		t.Error("a shared store of eight days ago is there, want it removed")
	}
}
