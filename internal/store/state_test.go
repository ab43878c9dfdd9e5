package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// used returns a state directory as a killed server leaves it: marked, with one row in state.db and
// another only in the log.
func used(t *testing.T) (dir, owner string) {
	t.Helper()
	live := t.TempDir()
	s := openState(t, live)
	if err := s.Insert(t.Context(), row("aaaaaaaa")); err != nil {
		t.Fatal(err)
	}
	if err := s.Mark(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Insert(t.Context(), row("bbbbbbbb")); err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for _, name := range []string{OwnerFile, StateFile, StateFile + "-wal"} {
		copyTo(t, filepath.Join(dir, name), filepath.Join(live, name))
	}
	return dir, s.Owner()
}

// marked is a store with its marker.
type marked struct {
	*Store
	*Marker
}

func openState(t *testing.T, dir string) marked {
	t.Helper()
	x, err := Examine(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	s, err := x.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return marked{s, x.Marker(s)}
}

func copyTo(t *testing.T, to, from string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func overwrite(t *testing.T, path string, at int64, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte(text), at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// files returns the names in dir with their content.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(text)
	}
	return out
}

// removing returns a harm that removes files.
func removing(names ...string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		remove(t, dir, names...)
	}
}

// truncating returns a harm that truncates a file.
func truncating(name string, size int64) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		truncate(t, dir, name, size)
	}
}

// overwriting returns a harm that writes text into a file at an offset.
func overwriting(name string, at int64, text string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		overwrite(t, filepath.Join(dir, name), at, text)
	}
}

func TestExamineReportsCondition(t *testing.T) {
	garbage := strings.Repeat("x", 4096)
	for name, c := range map[string]struct {
		harm func(t *testing.T, dir string)
		want Condition
		says string
	}{
		"nothing":      {func(*testing.T, string) {}, Whole, ""},
		"removed":      {removing(StateFile), Lost, "state.db is missing"},
		"all removed":  {removing(StateFile, StateFile+"-wal"), Lost, "state.db is missing"},
		"emptied":      {truncating(StateFile, 0), Lost, "state.db is empty"},
		"WAL removed":  {removing(StateFile + "-wal"), Older, "sequence 0, last 1"},
		"WAL emptied":  {truncating(StateFile+"-wal", 0), Older, "state.db-wal was lost or damaged"},
		"WAL header":   {overwriting(StateFile+"-wal", 0, "harm"), Older, "sequence 0, last 1"},
		"WAL checksum": {overwriting(StateFile+"-wal", 24, "harm"), Older, "sequence 0, last 1"},
		"first frame":  {overwriting(StateFile+"-wal", 100, "harm"), Older, "sequence 0, last 1"},
		"cut short":    {truncating(StateFile, 8192), Damaged, "state.db is damaged"},
		"no database": {func(t *testing.T, dir string) {
			t.Helper()
			remove(t, dir, StateFile, StateFile+"-wal")
			create(t, filepath.Join(dir, StateFile), garbage)
		}, Damaged, "file is not a database"},
		"a page": {func(t *testing.T, dir string) {
			t.Helper()
			remove(t, dir, StateFile+"-wal")
			overwrite(t, filepath.Join(dir, StateFile), 4096, garbage)
		}, Damaged, "state.db is damaged"},
		"another's": {func(t *testing.T, dir string) {
			t.Helper()
			remove(t, dir, StateFile, StateFile+"-wal")
			other, _ := used(t)
			copyTo(t, filepath.Join(dir, StateFile), filepath.Join(other, StateFile))
		}, Foreign, "belongs to owner"},
		"owner file removed":          {removing(OwnerFile), Whole, ""},
		"owner file and WAL removed":  {removing(OwnerFile, StateFile+"-wal"), Whole, ""},
		"owner file and base removed": {removing(OwnerFile, StateFile), New, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := used(t)
			c.harm(t, dir)
			before := files(t, dir)
			x, err := Examine(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if x.Condition != c.want {
				t.Fatalf("Examine found condition %d (%s), want %d", x.Condition, x.detail, c.want)
			}
			err = x.Problem()
			if c.says != "" && (!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("Problem() = %v, want FailedPrecondition with %q", err, c.says)
			}
			if c.says == "" && err != nil {
				t.Errorf("Problem() = %v, want nil", err)
			}
			for name, text := range files(t, dir) {
				if before[name] != text {
					t.Errorf("Examine changed %s, want it unchanged", name)
				}
			}
			if c.says == "" {
				return
			}
			if s, err := x.Open(t.Context()); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Open() = %v, %v, want FailedPrecondition", s, err)
			}
			if after := files(t, dir); len(after) != len(before) {
				t.Errorf("%d files after a refused Open, want %d", len(after), len(before))
			}
		})
	}
}

func truncate(t *testing.T, dir, name string, size int64) {
	t.Helper()
	if err := os.Truncate(filepath.Join(dir, name), size); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestKilledServersDatabaseIsOpened(t *testing.T) {
	dir, owner := used(t)
	for range 2 {
		s := openState(t, dir)
		rows, err := s.Live(t.Context())
		if err != nil || len(rows) != 2 || s.Owner() != owner {
			t.Fatalf("Live() = %v, %v of owner %s; want 2 rows of %s", rows, err, s.Owner(), owner)
		}
		if err := errors.Join(s.Mark(t.Context()), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOwnerSurvivesLostDatabase(t *testing.T) {
	dir, owner := used(t)
	remove(t, dir, StateFile)
	x, err := Examine(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if x.Owner() != owner {
		t.Errorf("Owner() = %s, want %s", x.Owner(), owner)
	}
	x.Accept("")
	s, err := x.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rows, err := s.Live(t.Context()); err != nil || len(rows) != 0 || s.Owner() != owner {
		t.Errorf("Live() = %v, %v of owner %s; want no row of %s", rows, err, s.Owner(), owner)
	}
	// A database that is lost again is reported again.
	if err := errors.Join(x.Marker(s).Mark(t.Context()), s.Close()); err != nil {
		t.Fatal(err)
	}
	remove(t, dir, StateFile)
	if _, err := OpenState(t.Context(), dir); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("OpenState() = %v, want FailedPrecondition", err)
	}
}

func TestOlderDatabaseIsAcceptedOnce(t *testing.T) {
	dir, _ := used(t)
	remove(t, dir, StateFile+"-wal")
	x, err := Examine(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	x.Accept("")
	s, err := x.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rows, err := s.Live(t.Context())
	if err != nil || len(rows) != 1 {
		t.Errorf("Live() = %v, %v; want the row that was marked", rows, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	openState(t, dir)
}

func TestOwnerIsReadFromDatabaseWithoutSequence(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	owner := s.Owner()
	if _, err := s.db.ExecContext(t.Context(), "DELETE FROM meta WHERE key = 'sequence'"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := openState(t, dir)
	if err := again.Mark(t.Context()); err != nil {
		t.Fatal(err)
	}
	r, found, err := readOwner(dir)
	if want := (ownerRecord{ownerVersion, owner, 1}); err != nil || !found || r != want {
		t.Errorf("readOwner() = %+v, %v, %v; want %+v", r, found, err, want)
	}
}

func TestMarkWritesOnlyAfterChanges(t *testing.T) {
	dir := t.TempDir()
	s := openState(t, dir)
	sequence := func() int64 {
		t.Helper()
		if err := s.Mark(t.Context()); err != nil {
			t.Fatal(err)
		}
		r, _, err := readOwner(dir)
		if err != nil {
			t.Fatal(err)
		}
		return r.Sequence
	}
	for i, want := range []int64{1, 1, 2, 2} {
		if i == 2 {
			if err := s.Insert(t.Context(), row("aaaaaaaa")); err != nil {
				t.Fatal(err)
			}
		}
		if got := sequence(); got != want {
			t.Fatalf("after step %d the sequence is %d, want %d", i, got, want)
		}
	}
}

func TestMarkRetriesOwnerFile(t *testing.T) {
	dir := t.TempDir()
	s := openState(t, dir)
	blocker := filepath.Join(dir, OwnerFile+".new")
	if err := os.Mkdir(blocker, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Mark(t.Context()); err == nil {
		t.Fatal("Mark() with an unwritable owner file succeeded, want an error")
	}
	if err := os.Remove(blocker); err != nil {
		t.Fatal(err)
	}
	if err := s.Mark(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, _, err := readOwner(dir); err != nil || r.Sequence != 2 {
		t.Errorf("readOwner() = %+v, %v; want sequence 2", r, err)
	}
}

func TestDamagedOwnerFileIsRefused(t *testing.T) {
	for _, text := range []string{"", "{", `{"version":1}`, `{"version":1,"owner":"../x"}`,
		`{"version":1,"owner":"o12345678","sequence":-1}`, `{"version":9,"owner":"o12345678"}`} {
		dir, _ := used(t)
		create(t, filepath.Join(dir, OwnerFile), text)
		if _, err := OpenState(t.Context(), dir); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("OpenState() with owner file %q = %v, want FailedPrecondition", text, err)
		}
	}
}

func TestExamineRemovesLeftovers(t *testing.T) {
	dir, _ := used(t)
	left := filepath.Join(dir, examinePrefix+"1")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	create(t, filepath.Join(left, StateFile), "x")
	openState(t, dir)
	if found, _ := filepath.Glob(filepath.Join(dir, examinePrefix+"*")); len(found) > 0 {
		t.Errorf("temporary files = %v, want none", found)
	}
}
