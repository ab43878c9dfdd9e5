package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// clock is one that only a test moves.
type clock struct{ at atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.at.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.at.Load()).UTC() }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

// partAge is that of the parts in these tests: only rotate moves the clock so far.
const partAge = time.Hour

// newParts is a world whose log goes on in a new part when rotate is called.
func newParts(t testing.TB) (*world, *clock) {
	t.Helper()
	c := newClock()
	w := &world{t: t, dir: t.TempDir(), red: NewRedactor(), options: Options{Now: c.now,
		Retention: Retention{PartAge: partAge}}}
	w.open()
	t.Cleanup(w.close)
	return w, c
}

// rotate records an event as the last one of the part.
func (w *world) rotate(c *clock) {
	w.t.Helper()
	w.settle()
	before := w.log.part.number
	c.advance(partAge)
	w.event("last")
	w.settle() // the rotation comes before it
	if w.log.part.number == before {
		w.event("last") // the part was empty: this one began it
		c.advance(partAge)
		w.event("last")
		w.settle()
	}
	if w.log.part.number != before+1 {
		w.t.Fatalf("part %d is written, want %d", w.log.part.number, before+1)
	}
}

func (w *world) event(action string) {
	w.t.Helper()
	if err := w.log.Event(w.t.Context(), Record{Action: action, Caller: "ann"}); err != nil {
		w.t.Fatal(err)
	}
}

// settle returns once all that was recorded is written, and a rotation done.
func (w *world) settle() {
	w.t.Helper()
	w.log.awaitQueue(w.t.Context())
}

// states is what Verify says of the parts.
func states(r Report) string {
	var all []string
	for _, p := range r.Parts {
		all = append(all, fmt.Sprintf("%d:%s:%d-%d", p.Number, p.State, p.First, p.Last))
	}
	return strings.Join(all, " ")
}

// verifyFiles verifies a copy of the files, as somebody does who has no service.
func (w *world) verifyFiles(head string) Report {
	w.t.Helper()
	dir := w.t.TempDir()
	w.copyTo(dir)
	r, err := VerifyFiles(w.t.Context(), dir, filepath.Join(dir, KeyFile), head)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) copyTo(dir string) {
	w.t.Helper()
	files, err := os.ReadDir(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f.Name(), "-shm") {
			continue // it is memory, and locks
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name()), []byte(w.read(f.Name())), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestTheLogGoesOnInANewPart(t *testing.T) {
	w, c := newParts(t)
	long := w.begin("long")
	for i := range 3 {
		w.call(fmt.Sprint("a", i))
		w.rotate(c)
	}
	w.call("last")
	if err := long.Close(t.Context(), Record{Ending: "exit"}); err != nil {
		t.Fatal(err)
	}
	w.sound()
	r := w.verify("")
	if got, want := states(r), "1:sealed:1-4 2:sealed:5-7 3:sealed:8-10 4:open:11-13"; got != want || r.Records != 13 {
		t.Errorf("parts %s with %d records, want %s with 13", got, r.Records, want)
	}
	all := w.list(Filter{})
	if len(all) != 13 || all[0].Call != "long" || all[12].Call != "long" || all[12].Action != "system.bash" {
		t.Errorf("%s", kinds(all))
	}
	for _, c := range []struct {
		f    Filter
		want string
	}{
		{Filter{Call: "long"}, "1:open:long 13:close:long"},
		{Filter{After: 5, Limit: 3}, kinds(all[5:8])},
		{Filter{Newest: true, Limit: 4}, kinds(all[9:])},
		{Filter{Newest: true, Limit: 7}, kinds(all[6:])},
		{Filter{Newest: true, Limit: 7, After: 10}, kinds(all[10:])},
		{Filter{Newest: true, Limit: 5, Call: "a0"}, "2:open:a0 3:close:a0"},
		{Filter{Newest: true, Limit: 5, Call: "nobody"}, ""},
		{Filter{Since: all[3].Time, Until: all[9].Time}, kinds(all[3:9])},
	} {
		if got := kinds(w.list(c.f)); got != c.want {
			t.Errorf("List(%+v) = %s, want %s", c.f, got, c.want)
		}
	}
	var lines strings.Builder
	if err := w.log.Export(t.Context(), Filter{}, &lines); err != nil || strings.Count(lines.String(), "\n") != 13 {
		t.Errorf("exported %d lines, %v", strings.Count(lines.String(), "\n"), err)
	}
	w.die()
	w.open()
	w.call("after")
	w.sound()
	if r := w.verifyFiles(all[7].head()); !r.OK || states(r) != "1:sealed:1-4 2:sealed:5-7 3:sealed:8-10 4:open:11-15" {
		t.Errorf("offline: %s, parts %s", words(r), states(r))
	}
}

func (s Stored) head() string { return fmt.Sprintf("%d:%s", s.Seq, s.Hash) }

func TestACallOfAnEarlierPartIsClosedAfterACrash(t *testing.T) {
	w, c := newParts(t)
	w.begin("c1")
	w.begin("c2")
	w.rotate(c)
	w.rotate(c)
	e := w.begin("c3")
	if err := e.Close(t.Context(), Record{Ending: "exit"}); err != nil {
		t.Fatal(err)
	}
	w.die()
	w.open()
	lost := w.list(Filter{Ending: LostEnding})
	if len(lost) != 2 || lost[0].Call != "c1" || lost[1].Call != "c2" || lost[0].Action != "system.bash" {
		t.Errorf("%s", kinds(lost))
	}
	w.die()
	w.open()
	if again := w.list(Filter{Ending: LostEnding}); len(again) != 2 {
		t.Errorf("closed again: %s", kinds(again))
	}
}

func TestAPartEndsAtItsSize(t *testing.T) {
	w := &world{t: t, dir: t.TempDir(), red: NewRedactor(), options: Options{Retention: Retention{PartSize: 128 << 10}}}
	w.open()
	t.Cleanup(w.close)
	input := json.RawMessage(`"` + strings.Repeat("x", 8<<10) + `"`)
	for range 60 {
		if err := w.log.Event(t.Context(), Record{Action: "a", Input: input}); err != nil {
			t.Fatal(err)
		}
	}
	w.sound()
	parts, err := w.db.Parts(t.Context())
	if err != nil || len(parts) < 4 {
		t.Fatalf("%d parts, %v", len(parts), err)
	}
	for _, p := range parts {
		if p.Bytes > 160<<10 {
			t.Errorf("part %d has %d bytes", p.Number, p.Bytes)
		}
	}
}

// A part that is too large already ends at the start, and is not old for that.
func TestAStartEndsAPartThatIsTooLarge(t *testing.T) {
	w, c := newParts(t)
	w.call("a")
	w.die()
	w.options.Retention = Retention{PartSize: 1, KeepAge: partAge}
	w.open()
	w.settle()
	if r := w.verify(""); !r.OK || states(r) != "1:sealed:1-2 2:open:0-0" {
		t.Errorf("%s, parts %s", words(r), states(r))
	}
	c.advance(partAge)
	w.call("b")
	w.settle()
	if r := w.verify(""); !r.OK || !strings.HasPrefix(states(r), "1:removed:1-2 2:sealed") {
		t.Errorf("%s, parts %s", words(r), states(r))
	}
}

// A rotation that fails leaves the part as it is, and is tried again a minute later.
func TestARotationThatFailsIsTriedAgain(t *testing.T) {
	w, c := newParts(t)
	w.call("a")
	w.settle()
	if err := os.MkdirAll(w.path(store.AuditSealFile(1)+".new/in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	c.advance(partAge)
	w.event("b")
	w.settle()
	w.sound()
	if err := os.RemoveAll(w.path(store.AuditSealFile(1) + ".new")); err != nil {
		t.Fatal(err)
	}
	w.event("c")
	w.settle()
	if got := states(w.verify("")); got != "1:open:1-4" {
		t.Errorf("at once: %s", got)
	}
	c.advance(maintainInterval)
	w.event("d")
	w.settle()
	w.sound()
	if got := states(w.verify("")); got != "1:sealed:1-5 2:open:0-0" {
		t.Errorf("a minute later: %s", got)
	}
}

func TestSealedPartsAreSingleFiles(t *testing.T) {
	w, c := newParts(t)
	w.call("a")
	w.rotate(c)
	w.call("b")
	w.flush()
	for _, end := range []string{"-wal", "-shm"} {
		if _, err := os.Stat(w.path(store.AuditPartFile(1)) + end); !os.IsNotExist(err) {
			t.Errorf("%s of a sealed part: %v", end, err)
		}
	}
	if r := w.verify(""); !r.OK {
		t.Error(words(r))
	}
}

// A reader that stands in the middle of a part neither holds up the rotation nor
// loses its rows.
func TestAReaderDoesNotHoldUpARotation(t *testing.T) {
	w, c := newParts(t)
	for i := range 5 {
		w.call(fmt.Sprint("c", i))
	}
	w.flush()
	var seqs []int64
	err := w.db.Scan(t.Context(), store.AuditFilter{}, func(r store.AuditRow) error {
		if seqs = append(seqs, r.Seq); len(seqs) == 2 {
			w.rotate(c)
			w.call("more")
			w.flush()
		}
		return nil
	})
	if err != nil || len(seqs) < 10 || !slices.IsSorted(seqs) {
		t.Errorf("%v %v", seqs, err)
	}
	w.sound()
}

func TestRetentionDeletesWholeSealedParts(t *testing.T) {
	w, c := newParts(t)
	for range 4 {
		w.call("a")
		w.rotate(c)
	}
	w.die()
	w.options.Retention.KeepAge = 2*partAge + partAge/2
	c.advance(time.Minute)
	w.open()
	w.flush()
	r := w.verify("")
	if want := "1:removed:1-3 2:sealed:4-6 3:sealed:7-9 4:sealed:10-12 5:open:13-13"; !r.OK || states(r) != want {
		t.Errorf("%s, parts %s, want %s", words(r), states(r), want)
	}
	if r.Parts[0].Removed != c.now() || r.Records != 10 {
		t.Errorf("removed at %s, %d records", r.Parts[0].Removed, r.Records)
	}
	if got := w.list(Filter{Action: RemoveAction}); len(got) != 1 || string(got[0].Input) != `{"first":1,"last":3,"part":1}` {
		t.Errorf("%+v", got)
	}
	if got := w.list(Filter{}); len(got) != 10 || got[0].Seq != 4 {
		t.Errorf("%s", kinds(got))
	}
	if r := w.verifyFiles(""); !r.OK {
		t.Errorf("offline: %s", words(r))
	}
	w.die()
	w.options.Retention.KeepAge, w.options.Retention.KeepSize = 0, 1
	w.open() // nothing but the part that is written is kept
	w.flush()
	if r := w.verify(""); !r.OK || !strings.HasPrefix(states(r),
		"1:removed:1-3 2:removed:4-6 3:removed:7-9 4:removed:10-12 5:open:") {
		t.Errorf("%s, parts %s", words(r), states(r))
	}
	w.die()
	w.open()
	w.sound()
}

// Where the last part is gone too, the log goes on behind the last seal.
func TestALogWithoutRowsGoesOnBehindItsSeals(t *testing.T) {
	w, c := newParts(t)
	w.call("a")
	w.rotate(c)
	w.die()
	w.reseal(1, func(s *seal) { at := c.now(); s.Removed = &at })
	w.remove(store.AuditPartFile(1), store.AuditPartFile(2))
	w.open()
	w.call("b")
	w.sound()
	if got := kinds(w.list(Filter{})); got != "4:open:b 5:close:b" {
		t.Error(got)
	}
}

// reseal changes a seal as somebody does who has the key.
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

func TestWhatIsDoneToPartsIsFound(t *testing.T) {
	part := store.AuditPartFile
	for _, c := range []struct {
		name string
		do   func(w *world)
		want string
	}{
		{"nothing", func(*world) {}, ""},
		{"a part deleted", func(w *world) { w.remove(part(2)) }, "4:removed"},
		{"the first deleted", func(w *world) { w.remove(part(1)) }, "1:removed"},
		{"a part and its seal deleted", func(w *world) { w.remove(part(2), store.AuditSealFile(2)) }, "4:removed 4:removed"},
		{"the first and its seal deleted", func(w *world) { w.remove(part(1), store.AuditSealFile(1)) },
			"1:removed 1:removed"},
		{"a seal deleted", func(w *world) { w.remove(store.AuditSealFile(2)) }, "4:removed"},
		{"a seal changed", func(w *world) {
			w.write(store.AuditSealFile(2), strings.Replace(w.read(store.AuditSealFile(2)), `"records":3`, `"records":2`, 1))
		}, "4:changed"},
		{"a seal destroyed", func(w *world) { w.write(store.AuditSealFile(2), "x") }, "4:changed"},
		{"a seal too long", func(w *world) { w.write(store.AuditSealFile(2), strings.Repeat(" ", 1<<20)) }, "4:changed"},
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
				"INSERT INTO records (seq, record, prev, hash) SELECT 7, record, hash, randomblob(32) FROM records WHERE seq = 6")
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
			if got := words(r); got != c.want && (c.want != "some" || got == "") {
				t.Errorf("offline: %q, want %q\n%+v", got, c.want, r.Problems)
			}
			// The service goes on, and finds it too.
			w.open()
			w.call("d")
			w.flush()
			if r := w.verify(""); r.OK != (c.want == "") {
				t.Errorf("after a start: %q, want %q", words(r), c.want)
			}
		})
	}
}

func TestVerifyFilesNeedsTheKey(t *testing.T) {
	w := ten(t)
	w.die()
	if _, err := VerifyFiles(t.Context(), w.dir, w.path("nowhere"), ""); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	w.write("short", "x")
	if _, err := VerifyFiles(t.Context(), w.dir, w.path("short"), ""); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	w.write("other", strings.Repeat("x", keyLength))
	if r, err := VerifyFiles(t.Context(), w.dir, w.path("other"), ""); err != nil || r.OK {
		t.Errorf("with another key: %+v %v", r, err)
	}
	if _, err := VerifyFiles(t.Context(), w.path("nowhere"), w.path(KeyFile), ""); err == nil {
		t.Error("verified nothing")
	}
	w.remove(HeadFile)
	if got := words(w.verifyFiles("")); got != "0:unreadable" {
		t.Errorf("without a head: %q", got)
	}
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

func TestVerifyWhileAPartIsRemoved(t *testing.T) {
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
		t.Errorf("%s, parts %s", words(r), states(r))
	}
	w.log.store = w.db
}

// Sealed parts alone are whole up to a head that somebody kept.
func TestSealedPartsAreVerifiedWithoutTheRest(t *testing.T) {
	w, c := newParts(t)
	w.call("a")
	w.rotate(c)
	kept := w.log.Head(t.Context())
	w.call("b")
	w.rotate(c)
	w.die()
	w.remove(store.AuditPartFile(3), HeadFile)
	if r := w.verifyFiles(kept); !r.OK || states(r) != "1:sealed:1-3 2:sealed:4-6" {
		t.Errorf("%s, parts %s", words(r), states(r))
	}
	w.sqlOf(2, "DELETE FROM records WHERE seq = 6")
	if got := words(w.verifyFiles(kept)); got != "6:cut" {
		t.Errorf("with a cut part: %q", got)
	}
}

// Files that may not be written are verified as they are.
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
		t.Errorf("%+v %v", r, err)
	}
	after, err := os.ReadDir(dir)
	if err != nil || len(after) != len(before) {
		t.Errorf("%v, before %v", after, before)
	}
}

// The shares of callers go on over parts and starts.
func TestSharesGoOnOverPartsAndStarts(t *testing.T) {
	w, c := newParts(t)
	w.options.CallerDailyBytes = 4 << 10
	w.die()
	w.open()
	for w.log.Admit("ann") == nil {
		w.call("a")
		w.rotate(c)
	}
	if err := w.log.Admit("bob"); err != nil {
		t.Errorf("another caller: %v", err)
	}
	used := w.log.shares.bytes["ann"]
	w.die()
	w.open()
	err := w.log.Admit("ann")
	if !errdefs.IsResourceExhausted(err) || w.log.shares.bytes["ann"] != used {
		t.Errorf("%v, %d bytes, want %d", err, w.log.shares.bytes["ann"], used)
	}
	// Operators' records count for nobody, and a new day begins with nothing.
	e, err := w.log.Begin(t.Context(), Record{Call: "op", Caller: "ann", Action: "x", Uncharged: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(t.Context(), Record{}); err != nil || w.log.shares.bytes["ann"] != used {
		t.Errorf("%v, %d bytes, want %d", err, w.log.shares.bytes["ann"], used)
	}
	c.advance(24 * time.Hour)
	if err := w.log.Admit("ann"); err != nil {
		t.Errorf("the day after: %v", err)
	}
	c.advance(-24 * time.Hour)
	if err := w.log.Admit("ann"); err != nil {
		t.Errorf("with the clock set back: %v", err)
	}
}
