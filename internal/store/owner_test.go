package store

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDatabaseThatIsPutBackDecidesTheOwner loses database and owner file. An owner that is made
// before the database is back must not make it a different state directory's.
func TestDatabaseThatIsPutBackDecidesTheOwner(t *testing.T) {
	for name, again := range map[string]func(dir string) (string, error){
		"the owner is asked for": func(dir string) (string, error) { return EnsureOwner(t.Context(), dir) },
		"the database is opened": func(dir string) (string, error) {
			s, err := OpenState(t.Context(), dir)
			if err != nil {
				return "", err
			}
			return s.Owner(), s.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, owner := used(t)
			kept := filepath.Join(t.TempDir(), StateFile)
			copyTo(t, kept, filepath.Join(dir, StateFile))
			for _, file := range []string{OwnerFile, StateFile, StateFile + "-wal"} {
				remove(t, dir, file)
			}
			fresh, err := EnsureOwner(t.Context(), dir)
			if err != nil || fresh == owner {
				t.Fatalf("EnsureOwner without a database = %q, %v; want a new owner", fresh, err)
			}
			copyTo(t, filepath.Join(dir, StateFile), kept)
			if got, err := again(dir); err != nil || got != owner {
				t.Errorf("owner = %q, %v; want %q of the database", got, err, owner)
			}
			if r, found, err := readOwner(dir); err != nil || !found || r.Owner != owner {
				t.Errorf("readOwner() = %+v, %v, %v; want owner %q", r, found, err, owner)
			}
		})
	}
}

// TestOwnerIsKnownWhileAnotherProcessStarts checks that a standby does not need the lock of a
// process that has not opened its database yet.
func TestOwnerIsKnownWhileAnotherProcessStarts(t *testing.T) {
	dir := t.TempDir()
	want, err := EnsureOwner(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := EnsureOwner(t.Context(), dir); err != nil || got != want {
		t.Errorf("EnsureOwner = %q, %v; want %q", got, err, want)
	}
	if err := lock.Unlock(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, OwnerFile)); err != nil {
		t.Error(err)
	}
}
