package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func (w *world) refused(caller, action, rule, input string) {
	w.t.Helper()
	err := w.log.Refused(w.t.Context(), Record{Call: "c", Caller: caller, Action: action, Rule: rule, Verdict: "deny",
		Input: json.RawMessage(input)})
	if err != nil {
		w.t.Fatal(err)
	}
}

// counted returns the refusals in the log as "action rule count bytes".
func (w *world) counted(caller string) (lines []string, refusals int64) {
	w.t.Helper()
	for _, r := range w.list(Filter{Caller: caller}) {
		if r.Kind != KindRefused {
			continue
		}
		if r.Input != nil {
			w.t.Errorf("record %d has input %s, want none", r.Seq, r.Input)
		}
		lines = append(lines, fmt.Sprintf("%s %s %d %d", r.Action, r.Rule, r.Count, r.InputBytes))
		refusals += r.Count
	}
	return lines, refusals
}

func TestRefusalsAreCombined(t *testing.T) {
	w := newWorld(t)
	for range 1000 {
		w.refused("ann", "run", "quota:calls", `{"command":"secret"}`)
	}
	w.refused("ann", "read", "quota:calls", `{}`)
	w.refused("bob", "run", "quota:calls", `{}`)
	first := w.list(Filter{Caller: "ann"})[0]
	sum := sha256.Sum256([]byte(`{"command":"secret"}`))
	if first.Call != "c" || first.Count != 1 || first.InputBytes != 20 ||
		first.InputHash != hex.EncodeToString(sum[:]) || first.Verdict != "deny" {
		t.Errorf("first refusal = %+v, want a denial of call c with count 1 and the hash of the input", first.Record)
	}
	w.die() // the counted refusals are written
	w.open()
	w.sound()
	want := "run quota:calls 1 20, read quota:calls 1 2, run quota:calls 999 19980"
	if got, n := w.counted("ann"); n != 1001 || strings.Join(got, ", ") != want {
		t.Errorf("%d refusals of ann: %s; want 1001: %s", n, strings.Join(got, ", "), want)
	}
	if got, n := w.counted("bob"); n != 1 {
		t.Errorf("%d refusals of bob: %s; want 1", n, strings.Join(got, ", "))
	}
}

// A kind without refusals for a minute is forgotten: the next refusal is written at once.
func TestRefusalsAreWrittenEveryMinute(t *testing.T) {
	w := newWorld(t)
	l := &Log{store: w.db, redact: w.red, log: w.log.log, now: w.log.now, key: w.log.key, mac: newMAC(w.log.key),
		headUpdates: make(chan head, 1), part: w.log.part, last: w.log.written()}
	l.refusals.kinds = map[refusalKind]*refused{}
	l.shares = shares{now: l.now, bytes: map[string]int64{}}
	k := refusalKind{"ann", "run", "r"}
	for range 3 { // the first was written
		l.refusals.count(k, Record{Caller: "ann", Action: "run", Rule: "r", Kind: KindRefused})
	}
	for i, want := range []int64{1, 1, 1} {
		if err := l.writeRefusals(t.Context()); err != nil || l.last.Seq != want {
			t.Errorf("minute %d: %d records, %v; want %d", i, l.last.Seq, err, want)
		}
	}
	if len(l.refusals.kinds) > 0 {
		t.Errorf("kinds = %v, want none", l.refusals.kinds)
	}
}

func TestRefusalsAreKeptAfterFailedWrite(t *testing.T) {
	w := newWorld(t)
	f := &failing{Store: w.db}
	w.log.store = f
	f.set(errors.New("the disk is full"))
	if err := w.log.Refused(t.Context(), Record{Caller: "ann", Action: "run", Rule: "r"}); err == nil {
		t.Error("Refused on a full disk succeeded, want an error")
	}
	w.refused("ann", "run", "r", "")
	f.set(nil)
	w.refused("ann", "run", "r", "")
	w.die()
	w.open()
	if got, n := w.counted("ann"); n != 3 {
		t.Errorf("%d refusals: %s; want 3", n, strings.Join(got, ", "))
	}
	if used := w.log.shares.bytes["ann"]; used == 0 || used > 1000 {
		t.Errorf("charged with %d bytes, want 1 to 1000", used)
	}
}

// Over its share, a caller has two kinds of refusals, whatever it calls.
func TestRefusalsOverShareCombineActions(t *testing.T) {
	w := newWorld(t)
	w.options.CallerDailyBytes = 1
	w.die()
	w.open()
	w.event("one") // charged to ann
	for i := range 100 {
		w.refused("ann", fmt.Sprint("tool", i), "quota:calls", `{}`)
		w.refused("ann", fmt.Sprint("tool", i), fmt.Sprint("rate:tool", i), `{}`)
	}
	w.die()
	w.open()
	if got, n := w.counted("ann"); n != 200 || len(got) != 4 {
		t.Errorf("%d refusals: %s; want 200 in 4 records", n, strings.Join(got, ", "))
	}
}
