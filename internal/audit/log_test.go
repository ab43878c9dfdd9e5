package audit

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a state directory with an open log.
type world struct {
	t   testing.TB
	dir string
	db  *store.AuditDB
	log *Log
	red *Redactor
	// options are additional options of the next open.
	options Options
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := &world{t: tb, dir: tb.TempDir(), red: NewRedactor()}
	w.open()
	tb.Cleanup(w.close)
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) open() {
	w.t.Helper()
	var err error
	if w.db, err = store.OpenAudit(w.t.Context(), w.dir); err != nil {
		w.t.Fatal(err)
	}
	o := w.options
	o.Store, o.Redactor, o.Head = w.db, w.red, w.path("audit.head")
	if w.log, err = Open(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) close() {
	if w.log == nil {
		return
	}
	if err := errors.Join(w.log.Close(), w.db.Close()); err != nil {
		w.t.Error(err)
	}
	w.log = nil
}

// die leaves everything open, as a killed process does.
func (w *world) die() {
	w.t.Helper()
	w.flush()
	w.close()
}

func (w *world) flush() {
	w.t.Helper()
	if err := w.log.Flush(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// begin starts a call and waits until it is recorded.
func begin(ctx context.Context, l *Log, r Record) (*Entry, error) {
	e, err := l.Start(ctx, r)
	if err != nil {
		return nil, err
	}
	return e, e.Opened(ctx)
}

func (w *world) begin(id string) *Entry {
	w.t.Helper()
	e, err := begin(w.t.Context(), w.log, Record{Call: id, Caller: "ann", Action: "system.bash", Trust: 2,
		Input: json.RawMessage(`{"command":"ls"}`)})
	if err != nil {
		w.t.Fatal(err)
	}
	return e
}

func (w *world) call(id string) {
	w.t.Helper()
	if err := w.begin(id).Close(w.t.Context(), Record{Verdict: "allow", Ending: "exit",
		Sandbox: "box-" + id}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) list(f Filter) []Stored {
	w.t.Helper()
	w.flush()
	all, _, err := w.log.List(w.t.Context(), f)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

func kinds(all []Stored) string {
	words := make([]string, 0, len(all))
	for _, r := range all {
		words = append(words, fmt.Sprintf("%d:%s:%s", r.Seq, r.Kind, r.Call))
	}
	return strings.Join(words, " ")
}

// wantKinds reports an error if there are other records than want, in the form of kinds.
func wantKinds(t *testing.T, all []Stored, want string) {
	t.Helper()
	if got := kinds(all); got != want {
		t.Errorf("records = %s, want %s", got, want)
	}
}

func TestCallHasOpenAndCloseRecord(t *testing.T) {
	w := newWorld(t)
	e := w.begin("c1")
	code := 3
	for range 2 { // the second open changes nothing
		if err := e.Close(t.Context(),
			Record{Verdict: "allow", Rule: "r", Ending: "exit", ExitCode: &code, Sandbox: "b1",
				CPUMS: 1.5}); err != nil {
			t.Fatal(err)
		}
	}
	all := w.list(Filter{})
	if got, want := kinds(all), "1:open:c1 2:close:c1"; got != want {
		t.Fatalf("records = %s, want %s", got, want)
	}
	open, end := all[0], all[1]
	if string(open.Input) != `{"command":"ls"}` || end.Input != nil {
		t.Errorf("inputs = %s and %s; want the command and none", open.Input, end.Input)
	}
	if end.Caller != "ann" || end.Action != "system.bash" || end.Trust != 2 || end.Verdict != "allow" ||
		*end.ExitCode != 3 || end.CPUMS != 1.5 {
		t.Errorf("close record = %+v, want the one of ann's system.bash with exit code 3", end.Record)
	}
	if open.Time.IsZero() || len(open.Hash) != 64 || open.Hash == end.Hash {
		t.Errorf("open record: time %v, hash %s; want a time and a hash of 64 digits other than the close's",
			open.Time, open.Hash)
	}
	if got, want := w.log.Head(t.Context()), "2:"+end.Hash; got != want {
		t.Errorf("head %s, want %s", got, want)
	}
	for _, f := range []string{"audit.db", "audit.key", "audit.head"} {
		if info, err := os.Stat(w.path(f)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("Stat(%s) = mode %v, %v; want 0600", f, info.Mode(), err)
		}
	}
}

func TestOpenClosesCallsOfCrash(t *testing.T) {
	w := newWorld(t)
	w.begin("c1")
	w.call("c2")
	w.begin("c3")
	w.die()
	w.open()
	all := w.list(Filter{After: 4})
	if got, want := kinds(all), "5:close:c1 6:close:c3"; got != want {
		t.Fatalf("records = %s, want %s", got, want)
	}
	if r := all[0]; r.Ending != LostEnding || r.Error != LostError || r.Caller != "ann" || r.Action != "system.bash" {
		t.Errorf("close record = %+v, want ann's system.bash with ending %s", r.Record, LostEnding)
	}
	w.die()
	w.open()
	if all := w.list(Filter{After: 6}); len(all) > 0 {
		t.Errorf("records after the second start = %s, want none", kinds(all))
	}
}

func TestFiltersMatchCloseRecords(t *testing.T) {
	w := newWorld(t)
	ends := []Record{{Verdict: "allow", Ending: "exit", Sandbox: "b1"}, {Verdict: "deny", Ending: "refused"},
		{Verdict: "allow", Ending: "timeout", Sandbox: "b2"}}
	for i, end := range ends {
		e, err := begin(t.Context(), w.log, Record{Call: fmt.Sprint("c", i), Caller: []string{"ann", "bob", "ann"}[i],
			Action: []string{"system.bash", "fs.read", "fs.read"}[i]})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Close(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	all := w.list(Filter{})
	for _, c := range []struct {
		f    Filter
		want string
	}{
		{Filter{Caller: "bob"}, "3:open:c1 4:close:c1"},
		{Filter{Caller: "ann", Ending: "timeout"}, "6:close:c2"},
		{Filter{Verdict: "deny"}, "4:close:c1"},
		{Filter{Action: "fs.read", Verdict: "allow"}, "6:close:c2"},
		{Filter{Sandbox: "b1"}, "2:close:c0"},
		{Filter{Call: "c2"}, "5:open:c2 6:close:c2"},
		{Filter{After: 2, Limit: 2}, "3:open:c1 4:close:c1"},
		{Filter{Newest: true, Limit: 2}, "5:open:c2 6:close:c2"},
		{Filter{Caller: "ann", Newest: true, Limit: 3}, "2:close:c0 5:open:c2 6:close:c2"},
		{Filter{Newest: true}, kinds(all)},
		{Filter{Since: all[0].Time}, kinds(all)},
		{Filter{Until: all[0].Time}, ""},
		{Filter{Since: time.Now().Add(time.Hour)}, ""},
		{Filter{Since: all[0].Time, Until: all[5].Time.Add(time.Hour), Caller: "bob"}, "3:open:c1 4:close:c1"},
		{Filter{Caller: "nobody", Newest: true, Limit: 1}, ""},
	} {
		if got := kinds(w.list(c.f)); got != c.want {
			t.Errorf("List(%+v) = %s, want %s", c.f, got, c.want)
		}
	}
}

func TestExportIsStoredBytesAndHash(t *testing.T) {
	w := newWorld(t)
	w.call("c1")
	all := w.list(Filter{})
	var b bytes.Buffer
	if err := w.log.Export(t.Context(), Filter{}, &b); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("Export wrote %q, want 2 lines", b.String())
	}
	prev := genesis().Hash
	for i, line := range lines {
		record, ok := strings.CutSuffix(line, `,"hash":"`+all[i].Hash+`"}`)
		if !ok || !json.Valid([]byte(line)) {
			t.Fatalf("line = %s, want JSON that ends with hash %s", line, all[i].Hash)
		}
		mac := newMAC(w.log.key)
		prev = chain(mac, prev, []byte(record+"}"))
		if fmt.Sprintf("%x", prev) != all[i].Hash {
			t.Errorf("line %d gives hash %x, want %s", i, prev, all[i].Hash)
		}
	}
	full := errors.New("full")
	if err := w.log.Export(t.Context(), Filter{}, writerFunc(func([]byte) (int, error) {
		return 0,
			full
	})); !errors.Is(err, full) {
		t.Errorf("Export to a full writer = %v, want its error", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestConcurrentCallsKeepOrder(t *testing.T) {
	w := newWorld(t)
	const callers, calls = 16, 25
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range calls {
				e, err := begin(t.Context(), w.log,
					Record{Call: fmt.Sprintf("c%d-%d", i, j), Caller: fmt.Sprint(i), Action: "a"})
				if err != nil {
					t.Error(err)
					return
				}
				if err := e.Close(t.Context(), Record{Ending: "exit"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	all := w.list(Filter{Limit: 10000})
	if len(all) != 2*callers*calls {
		t.Fatalf("%d records, want %d", len(all), 2*callers*calls)
	}
	open := map[string]bool{}
	for i, r := range all {
		if r.Seq != int64(i+1) {
			t.Fatalf("record %d has number %d, want %d", i, r.Seq, i+1)
		}
		if (r.Kind == KindOpen) == open[r.Call] {
			t.Fatalf("%s of call %s, want an open before its close", r.Kind, r.Call)
		}
		open[r.Call] = true
	}
	w.sound()
}

// failing is a store whose disk can be full.
type failing struct {
	Store
	mu  sync.Mutex
	err error
}

func (f *failing) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *failing) Append(ctx context.Context, rows []store.AuditRow) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	return f.Store.Append(ctx, rows)
}

func TestBeginFailsWithoutRecord(t *testing.T) {
	w := newWorld(t)
	w.close()
	db, err := store.OpenAudit(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	f := &failing{Store: db}
	if w.log, err = Open(t.Context(), Options{Store: f, Head: w.path("audit.head")}); err != nil {
		t.Fatal(err)
	}
	w.db = db
	e := w.begin("c1")
	full := errors.New("database or disk is full")
	f.set(full)
	if _, err := begin(t.Context(), w.log, Record{Call: "c2", Action: "a"}); !errors.Is(err, full) {
		t.Errorf("begin: %v, want %v", err, full)
	}
	if err := w.log.Event(t.Context(), Record{Action: "a"}); !errors.Is(err, full) {
		t.Errorf("Event: %v, want %v", err, full)
	}
	if err := e.Close(t.Context(), Record{Ending: "exit"}); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := w.log.Flush(t.Context()); !errors.Is(err, full) {
		t.Errorf("Flush: %v, want %v", err, full)
	}
	f.set(nil)
	wantKinds(t, w.list(Filter{}), "1:open:c1 2:close:c1")
	w.sound()
}

func TestBeginFailsOnFullDisk(t *testing.T) {
	w := newWorld(t)
	w.sql("CREATE TRIGGER full BEFORE INSERT ON records BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END")
	if _, err := begin(t.Context(), w.log, Record{Call: "c1", Action: "a"}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("begin on a full disk: %v, want ResourceExhausted", err)
	}
	w.sql("DROP TRIGGER full")
	w.begin("c2")
	wantKinds(t, w.list(Filter{}), "1:open:c2")
	w.sound()
}

func TestBeginFailsWithoutDatabase(t *testing.T) {
	w := newWorld(t)
	if err := w.db.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := begin(t.Context(), w.log, Record{Call: "c1", Action: "a"}); err == nil {
		t.Error("begin without a database succeeded, want an error")
	}
}

// Close reports a closing record that is lost with the log, and the next Open closes the call.
func TestCloseReportsFailedWrite(t *testing.T) {
	w := newWorld(t)
	e := w.begin("c1")
	w.sql("CREATE TRIGGER full BEFORE INSERT ON records BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END")
	if err := e.Close(t.Context(), Record{Ending: "exit"}); err != nil {
		t.Fatal(err)
	}
	if err := w.log.Close(); !errdefs.IsResourceExhausted(err) {
		t.Errorf("Close = %v, want ResourceExhausted", err)
	}
	if err := w.db.Close(); err != nil {
		t.Fatal(err)
	}
	w.log = nil
	db, err := sql.Open("sqlite", w.path(store.AuditFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "DROP TRIGGER full"); err != nil {
		t.Fatal(err)
	}
	db.Close()
	w.open()
	wantKinds(t, w.list(Filter{Ending: LostEnding}), "2:close:c1")
}

func TestBeginEndsWithContext(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := begin(ctx, w.log, Record{Call: "c1", Action: "a"})
	if got := kinds(w.list(Filter{})); (err == nil) != (got == "1:open:c1") {
		t.Errorf("begin: %v, records = %q; want 1:open:c1 exactly if begin succeeds", err, got)
	}
}

func TestClosedLogRefusesRecords(t *testing.T) {
	w := newWorld(t)
	e := w.begin("c1")
	w.flush()
	if err := w.log.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := begin(t.Context(), w.log, Record{Call: "c2", Action: "a"}); err == nil {
		t.Error("begin in a closed log succeeded, want an error")
	}
	if err := e.Close(t.Context(), Record{}); err == nil {
		t.Error("Close in a closed log succeeded, want an error")
	}
	if err := w.log.Flush(t.Context()); err == nil {
		t.Error("Flush of a closed log succeeded, want an error")
	}
}

func TestRecordsAreRedactedAndBounded(t *testing.T) {
	w := newWorld(t)
	w.red.Add("correct horse")
	long := strings.Repeat("x", 3*MaxInput)
	for _, r := range []Record{
		{
			Action: "a", Input: json.RawMessage(`{"command":"echo correct horse && ls > out"}`),
			Error: "no correct horse",
		},
		{Action: "a", Input: json.RawMessage(`{"content":"` + long + `"}`)},
		{Action: "a", Input: json.RawMessage(`{broken "correct horse`)},
		{Action: long + "correct horse", Error: "\x00\xff" + long},
	} {
		if err := w.log.Event(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	all := w.list(Filter{})
	if got := short(string(all[0].Input)); got != `{"command":"echo [redacted] && ls > out"}` ||
		short(all[0].Error) != "no [redacted]" {
		t.Errorf("record has input %s, error %s; want the value redacted in both", got, all[0].Error)
	}
	if r := all[1]; len(r.Input) > MaxInput || len(r.Input) < MaxInput*9/10 || r.InputBytes != len(long)+14 ||
		len(r.InputHash) != 64 {
		t.Errorf("record has %d of %d bytes, hash %s; want most of %d of %d bytes and a hash of 64 digits",
			len(r.Input), r.InputBytes, r.InputHash, MaxInput, len(long)+14)
	}
	if got, want := short(string(all[2].Input)), `"{broken \"[redacted]"`; got != want {
		t.Errorf("record has input %s, want %s", got, want)
	}
	if r := all[3]; len(r.Action) > maxName+8 || len(r.Error) > maxText+16 {
		t.Errorf("action has %d bytes, error %d; want at most %d and %d", len(r.Action), len(r.Error), maxName+8, maxText+16)
	}
	w.sound()
}
