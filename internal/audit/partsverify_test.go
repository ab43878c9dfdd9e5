package audit

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// reseal changes a seal as an attacker with the key could.
func (w *world) reseal(part int, change func(*seal)) {
	w.t.Helper()
	key := []byte(w.read(KeyFile))
	s, err := parseSeal(key, part, []byte(w.read(store.AuditSealFile(part))))
	if err != nil {
		w.t.Fatal(err)
	}
	change(&s)
	text, err := s.sign(key)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(store.AuditSealFile(part), string(text))
}

func TestVerifyFindsTamperedParts(t *testing.T) {
	t.Parallel()
	part := store.AuditPartFile
	for _, c := range []struct {
		name string
		do   func(w *world)
		want string
	}{
		{"nothing", func(*world) {}, ""},
		{"a part deleted", func(w *world) { w.remove(part(2)) }, "4:removed"},
		{"the first deleted", func(w *world) { w.remove(part(1)) }, "1:removed"},
		{
			"a part and its seal deleted", func(w *world) { w.remove(part(2), store.AuditSealFile(2)) },
			"4:removed 4:removed",
		},
		{"the first and its seal deleted", func(w *world) { w.remove(part(1), store.AuditSealFile(1)) },
			"1:removed 1:removed"},
		{"a seal deleted", func(w *world) { w.remove(store.AuditSealFile(2)) }, "4:removed"},
		{"a seal changed", func(w *world) {
			w.write(store.AuditSealFile(2),
				strings.Replace(w.read(store.AuditSealFile(2)), `"records":3`, `"records":2`, 1))
		}, "4:changed"},
		{"a seal destroyed", func(w *world) { w.write(store.AuditSealFile(2), "x") }, "4:changed"},
		{
			"a seal too long", func(w *world) { w.write(store.AuditSealFile(2), strings.Repeat(" ", 1<<20)) },
			"4:changed",
		},
		{"a seal of another part", func(w *world) { w.write(store.AuditSealFile(2), w.read(store.AuditSealFile(1))) },
			"4:changed"},
		{"marked as removed without the key", func(w *world) {
			w.write(store.AuditSealFile(2), strings.Replace(w.read(store.AuditSealFile(2)), `"mac"`,
				`"removed":"2026-01-01T00:00:00Z","mac"`, 1))
			w.remove(part(2))
		}, "4:changed 4:removed"},
		{"a record of a sealed part changed", func(w *world) {
			w.sqlOf(2, "UPDATE records SET record = replace(record, 'ann', 'bob') WHERE seq = 5")
		}, "5:changed"},
		{"its last record deleted", func(w *world) { w.sqlOf(2, "DELETE FROM records WHERE seq = 6") }, "6:removed"},
		{"all of them deleted", func(w *world) { w.sqlOf(2, "DELETE FROM records") }, "4:removed"},
		{"one added behind the seal", func(w *world) {
			w.sqlOf(2,
				"INSERT INTO records (seq, record, prev, hash) SELECT 7, record, hash, randomblob(32) FROM records "+
					"WHERE seq = 6")
		}, "7:inserted"},
		{"two parts exchanged", func(w *world) {
			one, two := w.read(part(2)), w.read(part(3))
			w.write(part(2), two)
			w.write(part(3), one)
		}, "some"},
		{"the last part deleted", func(w *world) { w.remove(part(4), part(4)+"-wal", part(4)+"-shm") }, "10:cut"},
		{"the last two deleted", func(w *world) {
			w.remove(part(4), part(4)+"-wal", part(4)+"-shm", part(3), store.AuditSealFile(3))
		}, "7:cut"},
		{"a part that cannot be read", func(w *world) { w.write(part(2), strings.Repeat("x", 5000)) }, "4:unreadable"},
		{"a part that is empty", func(w *world) { w.write(part(2), "") }, "4:unreadable"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, clock := newParts(t)
			for range 3 {
				w.call("c")
				w.rotate(clock)
			}
			w.call("c")
			w.die()
			c.do(w)
			r := w.verifyFiles("")
			if got := problemKinds(r); got != c.want && (c.want != "some" || got == "") {
				t.Errorf("offline: %q, want %q\n%+v", got, c.want, r.Problems)
			}
			// A restarted service finds it too.
			w.open()
			w.call("d")
			w.flush()
			if r := w.verify(""); r.OK != (c.want == "") {
				t.Errorf("after a start: %q, want %q", problemKinds(r), c.want)
			}
		})
	}
}

func TestVerifyFilesNeedsTheKey(t *testing.T) {
	w := ten(t)
	w.die()
	if _, err := VerifyFiles(t.Context(), w.dir, w.path("nowhere"), ""); !errdefs.IsNotFound(err) {
		t.Errorf("VerifyFiles without a key: %v, want NotFound", err)
	}
	w.write("short", "x")
	if _, err := VerifyFiles(t.Context(), w.dir, w.path("short"), ""); !errdefs.IsInvalidArgument(err) {
		t.Errorf("VerifyFiles with a short key: %v, want InvalidArgument", err)
	}
	w.write("other", strings.Repeat("x", keyLength))
	if r, err := VerifyFiles(t.Context(), w.dir, w.path("other"), ""); err != nil || r.OK {
		t.Errorf("VerifyFiles with another key = %+v, %v; want problems", r, err)
	}
	if _, err := VerifyFiles(t.Context(), w.path("nowhere"), w.path(KeyFile), ""); err == nil {
		t.Error("VerifyFiles of a missing directory succeeded, want an error")
	}
	w.remove(HeadFile)
	wantProblems(t, w.verifyFiles(""), "0:unreadable")
}

// vanishing is a store whose first part is removed right before it is read.
type vanishing struct {
	Store
	remove func()
}

func (v *vanishing) ScanPart(ctx context.Context, part int, f store.AuditFilter, row func(store.AuditRow) error) error {
	if part == 1 {
		v.remove()
	}
	return v.Store.ScanPart(ctx, part, f, row)
}

func TestVerifyDuringPartRemoval(t *testing.T) {
	w, c := newParts(t)
	w.call("a")
	w.rotate(c)
	w.call("b")
	w.settle()
	remove := func() {
		s, err := parseSeal(w.log.key, 1, []byte(w.read(store.AuditSealFile(1))))
		if err != nil {
			t.Fatal(err)
		}
		at := c.now()
		s.Removed = &at
		text, err := s.sign(w.log.key)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.db.Remove(t.Context(), 1, text); err != nil {
			t.Fatal(err)
		}
	}
	w.log.store = &vanishing{Store: w.db, remove: remove}
	if r := w.verify(""); !r.OK || states(r) != "1:removed:1-3 2:open:4-5" {
		t.Errorf("problems %+v, parts %s; want none, and part 1 removed", r.Problems, states(r))
	}
	w.log.store = w.db
}

// Sealed parts without the rest verify up to a kept head.
func TestVerifyFilesOfSealedPartsOnly(t *testing.T) {
	w, c := newParts(t)
	w.call("a")
	w.rotate(c)
	kept := w.log.Head(t.Context())
	w.call("b")
	w.rotate(c)
	w.die()
	w.remove(store.AuditPartFile(3), HeadFile)
	if r, want := w.verifyFiles(kept), "1:sealed:1-3 2:sealed:4-6"; !r.OK || states(r) != want {
		t.Errorf("problems %q, parts %s; want none, %s", problemKinds(r), states(r), want)
	}
	w.sqlOf(2, "DELETE FROM records WHERE seq = 6")
	wantProblems(t, w.verifyFiles(kept), "6:cut")
}

// Read-only files are verified without changes.
func TestVerifyFilesWritesNothing(t *testing.T) {
	w, c := newParts(t)
	w.call("a")
	w.rotate(c)
	w.call("b")
	w.die()
	dir := t.TempDir()
	w.copyTo(dir)
	before, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := VerifyFiles(t.Context(), dir, filepath.Join(dir, KeyFile), ""); err != nil || !r.OK {
		t.Errorf("VerifyFiles = %+v, %v; want OK", r, err)
	}
	after, err := os.ReadDir(dir)
	if err != nil || len(after) != len(before) {
		t.Errorf("ReadDir = %v, %v; want %v", after, err, before)
	}
}
