package audit

import (
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

// clock is a clock that only the test advances.
type clock struct{ at atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.at.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	return c
}

func (c *clock) now() time.Time          { return time.Unix(0, c.at.Load()).UTC() }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

// partAge is the age of parts in these tests: only rotate advances the clock so far.
const partAge = time.Hour

// newParts returns a world whose log starts a new part when rotate is called.
func newParts(tb testing.TB) (*world, *clock) {
	tb.Helper()
	c := newClock()
	w := &world{t: tb, dir: tb.TempDir(), red: NewRedactor(), options: Options{Now: c.now,
		Retention: Retention{PartAge: partAge}}}
	w.open()
	tb.Cleanup(w.close)
	return w, c
}

// rotate records an event as the last one of the part.
func (w *world) rotate(c *clock) {
	w.t.Helper()
	w.settle()
	before := w.log.part.number
	c.advance(partAge)
	w.event("last")
	w.settle() // the rotation precedes it
	if w.log.part.number == before {
		w.event("last") // the part was empty: this record began it
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

// settle returns when all records are written and rotations are done.
func (w *world) settle() {
	w.t.Helper()
	w.log.awaitQueue(w.t.Context())
}

// states returns the states of the parts in a report.
func states(r Report) string {
	all := make([]string, 0, len(r.Parts))
	for _, p := range r.Parts {
		all = append(all, fmt.Sprintf("%d:%s:%d-%d", p.Number, p.State, p.First, p.Last))
	}
	return strings.Join(all, " ")
}

// verifyFiles verifies a copy of the files without a service.
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
			continue // shared memory and locks
		}
		if err := os.WriteFile(filepath.Join(dir, f.Name()), []byte(w.read(f.Name())), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

func TestRotateContinuesInNewPart(t *testing.T) {
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
		t.Errorf("records = %s, want 13 with both ends of the call", kinds(all))
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
		t.Errorf("Export wrote %d lines, %v; want 13", strings.Count(lines.String(), "\n"), err)
	}
	w.die()
	w.open()
	w.call("after")
	w.sound()
	r, want := w.verifyFiles(all[7].head()), "1:sealed:1-4 2:sealed:5-7 3:sealed:8-10 4:open:11-15"
	if !r.OK || states(r) != want {
		t.Errorf("VerifyFiles: problems %q, parts %s; want none, %s", problemKinds(r), states(r), want)
	}
}

func (s Stored) head() string { return fmt.Sprintf("%d:%s", s.Seq, s.Hash) }

func TestOpenClosesCallsOfEarlierPart(t *testing.T) {
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
		t.Errorf("closed calls = %s, want c1 and c2", kinds(lost))
	}
	w.die()
	w.open()
	if again := w.list(Filter{Ending: LostEnding}); len(again) != 2 {
		t.Errorf("closing records after a second start = %s, want 2", kinds(again))
	}
}

func TestPartRotatesAtSize(t *testing.T) {
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
		t.Fatalf("Parts = %d, %v; want at least 4", len(parts), err)
	}
	for _, p := range parts {
		if p.Bytes > 160<<10 {
			t.Errorf("part %d has %d bytes, want at most %d", p.Number, p.Bytes, 160<<10)
		}
	}
}

// Open rotates a part that is already too large, even if it is not old.
func TestOpenRotatesLargePart(t *testing.T) {
	w, c := newParts(t)
	w.call("a")
	w.die()
	w.options.Retention = Retention{PartSize: 1, KeepAge: partAge}
	w.open()
	w.settle()
	if r, want := w.verify(""), "1:sealed:1-2 2:open:0-0"; !r.OK || states(r) != want {
		t.Errorf("problems %q, parts %s; want none, %s", problemKinds(r), states(r), want)
	}
	c.advance(partAge)
	w.call("b")
	w.settle()
	if r, want := w.verify(""), "1:removed:1-2 2:sealed"; !r.OK || !strings.HasPrefix(states(r), want) {
		t.Errorf("problems %q, parts %s; want none, first %s", problemKinds(r), states(r), want)
	}
}

// A failed rotation leaves the part unchanged and is retried after a minute.
func TestFailedRotationIsRetried(t *testing.T) {
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
	if got, want := states(w.verify("")), "1:open:1-4"; got != want {
		t.Errorf("parts at once = %s, want %s", got, want)
	}
	c.advance(maintainInterval)
	w.event("d")
	w.settle()
	w.sound()
	if got, want := states(w.verify("")), "1:sealed:1-5 2:open:0-0"; got != want {
		t.Errorf("parts a minute later = %s, want %s", got, want)
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
			t.Errorf("Stat of the %s file of a sealed part: %v, want no file", end, err)
		}
	}
	wantProblems(t, w.verify(""), "")
}

// A reader in the middle of a part does not block the rotation and loses no rows.
func TestReaderDoesNotBlockRotation(t *testing.T) {
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
		t.Errorf("read %v, %v; want 10 or more sorted records", seqs, err)
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
		t.Errorf("problems %q, parts %s; want none, %s", problemKinds(r), states(r), want)
	}
	if r.Parts[0].Removed != c.now() || r.Records != 10 {
		t.Errorf("part 1 removed at %s, %d records; want %s and 10", r.Parts[0].Removed, r.Records, c.now())
	}
	if got := w.list(Filter{Action: RemoveAction}); len(got) != 1 ||
		string(got[0].Input) != `{"first":1,"last":3,"part":1}` {
		t.Errorf("removal records = %+v, want one of part 1", got)
	}
	if got := w.list(Filter{}); len(got) != 10 || got[0].Seq != 4 {
		t.Errorf("records = %s, want 10 from number 4", kinds(got))
	}
	wantProblems(t, w.verifyFiles(""), "")
	w.die()
	w.options.Retention.KeepAge, w.options.Retention.KeepSize = 0, 1
	w.open() // retention keeps only the open part
	w.flush()
	want := "1:removed:1-3 2:removed:4-6 3:removed:7-9 4:removed:10-12 5:open:"
	if r := w.verify(""); !r.OK || !strings.HasPrefix(states(r), want) {
		t.Errorf("problems %q, parts %s; want none, first %s", problemKinds(r), states(r), want)
	}
	w.die()
	w.open()
	w.sound()
}

// If the last part is gone too, the log continues after the last seal.
func TestLogContinuesAfterLastSeal(t *testing.T) {
	w, c := newParts(t)
	w.call("a")
	w.rotate(c)
	w.die()
	w.reseal(1, func(s *seal) { at := c.now(); s.Removed = &at })
	w.remove(store.AuditPartFile(1), store.AuditPartFile(2))
	w.open()
	w.call("b")
	w.sound()
	wantKinds(t, w.list(Filter{}), "4:open:b 5:close:b")
}

// The shares of callers continue after rotations and restarts.
func TestSharesSurvivePartsAndRestarts(t *testing.T) {
	w, c := newParts(t)
	w.options.CallerDailyBytes = 4 << 10
	w.die()
	w.open()
	for w.log.Admit("ann") == nil {
		w.call("a")
		w.rotate(c)
	}
	if err := w.log.Admit("bob"); err != nil {
		t.Errorf("Admit of another caller: %v, want no error", err)
	}
	used := w.log.shares.bytes["ann"]
	w.die()
	w.open()
	err := w.log.Admit("ann")
	if !errdefs.IsResourceExhausted(err) || w.log.shares.bytes["ann"] != used {
		t.Errorf("Admit = %v with %d bytes charged; want ResourceExhausted with %d", err, w.log.shares.bytes["ann"], used)
	}
	// Operators' records are not charged, and a new day starts at zero.
	e, err := begin(t.Context(), w.log, Record{Call: "op", Caller: "ann", Action: "x", Uncharged: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(t.Context(), Record{}); err != nil || w.log.shares.bytes["ann"] != used {
		t.Errorf("Close = %v with %d bytes charged; want no error with %d", err, w.log.shares.bytes["ann"], used)
	}
	c.advance(24 * time.Hour)
	if err := w.log.Admit("ann"); err != nil {
		t.Errorf("Admit on the next day: %v, want no error", err)
	}
	c.advance(-24 * time.Hour)
	if err := w.log.Admit("ann"); err != nil {
		t.Errorf("Admit with the clock set back: %v, want no error", err)
	}
}
