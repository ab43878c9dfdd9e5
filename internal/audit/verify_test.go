package audit

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// sql tampers with the database from another connection.
func (w *world) sql(statements ...string) {
	w.t.Helper()
	w.sqlOf(1, statements...)
}

// sqlOf tampers with a part.
func (w *world) sqlOf(part int, statements ...string) {
	w.t.Helper()
	db, err := sql.Open("sqlite", w.path(store.AuditPartFile(part)))
	if err != nil {
		w.t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(w.t.Context(), s); err != nil {
			w.t.Fatalf("exec %q: %v", s, err)
		}
	}
}

func (w *world) verify(head string) Report {
	w.t.Helper()
	report, err := w.log.Verify(w.t.Context(), head)
	if err != nil {
		w.t.Fatal(err)
	}
	if report.OK != (len(report.Problems) == 0) {
		w.t.Errorf("OK = %t with %d problems, want OK exactly without problems", report.OK, len(report.Problems))
	}
	return report
}

func (w *world) sound() {
	w.t.Helper()
	w.flush()
	wantProblems(w.t, w.verify(""), "")
}

func problemKinds(r Report) string {
	all := make([]string, 0, len(r.Problems))
	for _, p := range r.Problems {
		all = append(all, fmt.Sprintf("%d:%s", p.Seq, p.Kind))
	}
	return strings.Join(all, " ")
}

// wantProblems reports an error if r has other problems than want, in the form of problemKinds.
func wantProblems(tb testing.TB, r Report, want string) {
	tb.Helper()
	if got := problemKinds(r); got != want || want == "" && !r.OK {
		tb.Errorf("problems = %q, OK %t; want %q", got, r.OK, want)
	}
}

// ten returns a log of ten events.
func ten(tb testing.TB) *world {
	tb.Helper()
	w := newWorld(tb)
	for i := range 10 {
		if err := w.log.Event(tb.Context(), Record{Action: fmt.Sprint("event-", i+1), Caller: "ann"}); err != nil {
			tb.Fatal(err)
		}
	}
	w.flush()
	return w
}

// copied opens a log with the files of a closed one.
func (w *world) copied(tb testing.TB) *world {
	tb.Helper()
	c := &world{t: tb, dir: tb.TempDir(), red: NewRedactor()}
	files, err := os.ReadDir(w.dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range files {
		c.write(f.Name(), w.read(f.Name()))
	}
	c.open()
	tb.Cleanup(c.close)
	return c
}

const (
	makeRoom = "UPDATE records SET seq = -seq - 1 WHERE seq > 5; UPDATE records SET seq = -seq WHERE seq < 0"
	closeUp  = "UPDATE records SET seq = -seq + 1 WHERE seq > 5; UPDATE records SET seq = -seq WHERE seq < 0"
	swap     = "UPDATE records SET seq = -1 WHERE seq = 5; UPDATE records SET seq = 5 WHERE seq = 6; UPDATE records " +
		"SET seq = 6 WHERE seq = -1"
	toBob  = "UPDATE records SET record = replace(record, 'ann', 'bob') WHERE seq = "
	forged = `'{"seq":6,"time":"2026-01-01T00:00:00.000000Z","kind":"event","action":"forged"}'`
)

func TestVerifyClassifiesTampering(t *testing.T) {
	whole := ten(t)
	whole.die()
	for _, c := range []struct{ name, sql, want string }{
		{"nothing", "", ""},
		{"text changed", "UPDATE records SET record = replace(record, 'ann', 'bob') WHERE seq = 5", "5:changed"},
		{"two changed", "UPDATE records SET record = replace(record, 'ann', 'bob') WHERE seq IN (5, 6)",
			"5:changed 6:changed"},
		{
			"two apart", "UPDATE records SET record = replace(record, 'ann', 'bob') WHERE seq IN (2, 7)",
			"2:changed 7:changed",
		},
		{"first changed", "UPDATE records SET record = replace(record, 'ann', 'bob') WHERE seq = 1", "1:changed"},
		{"last changed", "UPDATE records SET record = replace(record, 'ann', 'bob') WHERE seq = 10", "10:changed"},
		{"all changed", "UPDATE records SET record = replace(record, 'ann', 'bob')",
			"1:changed 2:changed 3:changed 4:changed 5:changed 6:changed 7:changed 8:changed 9:changed 10:changed"},
		{"moved to another caller", "UPDATE records SET caller = 'bob' WHERE seq = 5", "5:changed"},
		{"moved to another call", "UPDATE records SET call = 'x' WHERE seq = 5", "5:changed"},
		{"hash changed", "UPDATE records SET hash = x'00' WHERE seq = 5", "5:changed"},
		{"link changed", "UPDATE records SET prev = zeroblob(32) WHERE seq = 5", "5:changed"},
		{"text destroyed", "UPDATE records SET record = 'x' WHERE seq = 5", "5:changed"},
		{"text emptied", "UPDATE records SET record = '', hash = x'', prev = x'' WHERE seq = 5", "5:changed"},
		{"one removed", "DELETE FROM records WHERE seq = 5", "5:removed"},
		{"three removed", "DELETE FROM records WHERE seq IN (4, 5, 6)", "4:removed"},
		{"first removed", "DELETE FROM records WHERE seq < 3", "1:removed"},
		{"removed and closed up", "DELETE FROM records WHERE seq = 5; " + closeUp, "5:removed"},
		{"one removed, the next changed",
			"DELETE FROM records WHERE seq = 5; " + toBob + "6",
			"5:removed 6:changed"},
		{"the last but one removed, the last changed",
			"DELETE FROM records WHERE seq = 9; " + toBob + "10",
			"9:removed 10:changed"},
		{"one changed, the next removed",
			"DELETE FROM records WHERE seq = 6; " + toBob + "5",
			"5:changed 6:removed"},
		{"forged in between",
			makeRoom + "; INSERT INTO records (seq, record, prev, hash) SELECT 6, " + forged +
				", hash, randomblob(32) FROM records WHERE seq = 5", "6:inserted"},
		{"forged at the end",
			"INSERT INTO records (seq, record, prev, hash) SELECT 11, " + forged +
				", hash, randomblob(32) FROM records WHERE seq = 10", "11:inserted"},
		{"forged before all",
			"INSERT INTO records (seq, record, prev, hash) VALUES (0, " + forged + ", zeroblob(32), zeroblob(32))",
			"0:inserted"},
		{"copied to the end",
			"INSERT INTO records (seq, record, prev, hash) SELECT 11, record, prev, hash FROM records WHERE seq = 5",
			"11:inserted"},
		{"copied in between",
			makeRoom + "; INSERT INTO records (seq, record, prev, hash) SELECT 6, record, prev, hash FROM records " +
				"WHERE seq = 2", "6:inserted"},
		{"two exchanged", swap, "5:reordered"},
		{"their texts exchanged",
			"CREATE TEMP TABLE t AS SELECT seq, record FROM records; UPDATE records SET record = (SELECT record FROM " +
				"t WHERE t.seq = 11 - records.seq) WHERE seq IN (5, 6)", "5:reordered 6:reordered"},
		{"moved to the end", "UPDATE records SET seq = 11 WHERE seq = 5", "5:reordered"},
		{"all moved along", "UPDATE records SET seq = -seq - 100; UPDATE records SET seq = -seq", "1:reordered"},
		{"tail cut", "DELETE FROM records WHERE seq > 7", "8:cut"},
		{"all removed", "DELETE FROM records", "1:cut"},
		{"tail cut, its end changed",
			"DELETE FROM records WHERE seq > 7; " + toBob + "7",
			"7:changed 8:cut"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := whole.copied(t)
			if c.sql != "" {
				w.sql(c.sql)
			}
			if got := problemKinds(w.verify("")); got != c.want {
				t.Errorf("while it is open: %q, want %q", got, c.want)
			}
			// Another process knows only the head file.
			l := &Log{store: w.db, key: w.log.key, head: headFile{path: w.path("audit.head"), key: w.log.key}}
			r, err := l.Verify(t.Context(), "")
			if err != nil {
				t.Fatal(err)
			}
			if got := problemKinds(r); got != c.want {
				t.Errorf("by the head file: %q, want %q", got, c.want)
			}
		})
	}
}

func TestVerifyWithKeptHead(t *testing.T) {
	w := ten(t)
	kept := w.log.Head(t.Context())
	for range 3 {
		w.call("c")
	}
	w.flush()
	if r := w.verify(kept); !r.OK || r.Records != 16 || r.Head != w.log.Head(t.Context()) {
		t.Fatalf("Verify = %+v, want OK with 16 records and head %s", r, w.log.Head(t.Context()))
	}
	other := newWorld(t) // recreated by an attacker with key and disk
	for range 20 {
		other.call("c")
	}
	other.flush()
	wantProblems(t, other.verify(kept), "10:changed")
	short := newWorld(t)
	short.call("c")
	short.flush()
	wantProblems(t, short.verify(kept), "3:cut")
	for _, bad := range []string{"x", "1", "1:zz", "-1:" + strings.Repeat("0", 64), "1:00"} {
		if _, err := w.log.Verify(t.Context(), bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Verify with head %q: %v, want InvalidArgument", bad, err)
		}
	}
}

func TestVerifyBoundsProblems(t *testing.T) {
	w := newWorld(t)
	for range 150 {
		w.call("c")
	}
	w.flush()
	w.sql("UPDATE records SET record = replace(record, 'ann', 'bob') WHERE seq % 2 = 0")
	r := w.verify("")
	if len(r.Problems) != MaxProblems || !r.More || r.Records != 300 {
		t.Errorf("%d problems, more %t, %d records; want %d, true, 300", len(r.Problems), r.More, r.Records, MaxProblems)
	}
	w.sql("UPDATE records SET record = replace(record, 'ann', 'bob')")
	if r := w.verify(""); len(r.Problems) != MaxProblems || !r.More {
		t.Errorf("%d problems, more %t; want %d, true", len(r.Problems), r.More, MaxProblems)
	}
}

// damaged is a store with a range of unreadable rows.
type damaged struct {
	Store
	from, to int64
}

func (d damaged) ScanPart(ctx context.Context, part int, f store.AuditFilter, row func(store.AuditRow) error) error {
	after := f.After
	err := d.Store.ScanPart(ctx, part, f, func(r store.AuditRow) error {
		if r.Seq >= d.from && r.Seq <= d.to {
			return &store.AuditReadError{After: after, Err: errors.New("database disk image is malformed")}
		}
		after = r.Seq
		return row(r)
	})
	return err
}

func TestVerifyContinuesAfterUnreadableRows(t *testing.T) {
	w := ten(t)
	w.sql("UPDATE records SET record = replace(record, 'ann', 'bob') WHERE seq = 10")
	w.log.store = damaged{w.db, 4, 6}
	wantProblems(t, w.verify(""), "4:unreadable 10:changed")
	w.log.store = damaged{w.db, 1, 1 << 60}
	wantProblems(t, w.verify(""), "1:unreadable")
	w.log.store = w.db
}

// events returns the records that Open wrote about a head mismatch.
func (w *world) events() string {
	w.t.Helper()
	found := w.list(Filter{Action: HeadAction})
	all := make([]string, 0, len(found))
	for _, r := range found {
		all = append(all, r.Error)
	}
	return strings.Join(all, "\n")
}

func TestOpenComparesWithTheHeadFile(t *testing.T) {
	whole := ten(t)
	whole.die()
	for _, c := range []struct {
		name string
		do   func(w *world)
		want string // of the event, or ""
		then string // the problems that Verify finds
	}{
		{"it fits", func(*world) {}, "", ""},
		{"missing", func(w *world) { w.remove("audit.head") }, "no such file", "11:unreadable"},
		{"empty", func(w *world) { w.write("audit.head", "") }, "damaged", "11:unreadable"},
		{"forged", func(w *world) { w.write("audit.head", strings.Replace(w.read("audit.head"), "10:", "5:", 1)) },
			"was changed", "11:unreadable"},
		{"tail cut", func(w *world) { w.sql("DELETE FROM records WHERE seq > 7") },
			"ends at record 7, but the head file names record 10", "8:cut"},
		{"all removed", func(w *world) { w.remove("audit.db", "audit.db-wal", "audit.db-shm") },
			"ends at record 0, but the head file names record 10", "1:cut"},
		{"last hash changed", func(w *world) { w.sql("UPDATE records SET hash = zeroblob(32) WHERE seq = 10") },
			"record 10 does not match", "10:changed 11:changed"},
		{"key missing", func(w *world) { w.remove("audit.key") }, "key file is missing", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := whole.copied(t)
			w.die()
			c.do(w)
			w.open()
			if got := w.events(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("events about the head = %q, want %q", got, c.want)
			}
			if r := w.verify(""); c.name != "key missing" && problemKinds(r) != c.then {
				t.Errorf("problems after Open = %q, want %q", problemKinds(r), c.then)
			}
			w.die()
			w.open()
			if got := strings.Count(w.events(), "\n"); got > 0 {
				t.Error("the mismatch is reported again after a second start, want it once")
			}
		})
	}
}

func TestOlderHeadIsAccepted(t *testing.T) {
	w := ten(t)
	old := w.read("audit.head")
	w.call("c")
	w.die()
	w.write("audit.head", old)
	w.open()
	if got := w.events(); got != "" {
		t.Errorf("events about the head = %s, want none", got)
	}
	w.sound()
}

func TestKeyOfWrongLengthIsRefused(t *testing.T) {
	w := ten(t)
	w.die()
	w.write("audit.key", "short")
	db, err := store.OpenAudit(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := Open(t.Context(), Options{Store: db, Head: w.path("audit.head")}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Open with a short key: %v, want FailedPrecondition", err)
	}
}

func TestListAndExportSurviveDamage(t *testing.T) {
	w := ten(t)
	w.sql("UPDATE records SET record = 'x' WHERE seq = 5")
	if all := w.list(Filter{}); len(all) != 10 || all[4].Seq != 5 || all[4].Error == "" {
		t.Errorf("List = %s, want 10 records, the fifth with number 5 and an error", kinds(all))
	}
	var b strings.Builder
	if err := w.log.Export(t.Context(), Filter{}, &b); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("Export wrote %q, want valid JSON", line)
		}
	}
	if all := w.list(Filter{Caller: "ann"}); len(all) != 10 || all[4].Error == "" {
		t.Errorf("List of ann = %s, want 10 records, the fifth with an error", kinds(all))
	}
}

func (w *world) remove(names ...string) {
	for _, n := range names {
		if err := os.Remove(w.path(n)); err != nil && !os.IsNotExist(err) {
			w.t.Fatal(err)
		}
	}
}

func (w *world) read(name string) string {
	b, err := os.ReadFile(w.path(name))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

func (w *world) write(name, text string) {
	if err := os.WriteFile(w.path(name), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// TestVerifyRightAfterOpen checks that a log that was just opened has its head file, however late
// its goroutines run.
func TestVerifyRightAfterOpen(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	w := newWorld(t)
	if r := w.verify(""); !r.OK {
		t.Errorf("problems of a new log = %+v, want none", r.Problems)
	}
}
