package audit

import (
	"context"
	"errors"
	"io/fs"
	"math"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// scanAll checks the parts in order.
func (v *verifier) scanAll(ctx context.Context, r partReader, parts []store.AuditPart) error {
	// An interrupted rotation leaves an empty part after one without a seal.
	if n := len(parts); n > 1 && parts[n-1].Seal == nil && parts[n-2].Seal == nil && r.IsEmpty(ctx, n) {
		parts = parts[:n-1]
	}
	for i, p := range parts {
		err := v.scanPart(ctx, r, p, i == len(parts)-1)
		if errors.Is(err, fs.ErrNotExist) { // removed in the meantime, or sealed and removed
			var now []store.AuditPart
			if now, err = r.Parts(ctx); err == nil && p.Number <= len(now) {
				p = now[p.Number-1]
				p.Present = false
				err = v.scanPart(ctx, r, p, false)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// scanPart checks one part, and its seal if it has one. The last part has none while it is written.
func (v *verifier) scanPart(ctx context.Context, r partReader, p store.AuditPart, last bool) error {
	report := PartReport{Number: p.Number, State: PartSealed}
	s, err := parseSeal(v.key, p.Number, p.Seal)
	sealed := err == nil
	switch {
	case sealed:
		report.First, report.Last = s.First, s.Last
	case p.Seal != nil:
		v.problem(v.last.Seq+1, Changed, "%v", err)
	case last:
		report.State = PartOpen
	default:
		v.problem(v.last.Seq+1, Removed, "the seal of part %d is missing", p.Number)
	}
	if !p.Present {
		v.parts = append(v.parts, v.absentPart(report, s, sealed))
		return nil
	}
	before, end := v.last.Seq, v.maxSeq()
	if sealed {
		end = s.Last
	}
	if err := v.scan(ctx, r, p.Number, end); err != nil {
		return err
	}
	if sealed {
		v.checkSeal(s)
	} else if v.last.Seq > before {
		report.First, report.Last = before+1, v.last.Seq
	}
	v.parts = append(v.parts, report)
	return nil
}

// absentPart handles a part without a file. Its seal stands for its records.
func (v *verifier) absentPart(report PartReport, s seal, sealed bool) PartReport {
	report.State = PartMissing
	if !sealed {
		return report // the records after it show what is missing
	}
	v.missingBefore(s)
	if s.Removed != nil {
		report.State, report.Removed = PartRemoved, *s.Removed
	} else {
		v.problem(s.First, Removed, "the file of part %d is missing, with the records from %d to %d", s.Part, s.First,
			s.Last)
	}
	if s.Last > v.last.Seq {
		v.last, v.unreadable = s.head(), false
		v.checkHeads()
	}
	return report
}

// missingBefore checks what precedes the first record of an absent part.
func (v *verifier) missingBefore(s seal) {
	lost := v.badMore > 0 // some rows may stand for any number
	there := v.classifyBad(s.First, s.before().Hash)
	switch {
	case s.First > v.last.Seq+1:
		v.noteAbsent(there, s.First, lost)
	case !s.follows(v.last) && !v.unreadable:
		v.problem(s.First, Removed,
			"part %d does not follow the records before it: the log was restored from an older copy and continued",
			s.Part)
	}
}

// checkSeal compares the end of a part with its seal. If the records end early, the next part
// reports that it does not follow.
func (v *verifier) checkSeal(s seal) {
	h := s.head()
	switch {
	case v.last.Seq > s.Last:
		v.problem(s.Last+1, Inserted, "part %d continues after record %d, where it ends according to its seal", s.Part,
			s.Last)
	case v.last.Seq == s.Last && v.last.String() != h.String():
		v.problem(s.Last, Changed, "record %d does not match the seal of part %d", s.Last, s.Part)
	}
	// Keep only the newest seal as a head: earlier ones add nothing.
	w := witness{head: h, name: "the seal of its part", seen: v.last.Seq >= s.Last}
	if v.sealed > 0 {
		v.heads[v.sealed] = w
		return
	}
	v.sealed = len(v.heads)
	v.heads = append(v.heads, w)
}

// scan reads the rows of a part, whose sequence numbers go up to end. If the database cannot be
// read, it skips ahead in steps that double.
func (v *verifier) scan(ctx context.Context, r partReader, part int, end int64) error {
	from, after, step := v.last.Seq, int64(math.MinInt64), int64(1)
	for {
		before := v.records
		err := r.ScanPart(ctx, part, store.AuditFilter{After: after}, func(row store.AuditRow) error {
			v.row(row)
			return nil
		})
		var damaged *store.AuditReadError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.As(err, &damaged):
			return err
		}
		if v.records > before {
			step = 1
		}
		first := max(damaged.After, after, from) + 1
		v.unreadable = true
		if step == 1 {
			v.problem(first, Unreadable, "%v", damaged.Err)
		}
		if first > end {
			return nil
		}
		after, step = first+step-1, step*2
	}
}
