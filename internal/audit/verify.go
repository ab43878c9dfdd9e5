package audit

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// MaxProblems is how many problems a report lists.
const MaxProblems = 100

// Report is what a verification found.
type Report struct {
	OK      bool
	Records int64
	// Head is "SEQ:HASH" of the last record whose hash is good: keep it
	// elsewhere, and a later verification with it finds a log that was cut or
	// made anew.
	Head     string
	Problems []Problem
	// More than MaxProblems were found.
	More bool
	// Parts are the files of the log, the oldest first.
	Parts []PartReport
}

// PartReport is what a verification found of one part of the log.
type PartReport struct {
	Number int
	State  PartState
	// First and Last are the numbers of its records as its seal says; of the open
	// part they are what was found. 0: there is none.
	First, Last int64
	// Removed is when the service deleted the part.
	Removed time.Time
}

// PartState says what there is of a part.
type PartState string

// The states. Removed is by retention, and Missing anything else.
const (
	PartOpen    PartState = "open"
	PartSealed  PartState = "sealed"
	PartRemoved PartState = "removed"
	PartMissing PartState = "missing"
)

// Problem is one thing that is wrong with the log.
type Problem struct {
	// Seq is the record's number, or the first of several.
	Seq     int64
	Kind    ProblemKind
	Message string
}

// ProblemKind says what was done to a record.
type ProblemKind string

// The kinds.
const (
	Changed    ProblemKind = "changed"
	Removed    ProblemKind = "removed"
	Inserted   ProblemKind = "inserted"
	Reordered  ProblemKind = "reordered"
	Cut        ProblemKind = "cut"
	Unreadable ProblemKind = "unreadable"
)

// Verify checks every record of all parts against the chain, the parts against
// their seals, and the end against the head file and what this process wrote;
// kept is a head ("SEQ:HASH") that somebody kept elsewhere, or "". It goes on after
// a problem. Records may be written meanwhile.
//
// What it cannot find: the key and the head file lie beside the log, so whoever
// can read the key and write the directory can make the whole log anew, or take
// back log and head to an older copy of both. Only a head that was kept out of
// their reach shows that, and only for the records up to it. It also does not
// know of what was never recorded, nor of what was done to a part before
// retention deleted it. The last records before a loss of power may
// be missing, and then the head file says that they were cut. The next start
// writes that into the log, and it stays a problem of this log for good.
func (l *Log) Verify(ctx context.Context, kept string) (Report, error) {
	written := witness{head: l.written(), name: "the last record that was written"}
	return verify(ctx, l.store, l.key, l.head.read, kept, written)
}

// VerifyFiles is Verify for the files in dir, of a service that does not run or
// copied from one. key is the path of the key file. It changes nothing, unless a
// part has a write-ahead log. With a kept head, no head file is needed.
func VerifyFiles(ctx context.Context, dir, key, kept string) (Report, error) {
	secret, err := os.ReadFile(key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Report{}, fmt.Errorf("the audit log's key: %w: %w", err, errdefs.ErrNotFound)
	case err != nil:
		return Report{}, fmt.Errorf("the audit log's key: %w", err)
	case len(secret) != keyLength:
		return Report{}, fmt.Errorf("the audit log's key %s has %d bytes instead of %d: %w", key, len(secret), keyLength, errdefs.ErrInvalidArgument)
	}
	file := headFile{path: filepath.Join(dir, HeadFile), key: secret}
	read := func() (head, error) {
		h, err := file.read()
		if errors.Is(err, fs.ErrNotExist) && kept != "" {
			return genesis(), nil
		}
		return h, err
	}
	return verify(ctx, store.OpenAuditFiles(dir), secret, read, kept)
}

func verify(ctx context.Context, r partReader, key []byte, read func() (head, error), kept string, heads ...witness) (Report, error) {
	if kept != "" {
		h, err := parseHead(kept)
		if err != nil {
			return Report{}, err
		}
		heads = append([]witness{{head: h, name: "the head that was given"}}, heads...)
	}
	v := &verifier{key: key, mac: newMAC(key), last: genesis()}
	h, err := read() // without a Flush it is older, which does no harm
	if err != nil {
		v.problem(0, Unreadable, "the head file cannot be used: %v", err)
		h = genesis()
	}
	heads = append(heads, witness{head: h, name: "the head file"})
	v.heads = heads
	parts, err := r.Parts(ctx) // behind the heads: they are of records in these parts
	if err != nil {
		return Report{}, err
	}
	if err := v.scanAll(ctx, r, parts); err != nil {
		return Report{}, err
	}
	return v.report(), nil
}

// witness is a head that says which record stood at its number.
type witness struct {
	head
	name string
	seen bool
}

// verifier goes through the rows in order. What holds the log together is the
// hash of each record over its own text and the hash before: a row whose hash
// is good was written by us, with the number that is in its text, wherever it
// stands now.
type verifier struct {
	key   []byte
	mac   hash.Hash
	sum   []byte
	heads []witness
	// sealed is the place of a seal among heads, behind the head file; 0: there is none.
	sealed int

	records int64
	last    head  // the furthest record whose hash is good
	shift   int64 // by how much row numbers exceed those in the text
	gaps    []gap // what is missing so far
	bad     []bad // rows behind last whose hash is not good
	badMore int64 // of them, beyond what is kept in bad
	blind   bool  // something behind last could not be read: what is missing may be there

	problems []Problem
	more     bool
	parts    []PartReport
}

// gap is numbers that did not come, from and to inclusive.
type gap struct{ from, to int64 }

// bad is a row whose hash is not good: what it says of itself cannot be trusted.
type bad struct {
	row, claims int64
	prev, hash  []byte
}

// maxGaps bounds what is remembered of missing records.
const maxGaps = 10 * MaxProblems

func (v *verifier) problem(seq int64, kind ProblemKind, format string, args ...any) {
	if len(v.problems) == MaxProblems {
		v.more = true
		return
	}
	v.problems = append(v.problems, Problem{seq, kind, fmt.Sprintf(format, args...)})
}

// end is the highest number that a record may have.
func (v *verifier) end() int64 {
	end := v.last.Seq
	for _, w := range v.heads {
		end = max(end, w.Seq)
	}
	return end
}

func (v *verifier) row(r store.AuditRow) {
	v.records++
	v.mac.Reset()
	v.mac.Write(r.Prev)
	v.mac.Write(r.Record)
	v.sum = v.mac.Sum(v.sum[:0])
	claims, ok := seqOf(r.Record)
	if !hmac.Equal(v.sum, r.Hash) || !ok {
		v.keepBad(r, claims)
		return
	}
	switch {
	case bytes.Equal(r.Prev, v.last.Hash) && claims == v.last.Seq+1:
		v.settle(claims, r.Prev)
	case claims > v.last.Seq:
		v.missing(claims, r.Prev)
	default:
		v.late(r.Seq, claims)
		return
	}
	v.renumbered(r.Seq, claims)
	call, caller := found(r.Record)
	if call != r.Call || caller != r.Caller {
		v.problem(claims, Changed, "record %d is found by another call or caller than it says", claims)
	}
	if call == "" && caller == "" {
		v.testimony(claims, r.Record)
	}
	v.blind = false
	v.last.Seq = claims
	v.last.Hash = append(v.last.Hash[:0], r.Hash...)
	v.testify()
}

// testimony is what a start found out about the log and wrote into it: from
// then on the head file fits again, and nothing else tells. Events of callers
// have their names.
func (v *verifier) testimony(seq int64, record []byte) {
	if !bytes.Contains(record, []byte(HeadAction)) {
		return
	}
	if r, err := decode(record); err == nil && r.Kind == KindEvent && r.Action == HeadAction {
		v.problem(seq, ProblemKind(r.Ending), "a start of the service found that %s", r.Error)
	}
}

// seqOf reads the number at the beginning of a record.
func seqOf(record []byte) (int64, bool) {
	rest, ok := bytes.CutPrefix(record, []byte(seqPrefix))
	if !ok {
		return 0, false
	}
	end := bytes.IndexByte(rest[:min(len(rest), 20)], ',')
	if end < 0 {
		return 0, false
	}
	n, err := strconv.ParseInt(string(rest[:end]), 10, 64)
	return n, err == nil
}

func (v *verifier) keepBad(r store.AuditRow, claims int64) {
	if len(v.bad) == MaxProblems {
		v.badMore++
		return
	}
	v.bad = append(v.bad, bad{row: r.Seq, claims: claims, prev: bytes.Clone(r.Prev), hash: bytes.Clone(r.Hash)})
}

// missing handles a good record that does not follow the last one.
func (v *verifier) missing(claims int64, prev []byte) {
	first := v.last.Seq + 1
	if claims == first {
		// Both are ours and next to each other, but do not belong together.
		v.problem(claims, Removed, "record %d does not follow the one before it: the log was taken back to an older copy, and went on", claims)
	}
	lost := v.badMore > 0 // some rows may stand for any number
	v.absent(v.settle(claims, prev), claims, lost)
}

// absent notes which numbers behind the last good record and before next have
// no row; there says, in order, which have one.
func (v *verifier) absent(there []int64, next int64, lost bool) {
	if v.blind || lost {
		return
	}
	from := v.last.Seq + 1
	for _, at := range append(there, next) {
		if from < at && len(v.gaps) < maxGaps {
			v.gaps = append(v.gaps, gap{from, at - 1})
		} else if from < at {
			v.problem(from, Removed, "%s", missingText(gap{from, at - 1}))
		}
		from = at + 1
	}
}

// settle judges the bad rows before the good record next, which has the hash
// prev before it: as many as numbers are missing were changed, the others
// inserted. It returns the numbers that rows stand for, in order.
func (v *verifier) settle(next int64, prev []byte) (there []int64) {
	if len(v.bad) == 0 {
		return nil
	}
	places := next - v.last.Seq - 1
	changed := v.choose(places, prev)
	for i, b := range v.bad {
		if !changed[i] {
			v.problem(b.row, Inserted, "a record at row %d was never written", b.row)
			continue
		}
		at := v.last.Seq + 1
		if len(there) > 0 {
			at = there[len(there)-1] + 1
		}
		// Where the row says, but so that the changed ones behind it have a place.
		at = max(at, min(b.row-v.shift, next-int64(count(changed[i:]))))
		there = append(there, at)
		if v.swapped(b, at) {
			v.problem(at, Reordered, "the text of record %d says that it is record %d", at, b.claims)
		} else {
			v.problem(at, Changed, "the hash of record %d does not fit what it says", at)
		}
	}
	v.more = v.more || v.badMore > 0
	v.bad, v.badMore = v.bad[:0], 0
	return there
}

// choose says which of the bad rows stand for the numbers that are missing;
// those first that still hold on to a neighbour.
func (v *verifier) choose(places int64, prev []byte) []bool {
	rows := int64(len(v.bad)) + v.badMore
	changed := make([]bool, len(v.bad))
	for pass := range 2 {
		for i, b := range v.bad {
			if !changed[i] && places > 0 && (pass == 1 || places >= rows || v.linked(i, b, prev)) {
				changed[i] = true
				places--
			}
		}
	}
	return changed
}

func count(all []bool) (n int) {
	for _, b := range all {
		if b {
			n++
		}
	}
	return n
}

// linked says whether a bad row still holds on to a neighbour.
func (v *verifier) linked(i int, b bad, prev []byte) bool {
	before := v.last.Hash
	if i > 0 {
		before = v.bad[i-1].hash
	}
	after := prev
	if i+1 < len(v.bad) {
		after = v.bad[i+1].prev
	}
	return len(b.hash) > 0 && bytes.Equal(b.hash, after) || i == 0 && len(after) == 0 && bytes.Equal(b.prev, before)
}

// swapped says whether a bad row has the text of another one beside it, which
// has that of a third.
func (v *verifier) swapped(b bad, at int64) bool {
	if b.claims == at {
		return false
	}
	for _, o := range v.bad {
		if o.row == b.claims+v.shift && o.claims != b.claims {
			return true
		}
	}
	return false
}

// late handles a good record that comes behind one with a higher number.
func (v *verifier) late(row, claims int64) {
	for i, g := range v.gaps {
		if claims < g.from || claims > g.to {
			continue
		}
		v.problem(claims, Reordered, "record %d stands at row %d, behind later ones", claims, row)
		rest := []gap{{g.from, claims - 1}, {claims + 1, g.to}}
		v.gaps = append(v.gaps[:i], v.gaps[i+1:]...)
		for _, r := range rest {
			if r.from <= r.to {
				v.gaps = append(v.gaps, r)
			}
		}
		return
	}
	v.problem(row, Inserted, "the record at row %d is a copy of record %d", row, claims)
}

// renumbered tells of rows that were moved along without a trace beside.
func (v *verifier) renumbered(row, claims int64) {
	shift := row - claims
	if shift != v.shift && len(v.problems) == 0 && len(v.gaps) == 0 {
		v.problem(claims, Reordered, "record %d stands at row %d", claims, row)
	}
	v.shift = shift
}

// testify compares the last record with the heads.
func (v *verifier) testify() {
	for i := range v.heads {
		w := &v.heads[i]
		if w.seen || w.Seq > v.last.Seq {
			continue
		}
		if w.Seq == v.last.Seq && !hmac.Equal(w.Hash, v.last.Hash) {
			v.problem(w.Seq, Changed, "record %d is not the one that %s names: the log was made anew, or is another", w.Seq, w.name)
		}
		w.seen = true // what is passed over is a gap or a bad row, and told as that
	}
}

func (v *verifier) report() Report {
	end, tail, lost := v.end(), v.last.Seq, v.badMore > 0
	if there := v.settle(end+1, nil); len(there) > 0 {
		tail = there[len(there)-1]
		v.absent(there[:len(there)-1], tail, lost)
	}
	for _, g := range v.gaps {
		v.problem(g.from, Removed, "%s", missingText(g))
	}
	for i, w := range v.heads {
		if w.Seq > tail && w.Seq == end && !v.told(i) && !v.blind {
			v.problem(tail+1, Cut, "the log ends at record %d, and %s is record %d", tail, w.name, w.Seq)
		}
	}
	slices.SortStableFunc(v.problems, func(a, b Problem) int { return cmp.Compare(a.Seq, b.Seq) })
	return Report{OK: len(v.problems) == 0, Records: v.records, Head: v.last.String(), Problems: append([]Problem{}, v.problems...), More: v.more, Parts: v.parts}
}

// told says whether a head before the i-th one has the same number.
func (v *verifier) told(i int) bool {
	for _, w := range v.heads[:i] {
		if w.Seq == v.heads[i].Seq {
			return true
		}
	}
	return false
}

func missingText(g gap) string {
	if g.from == g.to {
		return fmt.Sprintf("record %d is missing", g.from)
	}
	return fmt.Sprintf("the records from %d to %d are missing", g.from, g.to)
}
