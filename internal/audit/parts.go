package audit

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// Retention configures when a part of the log ends and when sealed parts are deleted. A zero field
// means never.
type Retention struct {
	// PartSize ends a part when its file reaches this many bytes. PartAge ends it when its first
	// record is this old.
	PartSize int64
	PartAge  time.Duration
	// KeepAge deletes parts this long after they were sealed. KeepSize deletes the oldest sealed
	// parts while they exceed this many bytes together.
	KeepAge  time.Duration
	KeepSize int64
}

// RemoveAction is the action of the record that names a deleted part.
const RemoveAction = "audit.remove"

// maintainInterval is how often the writer checks the age of parts.
const maintainInterval = time.Minute

// part describes the open part. Only the writer uses it.
type part struct {
	number  int
	before  head      // head that its first record follows
	began   time.Time // time of its first record; zero: no record
	written time.Time // time of its last record
	blocked time.Time // earliest next rotation, after a failed one
}

// openParts loads the open part and returns the last record of the log.
func (l *Log) openParts(ctx context.Context) (last head, err error) {
	row, err := l.store.Last(ctx)
	if err != nil {
		return head{}, err
	}
	last = genesis()
	if len(row.Hash) > 0 {
		last = head{Seq: row.Seq, Hash: row.Hash}
	}
	parts, err := l.store.Parts(ctx)
	if err != nil {
		return head{}, err
	}
	l.part = part{number: max(len(parts), 1), before: genesis()}
	if n := l.part.number; n > 1 {
		if s, err := parseSeal(l.key, n-1, parts[n-2].Seal); err != nil {
			l.part.before = head{} // Verify reports it
		} else {
			l.part.before = s.head()
			if s.Last > last.Seq {
				last = s.head() // the part of the record was removed
			}
		}
	}
	return last, l.loadOpenPart(ctx, last)
}

// loadOpenPart finds out when the open part began, and what it follows if no seal says so.
func (l *Log) loadOpenPart(ctx context.Context, last head) error {
	p := &l.part
	empty := true
	err := l.store.ScanPart(ctx, p.number, store.AuditFilter{Limit: 1}, func(row store.AuditRow) error {
		empty = false
		p.began = l.now()
		if r, err := decode(row.Record); err == nil {
			p.began = r.Time
		}
		if p.before.Hash == nil {
			p.before = head{Seq: row.Seq - 1, Hash: append([]byte(nil), row.Prev...)}
		}
		return nil
	})
	if empty && p.before.Hash == nil {
		p.before = last
	}
	return err
}

// maintain records counted refusals, rotates the part if due and deletes expired parts. Only the
// writer calls it.
func (l *Log) maintain(ctx context.Context) {
	_ = l.writeRefusals(ctx) // retried later
	l.rotateIfDue(ctx, l.now())
	if l.retention.KeepAge > 0 || l.retention.KeepSize > 0 {
		l.removeExpired(ctx)
	}
}

// rotateIfDue rotates the open part if that is due at now. It reports whether it did.
func (l *Log) rotateIfDue(ctx context.Context, now time.Time) bool {
	p := &l.part
	if p.began.IsZero() || now.Before(p.blocked) {
		return false
	}
	due := l.retention.PartAge > 0 && now.Sub(p.began) >= l.retention.PartAge
	if !due && l.retention.PartSize > 0 {
		size, err := l.store.Size(ctx)
		due = err == nil && size >= l.retention.PartSize
	}
	if !due {
		return false
	}
	if err := l.rotate(ctx); err != nil {
		p.blocked = l.now().Add(maintainInterval)
		l.log.Error("failed to rotate the audit log; will retry", "part", p.number+1, "error", err)
		return false
	}
	l.log.Info("rotated the audit log to a new part", "part", l.part.number)
	return true
}

// rotate seals the part with the records written so far, whatever the file contains by now.
func (l *Log) rotate(ctx context.Context) error {
	last, before := l.written(), l.part.before
	s := seal{
		Part: l.part.number, First: before.Seq + 1, Last: last.Seq, Records: last.Seq - before.Seq,
		Prev: hex.EncodeToString(before.Hash), Hash: hex.EncodeToString(last.Hash),
		Sealed: l.now().UTC().Truncate(time.Microsecond),
	}
	text, err := s.sign(l.key)
	if err != nil {
		return err
	}
	if err := l.store.Rotate(ctx, text); err != nil {
		return err
	}
	l.part = part{number: l.part.number + 1, before: last}
	return nil
}

// removeExpired deletes the oldest sealed parts that are past retention, and completes removals
// that a crash interrupted. A part without a valid seal stays.
func (l *Log) removeExpired(ctx context.Context) {
	parts, err := l.store.Parts(ctx)
	if err != nil {
		l.log.Error("failed to list old parts of the audit log; will retry", "error", err)
		return
	}
	parts = parts[:min(len(parts), l.part.number-1)]
	var total int64
	for _, p := range parts {
		total += p.Bytes
	}
	for _, p := range parts {
		s, err := parseSeal(l.key, p.Number, p.Seal)
		switch {
		case err != nil || !p.Present:
			continue
		case s.Removed != nil:
			err = l.store.Remove(ctx, p.Number, p.Seal)
		case l.retention.KeepAge > 0 && l.now().Sub(s.Sealed) >= l.retention.KeepAge,
			l.retention.KeepSize > 0 && total > l.retention.KeepSize:
			err = l.remove(ctx, s)
		default:
			return
		}
		if err != nil {
			l.log.Error("failed to delete an old part of the audit log; will retry", "part", p.Number, "error", err)
			return
		}
		total -= p.Bytes
		l.log.Info("deleted an old part of the audit log", "part", p.Number, "first", s.First, "last", s.Last)
	}
}

// remove records that a part is deleted, and then deletes it.
func (l *Log) remove(ctx context.Context, s seal) error {
	input, err := json.Marshal(map[string]int64{"part": int64(s.Part), "first": s.First, "last": s.Last})
	if err != nil {
		return err
	}
	body, err := encode(Record{Kind: KindEvent, Action: RemoveAction, Input: input})
	if err != nil {
		return err
	}
	if err := l.append(ctx, []*queueItem{{body: body}}); err != nil {
		return err
	}
	now := l.now().UTC().Truncate(time.Microsecond)
	s.Removed = &now
	text, err := s.sign(l.key)
	if err != nil {
		return err
	}
	return l.store.Remove(ctx, s.Part, text)
}
