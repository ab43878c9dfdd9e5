package store

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func ended(t *testing.T, s *Store, id string, at time.Time, big string) {
	t.Helper()
	r := row(id)
	if err := s.Insert(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	_, err := s.Update(t.Context(), id, func(b *Sandbox) error {
		b.State, b.Ended, b.Reason = Failed, at, big
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestTrimKeepsNewest(t *testing.T) {
	s := open(t, t.TempDir())
	if err := s.Insert(t.Context(), row("live-one")); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		ended(t, s, fmt.Sprintf("ended-%02d", i), time.Unix(int64(100+i), 0), "")
	}
	for _, want := range []int64{15, 0} {
		if n, err := s.Trim(t.Context(), 5); n != want || err != nil {
			t.Fatalf("removed %d, %v, want %d", n, err, want)
		}
	}
	rows, err := s.Leases(t.Context(), "", true, 100)
	if err != nil || len(rows) != 6 {
		t.Fatalf("Leases = %d, %v; want 6", len(rows), err)
	}
	for _, r := range rows {
		if r.ID != "live-one" && r.ID < "ended-15" {
			t.Errorf("%s is left, want live-one and the newest 5", r.ID)
		}
	}
}

func TestCompactFreesDiskSpace(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	size := func() int64 {
		t.Helper()
		if _, err := s.db.ExecContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(filepath.Join(dir, "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	if freed, err := s.Compact(t.Context()); freed != 0 || err != nil {
		t.Fatalf("Compact of a new database = %d, %v; want 0", freed, err)
	}
	for i := range 100 {
		ended(t, s, fmt.Sprintf("ended-%02d", i), time.Unix(100, 0), strings.Repeat("x", 100<<10))
	}
	before := size()
	if _, err := s.Forget(t.Context(), time.Unix(200, 0)); err != nil {
		t.Fatal(err)
	}
	freed, err := s.Compact(t.Context())
	if after := size(); err != nil || freed < 8<<20 || before < 9<<20 || after > 1<<20 {
		t.Fatalf("Compact = %d, %v, from %d to %d bytes; want at least %d freed, from at least %d to at most %d",
			freed, err, before, after, 8<<20, 9<<20, 1<<20)
	}
	if freed, err := s.Compact(t.Context()); freed != 0 || err != nil {
		t.Fatalf("second Compact = %d, %v; want 0", freed, err)
	}
}
