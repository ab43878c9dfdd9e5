package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"database/sql"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// state opens the database of a new state directory, as a service does.
func state(t *testing.T) (dir string, st *store.Store) {
	t.Helper()
	dir = t.TempDir()
	x, err := store.Examine(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if st, err = x.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := x.Marker(st).Mark(t.Context()); err != nil {
		t.Fatal(err)
	}
	return dir, st
}

func insert(ctx context.Context, st *store.Store, id string) error {
	return st.InsertToken(ctx, store.Token{ID: id, Hash: []byte(id), Caller: "ann", Created: time.Now()})
}

func write(t *testing.T, dir string) ([]byte, Manifest) {
	t.Helper()
	var b bytes.Buffer
	m, err := Write(t.Context(), &b, dir, "test")
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), m
}

// tokens opens the state directory as a service does and returns the ids of its tokens.
func tokens(t *testing.T, dir string) []string {
	t.Helper()
	st, err := store.OpenState(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	rows, err := st.Tokens(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]string, 0, len(rows))
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	slices.Sort(ids)
	return ids
}

// A backup under load has every row that was written before it, and is a whole state.
func TestBackupOfUsedDirectory(t *testing.T) {
	dir, st := state(t)
	if err := insert(t.Context(), st, "first"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if err := insert(ctx, st, "load"+strings.Repeat("x", i)); err != nil && ctx.Err() == nil {
				t.Errorf("write during a backup = %v, want nil", err)
			}
		}
	})
	text, m := write(t, dir)
	cancel()
	work.Wait()
	if len(m.Files) != 2 || m.Files[0].Name != store.StateFile || m.Files[1].Name != store.OwnerFile {
		t.Errorf("files = %+v, want the database and its owner", m.Files)
	}
	to := t.TempDir()
	if _, aside, err := Restore(t.Context(), bytes.NewReader(text), to, false); err != nil || aside != "" {
		t.Fatalf("Restore = %q, %v; want no earlier files", aside, err)
	}
	if got := tokens(t, to); !slices.Contains(got, "first") {
		t.Errorf("restored tokens are %v, want the one from before the backup", got)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
}

// A restore over a newer state needs replace, keeps that state aside, and is accepted at the start.
func TestRestoreReplaces(t *testing.T) {
	dir, st := state(t)
	text, _ := write(t, dir)
	if err := insert(t.Context(), st, "later"); err != nil {
		t.Fatal(err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Restore(t.Context(), bytes.NewReader(text), dir, false); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Restore over a state = %v, want AlreadyExists", err)
	}
	_, aside, err := Restore(t.Context(), bytes.NewReader(text), dir, true)
	if err != nil {
		t.Fatal(err)
	}
	if got := tokens(t, dir); len(got) != 0 {
		t.Errorf("restored tokens are %v, want none", got)
	}
	if got := tokens(t, aside); !slices.Equal(got, []string{"later"}) {
		t.Errorf("tokens of the state aside are %v, want [later]", got)
	}
}

// A file that cannot be used changes nothing.
func TestRestoreRefusesBadFiles(t *testing.T) {
	dir, st := state(t)
	text, _ := write(t, dir)
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	newer := t.TempDir()
	if _, _, err := Restore(t.Context(), bytes.NewReader(text), newer, false); err != nil {
		t.Fatal(err)
	}
	makeNewer(t, filepath.Join(newer, store.StateFile))
	newerText, _ := archive(t, newer)
	for _, c := range []struct {
		name string
		text []byte
		is   func(error) bool
		want string
	}{
		{"not gzip", []byte("hello"), errdefs.IsInvalidArgument, "it is not a backup"},
		{"cut", text[:len(text)/2], errdefs.IsInvalidArgument, ""},
		{"changed", edit(t, text, func(name string, b []byte) []byte {
			if name == store.StateFile {
				b[5000] ^= 1
			}
			return b
		}), errdefs.IsInvalidArgument, "checksum"},
		{"newer format", edit(t, text, func(name string, b []byte) []byte {
			if name == manifestName {
				b = bytes.Replace(b, []byte(`"format": 1`), []byte(`"format": 2`), 1)
			}
			return b
		}), errdefs.IsFailedPrecondition, "use the newer program"},
		{"name outside", edit(t, text, func(name string, b []byte) []byte {
			return bytes.ReplaceAll(b, []byte(`"owner.json"`), []byte(`"../etc.json"`))
		}), errdefs.IsInvalidArgument, "unexpected entry"},
		{"newer schema", newerText, errdefs.IsFailedPrecondition, "database version 99"},
	} {
		before := tokens(t, dir)
		_, aside, err := Restore(t.Context(), bytes.NewReader(c.text), dir, true)
		if !c.is(err) || !strings.Contains(err.Error(), c.want) || aside != "" {
			t.Errorf("%s: Restore = %q, %v; want an error with %q", c.name, aside, err, c.want)
		}
		if got := tokens(t, dir); !slices.Equal(got, before) {
			t.Errorf("%s: tokens are %v, want %v as before", c.name, got, before)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, scratchPrefix+"*")); len(left) > 0 {
			t.Errorf("%s: left %v, want nothing", c.name, left)
		}
	}
}

// makeNewer gives a database the version of a later program.
func makeNewer(t *testing.T, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
}

// archive writes a backup of files as they are.
func archive(t *testing.T, dir string) ([]byte, Manifest) {
	t.Helper()
	m := Manifest{Format: formatVersion}
	for _, name := range []string{store.StateFile, store.OwnerFile} {
		f, err := describe(dir, name)
		if err != nil {
			t.Fatal(err)
		}
		m.Files = append(m.Files, f)
	}
	var b bytes.Buffer
	if err := writeArchive(t.Context(), &b, m, dir); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), m
}

// edit changes the entries of a backup.
func edit(t *testing.T, text []byte, change func(name string, b []byte) []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	tw, tr := tar.NewWriter(zw), tar.NewReader(z)
	for h, err := tr.Next(); err == nil; h, err = tr.Next() {
		var b bytes.Buffer
		if _, err := b.ReadFrom(tr); err != nil {
			t.Fatal(err)
		}
		body := change(h.Name, b.Bytes())
		h.Size = int64(len(body))
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestWriteListsWhatIsExcluded(t *testing.T) {
	dir, st := state(t)
	defer st.Close()
	if err := os.Mkdir(filepath.Join(dir, "workspaces"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, m := write(t, dir); !slices.Equal(m.Excluded, []string{"workspaces"}) {
		text, _ := json.Marshal(m)
		t.Errorf("Write = %s, want workspaces in excluded", text)
	}
}
