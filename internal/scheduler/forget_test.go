package scheduler

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Rows of ended leases do not accumulate.
func TestDatabaseSizeIsBounded(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	size := func() (n int64) {
		for _, name := range []string{"state.db", "state.db-wal"} {
			if fi, err := os.Stat(filepath.Join(w.dir, name)); err == nil {
				n += fi.Size()
			}
		}
		return n
	}
	rows := func() int {
		t.Helper()
		got, err := s.store.Leases(t.Context(), "me", true, 1000)
		if err != nil {
			t.Fatal(err)
		}
		return len(got)
	}
	var first int64
	for round := range 4 {
		for range 50 {
			l := s.acquire(t)
			if err := s.End(t.Context(), l, "released", false); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "all leases are over", func() bool {
			live, err := s.store.Leases(t.Context(), "me", false, 1000)
			return err == nil && len(live) == 0
		})
		if n := rows(); n != 50 {
			t.Fatalf("%d ended leases are kept, want the last 50", n)
		}
		s.deleteOldRows(t.Context(), time.Now().Add(s.opts.Keep+time.Minute))
		if n := rows(); n != 0 {
			t.Fatalf("%d leases are kept beyond their time, want 0", n)
		}
		if round == 0 {
			first = size()
		}
	}
	if last := size(); last > 2*first+1<<20 {
		t.Errorf("the database has %d bytes after 200 leases, want at most %d", last, 2*first+1<<20)
	}
}
