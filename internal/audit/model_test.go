package audit

import (
	"fmt"
	"math/rand/v2"

	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// model is the expected content of a log.
type model struct {
	*world
	clock   *clock
	rand    *rand.Rand
	records []string // "action call" of each record, from number 1
	parts   []int64  // the last record number of each sealed part
	removed int      // the number of deleted parts
	running []string
	calls   int
	trace   []string
}

// heldParts is how many sealed parts retention keeps.
const heldParts = 3

func newModel(t *testing.T, seed uint64) *model {
	t.Helper()
	w, c := newParts(t)
	return &model{world: w, clock: c, rand: rand.New(rand.NewPCG(seed, 1))}
}

func (m *model) note(format string, args ...any) {
	m.trace = append(m.trace, fmt.Sprintf(format, args...))
}

func (m *model) add(action, call string) { m.records = append(m.records, action+" "+call) }

// step performs one random operation or event of a service.
func (m *model) step() {
	switch n := m.rand.IntN(100); {
	case n < 35:
		m.note("event")
		m.event("event")
		m.add("event", "")
	case n < 55:
		m.calls++
		id := fmt.Sprint("c", m.calls)
		m.note("open %s", id)
		m.begin(id)
		m.add("system.bash", id)
		m.running = append(m.running, id)
	case n < 80:
		m.note("rotate")
		m.advanceAndRotate()
	default:
		m.crash()
	}
}

// advanceAndRotate rotates the open part if it has records.
func (m *model) advanceAndRotate() {
	m.settle()
	m.clock.advance(partAge)
	m.event("event")
	m.add("event", "")
	m.settle()
	m.sealedUpTo()
}

// sealedUpTo updates the ends of the parts: a part that was empty until now continues.
func (m *model) sealedUpTo() {
	parts, err := m.db.Parts(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	if len(parts)-1 > len(m.parts) {
		m.parts = append(m.parts, int64(len(m.records)))
		m.retained()
	}
}

// crash copies the files as a kill would leave them, including partial steps, and continues with
// the copy.
func (m *model) crash() {
	m.settle()
	m.die()
	dir := m.t.TempDir()
	m.copyTo(dir)
	m.dir = dir
	next := len(m.parts) + 2
	half := m.rand.IntN(6)
	keep := m.rand.IntN(3) == 0
	m.note("crash %d, keep %v", half, keep)
	switch half {
	case 0: // the next part was partly created
		m.write(store.AuditPartFile(next), "")
	case 1: // it was created, but the part has no seal yet
		made := &world{t: m.t, dir: m.t.TempDir()}
		p, err := store.OpenAudit(m.t.Context(), made.dir)
		if err != nil {
			m.t.Fatal(err)
		}
		p.Close()
		m.write(store.AuditPartFile(next), made.read(store.AuditFile))
	case 2:
		m.write(store.AuditSealFile(next-1)+".new", `{"part":`)
	case 3: // a part is marked as removed, and its file exists
		if m.removed < len(m.parts) {
			m.removed++
			m.reseal(m.removed, func(s *seal) { at := m.clock.now(); s.Removed = &at })
		}
	case 4: // the file of a removed part is gone, and its side files exist
		if m.removed > 0 {
			m.write(store.AuditPartFile(m.removed)+"-wal", "left")
		}
	}
	m.options.Retention.KeepAge = 0
	if keep {
		m.options.Retention.KeepAge = heldParts * partAge
	}
	m.open()
	m.settle()
	m.retained()
	for _, id := range m.running {
		m.add("system.bash", id)
	}
	m.running = nil
}

// retained applies what a start or a rotation deletes of old parts.
func (m *model) retained() {
	if m.options.Retention.KeepAge == 0 {
		return
	}
	for m.removed < len(m.parts) {
		s, err := parseSeal(m.log.key, m.removed+1, []byte(m.read(store.AuditSealFile(m.removed+1))))
		if err != nil {
			m.t.Fatal(err)
		}
		if m.clock.now().Sub(s.Sealed) < heldParts*partAge {
			return
		}
		m.removed++
		m.add(RemoveAction, "")
	}
}

// first returns the number of the first existing record.
func (m *model) first() int64 {
	if m.removed == 0 {
		return 1
	}
	return m.parts[m.removed-1] + 1
}

// check compares the log with the model.
func (m *model) check() {
	m.t.Helper()
	m.settle()
	all := m.list(Filter{Limit: len(m.records) + 1})
	got, want := make([]string, 0, len(all)), make([]string, 0, len(m.records))
	for _, r := range all {
		got = append(got, fmt.Sprintf("%d %s %s", r.Seq, r.Action, r.Call))
	}
	for i := m.first(); i <= int64(len(m.records)); i++ {
		want = append(want, fmt.Sprintf("%d %s", i, m.records[i-1]))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		m.t.Fatalf("records =\n%s\nwant\n%s\nafter %s", strings.Join(got, "\n"), strings.Join(want, "\n"),
			strings.Join(m.trace, ", "))
	}
	for name, r := range map[string]Report{"the service": m.verify(""), "offline": m.verifyFiles("")} {
		if !r.OK || r.Records != int64(len(want)) || len(r.Parts) != len(m.parts)+1 {
			m.t.Fatalf("%s: %s, %d records in %s, want %d, after %s", name, problemKinds(r), r.Records, states(r),
				len(want),
				strings.Join(m.trace, ", "))
		}
		for i, p := range r.Parts[:len(m.parts)] {
			if p.Last != m.parts[i] || (p.State == PartRemoved) != (i < m.removed) {
				m.t.Fatalf("%s: parts %s, want ends %v and %d removed, after %s", name, states(r), m.parts, m.removed,
					strings.Join(m.trace, ", "))
			}
		}
	}
}

// tamper changes the files as an attacker would, and returns a description, or "" if that is
// impossible.
func (m *model) tamper() string {
	last := len(m.parts) + 1
	part := m.removed + 1 + m.rand.IntN(last-m.removed)
	first, end := m.first(), int64(len(m.records))
	if part > 1 {
		first = m.parts[part-2] + 1
	}
	if part < last {
		end = m.parts[part-1]
	}
	if end < first {
		return ""
	}
	seq := first + m.rand.Int64N(end-first+1)
	switch n := m.rand.IntN(8); {
	case n == 0:
		m.sqlOf(part,
			fmt.Sprintf("UPDATE records SET record = replace(record, '\"kind\"', '\"kinds\"') WHERE seq = %d", seq))
	case n == 1:
		m.sqlOf(part, fmt.Sprintf("DELETE FROM records WHERE seq = %d", seq))
	case n == 2:
		m.sqlOf(part, fmt.Sprintf("DELETE FROM records WHERE seq >= %d", seq))
	case n == 3:
		m.sqlOf(part,
			fmt.Sprintf("INSERT INTO records (seq, record, prev, hash) SELECT 1000000, record, prev, hash FROM "+
				"records WHERE seq = %d", seq))
	case n == 4:
		m.remove(store.AuditPartFile(part), store.AuditPartFile(part)+"-wal", store.AuditPartFile(part)+"-shm")
	case part == last:
		return ""
	case n == 5:
		m.remove(store.AuditSealFile(part))
	case n == 6:
		text := []byte(m.read(store.AuditSealFile(part)))
		digit := strings.Index(string(text), `"last":`) + len(`"last":`)
		text[digit] = '1' + (text[digit]-'0')%9
		m.write(store.AuditSealFile(part), string(text))
	case n == 7: // the seal says removed, signed with another key
		m.remove(store.AuditPartFile(part))
		s, err := parseSeal([]byte(m.read(KeyFile)), part, []byte(m.read(store.AuditSealFile(part))))
		if err != nil {
			m.t.Fatal(err)
		}
		at := time.Now()
		s.Removed = &at
		text, err := s.sign([]byte(strings.Repeat("k", keyLength)))
		if err != nil {
			m.t.Fatal(err)
		}
		m.write(store.AuditSealFile(part), string(text))
	}
	return fmt.Sprintf("tampered with part %d of %d at record %d", part, last, seq)
}

// After any sequence of records, rotations, kills and deletions, the log matches the model and
// verifies. Verify finds a change that an attacker then makes to its files.
func TestLogMatchesModel(t *testing.T) {
	t.Parallel()
	runs := 12
	if testing.Short() {
		runs = 3
	}
	for seed := range uint64(runs) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			m := newModel(t, seed)
			for range 30 {
				m.step()
			}
			m.check()
			m.die()
			for range 6 {
				intact := m.dir
				m.dir = t.TempDir()
				(&world{t: t, dir: intact}).copyTo(m.dir)
				if what := m.tamper(); what != "" {
					if r := m.verifyFiles(""); r.OK {
						t.Errorf("%s: verify found no problem in %s after %s, want one", what, states(r), strings.Join(m.trace, ", "))
					}
					m.open()
					m.event("after")
					m.settle()
					if r := m.verify(""); r.OK {
						t.Errorf("%s, then a start: verify found no problem in %s after %s, want one", what, states(r),
							strings.Join(m.trace, ", "))
					}
					m.die()
				}
				m.dir = intact
			}
		})
	}
}
