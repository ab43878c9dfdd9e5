package volumes

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestMain(m *testing.M) {
	runChild()
	goleak.VerifyTestMain(m)
}

func open(t *testing.T, dir string) *Manager {
	t.Helper()
	m, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func needRoot(tb testing.TB) {
	tb.Helper()
	if os.Getuid() != 0 {
		tb.Skip("not root")
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func TestOpenRestoresWorkspaces(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "workspaces")
	m := open(t, dir)
	made, err := m.Create(t.Context(), "proj-1", CreateOptions{})
	must(t, err)
	_, err = m.Create(t.Context(), "shared", CreateOptions{Shared: true})
	must(t, err)
	if _, err := m.Create(t.Context(), "proj-1", CreateOptions{}); !errdefs.IsAlreadyExists(err) {
		t.Errorf("second Create: %v, want AlreadyExists", err)
	}
	for _, name := range []string{"", "A", "-x", ".x", "a/b", "..", "a\x00", "ü", strings.Repeat("a", 64)} {
		if _, err := m.Create(t.Context(), name, CreateOptions{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Create(%q) = %v, want InvalidArgument", name, err)
		}
	}
	h, err := m.Acquire(t.Context(), "proj-1", "lease", ReadWrite)
	must(t, err)
	source := h.Binding().Source
	fi, err := os.Lstat(source)
	must(t, err)
	if !fi.IsDir() || fi.Mode().Perm() != 0o755 || strings.Contains(source, "proj-1") {
		t.Errorf("%s has mode %v, want a directory of mode 755 whose path does not have the name", source, fi.Mode())
	}

	m = open(t, dir)
	got, err := m.Get("proj-1")
	if err != nil || got.ID != made.ID || !got.CreatedAt.Equal(made.CreatedAt) {
		t.Errorf("Get(proj-1) = %+v, %v; want %+v", got, err, made)
	}
	if items := m.List(); len(items) != 2 || !items[1].Shared {
		t.Errorf("List() = %+v, want 2 with the second shared", items)
	}
}

func TestFilesReadAndEdit(t *testing.T) {
	needRoot(t)
	m := open(t, t.TempDir())
	_, err := m.Create(t.Context(), "w", CreateOptions{})
	must(t, err)
	f, err := m.Edit(t.Context(), "w")
	must(t, err)
	w, err := f.Write("/workspace/a/b.txt", safefile.WriteOptions{Mode: 0o4755, Parents: true})
	must(t, err)
	_, err = io.WriteString(w, "hello")
	must(t, err)
	info, err := w.Commit()
	must(t, err)
	must(t, w.Close())
	if info.UID != runtime.CommandUID || info.GID != runtime.CommandGID || info.Mode != 0o755 {
		t.Errorf("created directory is %+v, want mode 755 of the commands' user", info)
	}
	if err := m.Delete(t.Context(), "w"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Delete with open files = %v, want FailedPrecondition", err)
	}
	must(t, f.Close())
	_ = f.Close()
	must(t, m.Delete(t.Context(), "w"))
	if _, err := m.Edit(t.Context(), "w"); !errdefs.IsNotFound(err) {
		t.Errorf("Edit of a deleted workspace: %v, want NotFound", err)
	}
}

func TestAcquireOneWriterManyReaders(t *testing.T) {
	needRoot(t)
	m := open(t, t.TempDir())
	_, err := m.Create(t.Context(), "w", CreateOptions{})
	must(t, err)
	one, err := m.Acquire(t.Context(), "w", "one", ReadWrite)
	must(t, err)
	again, err := m.Acquire(t.Context(), "w", "one", ReadWrite)
	if err != nil || again != one {
		t.Errorf("second Acquire = %v, %v; want the same hold", again, err)
	}
	if _, err := m.Acquire(t.Context(), "w", "one", ReadOnly); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Acquire in another mode = %v, want FailedPrecondition", err)
	}
	if _, err := m.Acquire(t.Context(), "w", "two", ReadWrite); !errdefs.IsUnavailable(err) {
		t.Errorf("Acquire by a second writer = %v, want Unavailable", err)
	}
	reader, err := m.Acquire(t.Context(), "w", "three", ReadOnly)
	must(t, err)
	if b := reader.Binding(); !b.ReadOnly {
		t.Errorf("Binding() = %+v, want read-only", b)
	}
	if err := m.Delete(t.Context(), "w"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Delete while held = %v, want FailedPrecondition", err)
	}
	one.Release()
	two, err := m.Acquire(t.Context(), "w", "two", ReadWrite)
	must(t, err)
	one.Release()
	if got, _ := m.Get("w"); len(got.Leases) != 2 {
		t.Errorf("leases after a second Release = %+v, want 2", got.Leases)
	}
	two.Release()
	reader.Release()
	must(t, m.Delete(t.Context(), "w"))
	if _, err := m.Acquire(t.Context(), "w", "two", ReadWrite); !errdefs.IsNotFound(err) {
		t.Errorf("Acquire of a deleted workspace: %v, want NotFound", err)
	}
	if err := m.Delete(t.Context(), "w"); !errdefs.IsNotFound(err) {
		t.Errorf("second Delete: %v, want NotFound", err)
	}
}

// This compares holds with a model that only has the rule.
func TestAcquireMatchesModel(t *testing.T) {
	needRoot(t)
	m := open(t, t.TempDir())
	rapid.Check(t, func(rt *rapid.T) {
		shared := rapid.Bool().Draw(rt, "shared")
		name := "w" + strings.ReplaceAll(uuid.NewString(), "-", "")
		_, err := m.Create(t.Context(), name, CreateOptions{Shared: shared})
		must(t, err)
		model := map[string]Mode{}
		holds := map[string]*Hold{}
		defer func() {
			for _, h := range holds {
				h.Release()
			}
			must(t, m.Delete(t.Context(), name))
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"acquire": func(rt *rapid.T) {
				lease := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "lease")
				mode := rapid.SampledFrom([]Mode{ReadWrite, ReadOnly, Overlaid}).Draw(rt, "mode")
				has := map[Mode]int{}
				for _, m := range model {
					has[m]++
				}
				allowed := true
				switch mode {
				case ReadWrite:
					allowed = has[Overlaid] == 0 && (shared || has[ReadWrite] == 0)
				case Overlaid:
					allowed = has[ReadWrite] == 0
				default:
				}
				if had, have := model[lease]; have {
					allowed = had == mode
				}
				h, err := m.Acquire(t.Context(), name, lease, mode)
				if (err == nil) != allowed {
					rt.Fatalf("acquire %s %s with %v: %v", lease, mode, model, err)
				}
				if err == nil {
					model[lease], holds[lease] = mode, h
				}
			},
			"release": func(rt *rapid.T) {
				lease := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "lease")
				if h := holds[lease]; h != nil {
					h.Release()
					delete(model, lease)
					delete(holds, lease)
				}
			},
			"": func(rt *rapid.T) {
				w, err := m.Get(name)
				if err != nil || len(w.Leases) != len(model) {
					rt.Fatalf("%+v %v, want %v", w, err, model)
				}
			},
		})
	})
}

func TestSweepRemovesInterruptedWork(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, newPrefix+"x", "data", "deep"), 0o700))
	must(t, os.MkdirAll(filepath.Join(dir, gonePrefix+"y", "data", "deep"), 0o700))
	m := open(t, dir)
	_, err := m.Create(t.Context(), "w", CreateOptions{})
	must(t, err)
	must(t, m.Sweep(t.Context()))
	must(t, m.Sweep(t.Context()))
	entries, _ := os.ReadDir(dir)
	if len(entries) != 1 || len(m.List()) != 1 {
		t.Errorf("directory = %v, List() = %v; want 1 each", entries, m.List())
	}
}

func TestOpenIgnoresUnknownDirectories(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	m := open(t, dir)
	w, err := m.Create(t.Context(), "w", CreateOptions{})
	must(t, err)
	good, err := os.ReadFile(filepath.Join(dir, w.ID, metaFile))
	must(t, err)
	for name, content := range map[string]string{
		"empty": "", "junk": "{", "unknown": `{"version":1,"id":"unknown","name":"x","later":1}`, "twice": string(good),
		"version": `{"version":2,"id":"version","name":"x"}`, "name": `{"version":1,"id":"name","name":"../x"}`,
	} {
		must(t, os.MkdirAll(filepath.Join(dir, name, dataDir), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name, metaFile), []byte(content), 0o600))
	}
	m = open(t, dir)
	must(t, m.Sweep(t.Context()))
	if items := m.List(); len(items) != 1 || items[0].Name != "w" {
		t.Errorf("List() = %+v, want only w", items)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 7 {
		t.Errorf("directory = %v, want 7 entries", entries)
	}
	if _, err := Open("relative", Options{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Open(relative): %v, want InvalidArgument", err)
	}
}

func TestCreateConcurrentlySucceedsOnce(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	m := open(t, dir)
	var wg sync.WaitGroup
	made := make(chan string, 8)
	for range 8 {
		wg.Go(func() {
			if w, err := m.Create(t.Context(), "w", CreateOptions{}); err == nil {
				made <- w.ID
			} else if !errdefs.IsAlreadyExists(err) {
				t.Errorf("concurrent Create: %v, want AlreadyExists", err)
			}
		})
	}
	wg.Wait()
	if entries, _ := os.ReadDir(dir); len(made) != 1 || len(entries) != 1 {
		t.Errorf("%d creations succeeded, directory = %v; want 1 of each", len(made), entries)
	}
}

func FuzzMeta(f *testing.F) {
	f.Add([]byte(`{"version":1,"id":"x","name":"w","created_at":"2026-01-01T00:00:00Z","shared":true}`))
	f.Add([]byte(`{"version":1}{}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if w, err := decodeMeta(b); err == nil && !namePattern.MatchString(w.Name) {
			t.Errorf("decodeMeta returned the name %q, want one that matches %v", w.Name, namePattern)
		}
	})
}
