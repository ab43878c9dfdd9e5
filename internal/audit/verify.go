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

// MaxProblems is the maximum number of problems in a report.
const MaxProblems = 100

// Report is the result of a verification.
type Report struct {
	OK      bool
	Records int64
	// Head is "SEQ:HASH" of the last record with a valid hash. Keep it elsewhere: a later
	// verification with it detects a log that was truncated or recreated.
	Head     string
	Problems []Problem
	// More reports that more than MaxProblems were found.
	More bool
	// Parts describes the files of the log, oldest first.
	Parts []PartReport
}

// PartReport is the verification result of one part of the log.
type PartReport struct {
	Number int
	State  PartState
	// First and Last are the sequence numbers of the part's records. They come from its seal, or
	// for the open part from its records. 0 means none.
	First, Last int64
	// Removed is when the service deleted the part.
	Removed time.Time
}

// PartState is the state of a part.
type PartState string

// The states. Removed means deleted by retention; Missing means gone for any other reason.
const (
	PartOpen    PartState = "open"
	PartSealed  PartState = "sealed"
	PartRemoved PartState = "removed"
	PartMissing PartState = "missing"
)

// Problem is one defect of the log.
type Problem struct {
	// Seq is the sequence number of the record, or of the first of several.
	Seq     int64
	Kind    ProblemKind
	Message string
}

// ProblemKind is the kind of a defect.
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

// Verify checks every record against the chain, every part against its seal, and the end of the log
// against the head file and what this process wrote. kept is a head ("SEQ:HASH") that an operator
// kept elsewhere, or "". Verify continues after a problem. Records may be written at the same time.
//
// Limits: the key and the head file are beside the log. An attacker who can read the key and write
// the directory can recreate the log, or restore older copies of log and head. Only a kept head out
// of the attacker's reach detects that, and only for records up to it. Verify does not detect
// events that were never recorded, or changes to a part before retention deleted it.
//
// A power loss can remove the last records. The head file then reports a truncated log. The next
// start records that, and it stays a problem of this log permanently.
func (l *Log) Verify(ctx context.Context, kept string) (Report, error) {
	written := witness{head: l.written(), name: "the last written record"}
	return verify(ctx, l.store, l.key, l.head.read, kept, written)
}

// VerifyFiles is Verify for the files in dir, of a stopped service or a copy. key is the path of
// the key file. It modifies nothing unless a part has a write-ahead log. With a kept head, the head
// file may be missing.
func VerifyFiles(ctx context.Context, dir, key, kept string) (Report, error) {
	secret, err := os.ReadFile(key)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Report{}, fmt.Errorf("read the audit log's key: %w: %w", err, errdefs.ErrNotFound)
	case err != nil:
		return Report{}, fmt.Errorf("read the audit log's key: %w", err)
	case len(secret) != keyLength:
		return Report{}, fmt.Errorf("invalid audit log key %s: %d bytes, want %d: %w", key, len(secret), keyLength,
			errdefs.ErrInvalidArgument)
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

func verify(
	ctx context.Context, r partReader, key []byte, read func() (head, error), kept string, heads ...witness,
) (Report, error) {
	if kept != "" {
		h, err := parseHead(kept)
		if err != nil {
			return Report{}, err
		}
		heads = append([]witness{{head: h, name: "the given head"}}, heads...)
	}
	v := &verifier{key: key, mac: newMAC(key), last: genesis()}
	h, err := read() // without a Flush it is older, which is harmless
	if err != nil {
		v.problem(0, Unreadable, "the head file cannot be used: %v", err)
		h = genesis()
	}
	heads = append(heads, witness{head: h, name: "the head file"})
	v.heads = heads
	parts, err := r.Parts(ctx) // read after the heads, so that their records are in these parts
	if err != nil {
		return Report{}, err
	}
	if err := v.scanAll(ctx, r, parts); err != nil {
		return Report{}, err
	}
	return v.report(), nil
}

// witness is a head that attests which record had its sequence number.
type witness struct {
	head
	name string
	seen bool
}

// verifier checks the rows in order. The hash of each record covers its text and the hash before
// it. A row with a valid hash was therefore written by the service, under the sequence number in
// its text, wherever the row is now.
type verifier struct {
	key   []byte
	mac   hash.Hash
	sum   []byte
	heads []witness
	// sealed is the index of a seal in heads, after the head file. 0 means none.
	sealed int

	records    int64
	last       head     // furthest record with a valid hash
	shift      int64    // how far row numbers exceed those in the text
	gaps       []gap    // missing numbers so far
	bad        []badRow // rows after last with an invalid hash
	badMore    int64    // number of such rows beyond those in bad
	unreadable bool     // rows after last could not be read: missing records may be among them

	problems []Problem
	more     bool
	parts    []PartReport
}

// gap is a range of missing sequence numbers, inclusive.
type gap struct{ from, to int64 }

// badRow is a row with an invalid hash. Its content cannot be trusted.
type badRow struct {
	row, claims int64
	prev, hash  []byte
}

// maxGaps bounds the number of remembered gaps.
const maxGaps = 10 * MaxProblems

func (v *verifier) problem(seq int64, kind ProblemKind, format string, args ...any) {
	if len(v.problems) == MaxProblems {
		v.more = true
		return
	}
	v.problems = append(v.problems, Problem{seq, kind, fmt.Sprintf(format, args...)})
}

// maxSeq returns the highest sequence number that a record may have.
func (v *verifier) maxSeq() int64 {
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
		v.classifyBad(claims, r.Prev)
	case claims > v.last.Seq:
		v.handleMissing(claims, r.Prev)
	default:
		v.handleLate(r.Seq, claims)
		return
	}
	v.reportRenumbered(r.Seq, claims)
	call, caller := recordKeys(r.Record)
	if call != r.Call || caller != r.Caller {
		v.problem(claims, Changed, "the index of record %d names a different call or caller than its text", claims)
	}
	if call == "" && caller == "" {
		v.readHeadEvent(claims, r.Record)
	}
	v.unreadable = false
	v.last.Seq = claims
	v.last.Hash = append(v.last.Hash[:0], r.Hash...)
	v.checkHeads()
}

// readHeadEvent reports a mismatch that an earlier start recorded. The head file fits again since
// then, so only this record shows it. Callers' events are ignored: they have a caller.
func (v *verifier) readHeadEvent(seq int64, record []byte) {
	if !bytes.Contains(record, []byte(HeadAction)) {
		return
	}
	if r, err := decode(record); err == nil && r.Kind == KindEvent && r.Action == HeadAction {
		v.problem(seq, ProblemKind(r.Ending), "a start of the service found that %s", r.Error)
	}
}

// seqOf returns the sequence number at the start of a record.
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
	v.bad = append(v.bad, badRow{row: r.Seq, claims: claims, prev: bytes.Clone(r.Prev), hash: bytes.Clone(r.Hash)})
}

// handleMissing handles a valid record that does not follow the last one.
func (v *verifier) handleMissing(claims int64, prev []byte) {
	first := v.last.Seq + 1
	if claims == first {
		// Both records are valid and adjacent, but do not belong together.
		v.problem(claims, Removed,
			"record %d does not follow the record before it: the log was restored from an older copy and continued",
			claims)
	}
	lost := v.badMore > 0 // some rows may stand for any number
	v.noteAbsent(v.classifyBad(claims, prev), claims, lost)
}

// noteAbsent notes the sequence numbers between the last valid record and next that have no row.
// there lists, in order, those that have one.
func (v *verifier) noteAbsent(there []int64, next int64, lost bool) {
	if v.unreadable || lost {
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

// classifyBad classifies the bad rows before the valid record next, whose previous hash is prev. As
// many rows as there are missing numbers count as changed, the others as inserted. It returns the
// numbers that rows stand for, in order.
func (v *verifier) classifyBad(next int64, prev []byte) (there []int64) {
	if len(v.bad) == 0 {
		return nil
	}
	places := next - v.last.Seq - 1
	changed := v.chooseChanged(places, prev)
	for i, b := range v.bad {
		if !changed[i] {
			v.problem(b.row, Inserted, "a record at row %d was never written", b.row)
			continue
		}
		at := v.last.Seq + 1
		if len(there) > 0 {
			at = there[len(there)-1] + 1
		}
		// Use the row's own position, but leave room for the changed rows after it.
		at = max(at, min(b.row-v.shift, next-int64(count(changed[i:]))))
		there = append(there, at)
		if v.isSwapped(b, at) {
			v.problem(at, Reordered, "the text of record %d has the number of record %d", at, b.claims)
		} else {
			v.problem(at, Changed, "the hash of record %d does not match its text", at)
		}
	}
	v.more = v.more || v.badMore > 0
	v.bad, v.badMore = v.bad[:0], 0
	return there
}

// chooseChanged selects the bad rows that stand for the missing numbers. It prefers rows that still
// link to a neighbor.
func (v *verifier) chooseChanged(places int64, prev []byte) []bool {
	rows := int64(len(v.bad)) + v.badMore
	changed := make([]bool, len(v.bad))
	for pass := range 2 {
		for i, b := range v.bad {
			if !changed[i] && places > 0 && (pass == 1 || places >= rows || v.isLinked(i, b, prev)) {
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

// isLinked reports whether a bad row still links to a neighbor.
func (v *verifier) isLinked(i int, b badRow, prev []byte) bool {
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

// isSwapped reports whether a bad row has the text of an adjacent row, and that row has the text of
// a third.
func (v *verifier) isSwapped(b badRow, at int64) bool {
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

// handleLate handles a valid record that comes after one with a higher number.
func (v *verifier) handleLate(row, claims int64) {
	for i, g := range v.gaps {
		if claims < g.from || claims > g.to {
			continue
		}
		v.problem(claims, Reordered, "record %d is at row %d, after later records", claims, row)
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

// reportRenumbered reports rows that were shifted without any other trace.
func (v *verifier) reportRenumbered(row, claims int64) {
	shift := row - claims
	if shift != v.shift && len(v.problems) == 0 && len(v.gaps) == 0 {
		v.problem(claims, Reordered, "record %d is at row %d", claims, row)
	}
	v.shift = shift
}

// checkHeads compares the last record with the heads.
func (v *verifier) checkHeads() {
	for i := range v.heads {
		w := &v.heads[i]
		if w.seen || w.Seq > v.last.Seq {
			continue
		}
		if w.Seq == v.last.Seq && !hmac.Equal(w.Hash, v.last.Hash) {
			v.problem(w.Seq, Changed, "record %d does not match %s: the log was recreated, or is a different log",
				w.Seq, w.name)
		}
		w.seen = true // skipped numbers are gaps or bad rows, and are reported as such
	}
}

func (v *verifier) report() Report {
	end, tail, lost := v.maxSeq(), v.last.Seq, v.badMore > 0
	if there := v.classifyBad(end+1, nil); len(there) > 0 {
		tail = there[len(there)-1]
		v.noteAbsent(there[:len(there)-1], tail, lost)
	}
	for _, g := range v.gaps {
		v.problem(g.from, Removed, "%s", missingText(g))
	}
	for i, w := range v.heads {
		if w.Seq > tail && w.Seq == end && !v.alreadyReported(i) && !v.unreadable {
			v.problem(tail+1, Cut, "the log ends at record %d, but %s is record %d", tail, w.name, w.Seq)
		}
	}
	slices.SortStableFunc(v.problems, func(a, b Problem) int { return cmp.Compare(a.Seq, b.Seq) })
	return Report{OK: len(v.problems) == 0, Records: v.records, Head: v.last.String(), Problems: append([]Problem{},
		v.problems...), More: v.more, Parts: v.parts}
}

// alreadyReported reports whether a head before the i-th one has the same number.
func (v *verifier) alreadyReported(i int) bool {
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
