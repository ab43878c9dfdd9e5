package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
)

// AuditDB is the database of the audit log: files of their own beside the
// state, so that neither waits for the other. It knows rows and their order,
// not what they mean. Append, Rotate and Remove are for one goroutine at a time;
// everything else may be called concurrently, and reading does not hold them up.
// Use OpenAudit.
type AuditDB struct {
	files AuditFiles

	mu     sync.Mutex
	cur    *auditPart    // the last part, which Append writes
	sealed []int         // the parts before it that have a file, in order
	lasts  map[int]int64 // the last row's number in such a part, once it was asked for
}

// OpenAudit opens or makes the audit database in dir, and finishes what an
// earlier process began of a rotation or a removal. The caller holds the
// directory's lock (see Lock).
func OpenAudit(ctx context.Context, dir string) (*AuditDB, error) {
	a := &AuditDB{files: AuditFiles{dir}, lasts: map[int]int64{}}
	parts, err := a.files.Parts(ctx)
	if err != nil {
		return nil, err
	}
	if err := tidy(dir); err != nil {
		return nil, err
	}
	last := max(len(parts), 1)
	switch {
	case len(parts) == 0:
	case parts[last-1].Seal != nil:
		last++ // its successor is gone, and begins anew
	case last > 1 && parts[last-2].Seal == nil && a.files.IsEmpty(ctx, last):
		// It was made for a rotation that did not come to the seal.
		if err := removePart(dir, last); err != nil {
			return nil, err
		}
		last--
	}
	for _, p := range parts[:min(last-1, len(parts))] {
		if p.Present {
			a.sealed = append(a.sealed, p.Number)
			_ = fold(ctx, filepath.Join(dir, AuditPartFile(p.Number))) // what it cannot fold it can read
		} else if err := removePart(dir, p.Number); err != nil { // what SQLite had beside it
			return nil, err
		}
	}
	a.cur, err = openPart(ctx, dir, last)
	return a, err
}

// tidy removes seals that a killed process left half written.
func tidy(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, "audit-*.seal.new"))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	return nil
}

// Append writes rows in one transaction: all or none. They outlive the
// process once it returns.
func (a *AuditDB) Append(ctx context.Context, rows []AuditRow) error {
	if err := a.cur.append(ctx, rows); err != nil {
		return fmt.Errorf("write the audit log: %w", classify(err))
	}
	return nil
}

// Size is how many bytes the last part has.
func (a *AuditDB) Size(ctx context.Context) (int64, error) {
	p := a.hold()
	defer a.release(ctx, p)
	n, err := p.size(ctx)
	return n, classify(err)
}

// Last is the row with the highest sequence number of the last part that has
// rows, or a zero one.
func (a *AuditDB) Last(ctx context.Context) (row AuditRow, err error) {
	err = a.each(ctx, true, func(p *auditPart) (bool, error) {
		row, err = p.last(ctx)
		return row.Seq != 0, err
	})
	if err != nil {
		return AuditRow{}, fmt.Errorf("read the end of the audit log: %w", classify(err))
	}
	return row, nil
}

// Running is the rows that opened calls which no row closed; of what they are
// chained by it has nothing.
func (a *AuditDB) Running(ctx context.Context) ([]AuditRow, error) {
	p := a.hold()
	defer a.release(ctx, p)
	rows, err := p.running(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the open audit records: %w", classify(err))
	}
	return rows, nil
}

// Spent is how many bytes of records were charged to callers on a day.
func (a *AuditDB) Spent(ctx context.Context, day string) (map[string]int64, error) {
	p := a.hold()
	defer a.release(ctx, p)
	_, spent, err := p.spentOn(ctx, day)
	if err != nil {
		return nil, fmt.Errorf("read what callers have recorded: %w", classify(err))
	}
	return spent, nil
}

// Parts lists all parts. The last one is the one that is written.
func (a *AuditDB) Parts(ctx context.Context) ([]AuditPart, error) { return a.files.Parts(ctx) }

// IsEmpty reports whether a part has a file and no row.
func (a *AuditDB) IsEmpty(ctx context.Context, number int) bool { return a.files.IsEmpty(ctx, number) }

// Close closes the database.
func (a *AuditDB) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cur.shut()
}

// Rotate seals the last part with what seal holds, and begins the next one. If it
// returns an error, the last part goes on.
func (a *AuditDB) Rotate(ctx context.Context, seal []byte) error {
	before := a.cur
	next, err := a.makePart(ctx, before)
	if err != nil {
		return fmt.Errorf("begin a part of the audit log: %w", classify(err))
	}
	failpoint.Hit("audit.rotate.made")
	// The seal must not reach the disk before the records that it speaks of.
	if _, err = before.write.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)"); err == nil {
		err = writeSeal(a.files.dir, before.number, seal)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("seal a part of the audit log: %w", classify(err)), next.shut(), removePart(a.files.dir, next.number))
	}
	failpoint.Hit("audit.rotate.sealed")
	a.mu.Lock()
	a.cur = next
	a.sealed = append(a.sealed, before.number)
	a.mu.Unlock()
	_ = before.write.Close() // all of it was committed
	a.release(ctx, before)
	failpoint.Hit("audit.rotate.folded")
	return nil
}

// makePart makes the part behind one, whole or not at all.
func (a *AuditDB) makePart(ctx context.Context, before *auditPart) (*auditPart, error) {
	if err := removePart(a.files.dir, before.number+1); err != nil {
		return nil, err
	}
	next, err := openPart(ctx, a.files.dir, before.number+1)
	if err != nil {
		return nil, err
	}
	failpoint.Hit("audit.rotate.begun")
	if err := next.carry(ctx, before); err != nil {
		return nil, errors.Join(err, next.shut(), removePart(a.files.dir, next.number))
	}
	return next, nil
}

// writeSeal replaces the seal of a part. Once it returns nil, the seal outlives
// a loss of power.
func writeSeal(dir string, number int, seal []byte) error {
	path := filepath.Join(dir, AuditSealFile(number))
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(seal)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	failpoint.Hit("audit.seal.written")
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil //nolint:nilerr // the seal counts from its rename on
	}
	_ = d.Sync()
	d.Close()
	return nil
}

// Remove deletes the file of a sealed part and keeps seal in place of its seal,
// which has to say that the part was removed: after a crash in between Remove is
// called again.
func (a *AuditDB) Remove(_ context.Context, number int, seal []byte) error {
	if err := writeSeal(a.files.dir, number, seal); err != nil {
		return fmt.Errorf("remove a part of the audit log: %w", err)
	}
	failpoint.Hit("audit.remove.marked")
	a.mu.Lock()
	a.sealed = slices.DeleteFunc(a.sealed, func(n int) bool { return n == number })
	a.mu.Unlock()
	return removePart(a.files.dir, number)
}

// removePart deletes the file of a part, that first, and what SQLite has beside it.
func removePart(dir string, number int) error {
	path := filepath.Join(dir, AuditPartFile(number))
	for _, end := range []string{"", "-wal", "-shm", "-journal"} {
		if err := os.Remove(path + end); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove a part of the audit log: %w", err)
		}
		failpoint.Hit("audit.remove.file")
	}
	return nil
}

// Scan calls f with the rows that match, in order of their sequence numbers;
// what f gets is only good until it returns. It ends at the first error of f,
// which it returns as it is. An error in reading is an *AuditReadError.
func (a *AuditDB) Scan(ctx context.Context, filter AuditFilter, f func(AuditRow) error) error {
	if filter.Newest && filter.Limit <= 0 {
		return fmt.Errorf("the newest audit records need a limit: %w", errdefs.ErrInvalidArgument)
	}
	from, newest, err := a.begin(ctx, filter)
	if err != nil || filter.Newest && newest == 0 {
		return err
	}
	left := filter.Limit
	return a.each(ctx, false, func(p *auditPart) (bool, error) {
		if p.number < from || a.isBefore(ctx, p, filter.After) {
			return false, nil
		}
		part := filter
		part.Newest, part.Limit = false, left
		if filter.Newest && p.number == from {
			part.Newest, part.Limit = true, newest
		}
		err := p.scan(ctx, part, func(r AuditRow) error {
			left--
			return f(r)
		})
		return filter.Limit > 0 && left <= 0, err
	})
}

// begin finds the part in which the newest rows of a filter begin, and how many
// of them it has.
func (a *AuditDB) begin(ctx context.Context, filter AuditFilter) (number, rows int, err error) {
	if !filter.Newest {
		return 0, 0, nil
	}
	left := filter.Limit
	err = a.each(ctx, true, func(p *auditPart) (bool, error) {
		if a.isBefore(ctx, p, filter.After) {
			return true, nil
		}
		n, err := p.count(ctx, filter, left)
		if n > 0 {
			number, rows = p.number, min(n, left)
		}
		left -= n
		return left <= 0, err
	})
	return number, rows, err
}

// isBefore reports whether all rows of a part have numbers up to seq.
func (a *AuditDB) isBefore(ctx context.Context, p *auditPart, seq int64) bool {
	if seq <= 0 || p.write != nil {
		return false
	}
	a.mu.Lock()
	last, known := a.lasts[p.number]
	a.mu.Unlock()
	if !known {
		row, err := p.last(ctx)
		if err != nil {
			return false
		}
		last = row.Seq
		a.mu.Lock()
		a.lasts[p.number] = last
		a.mu.Unlock()
	}
	return last <= seq
}

// ScanPart is Scan for one part. A part without a file is fs.ErrNotExist.
func (a *AuditDB) ScanPart(ctx context.Context, number int, filter AuditFilter, f func(AuditRow) error) error {
	p := a.hold()
	defer a.release(ctx, p)
	if p.number == number {
		return p.scan(ctx, filter, f)
	}
	return a.files.ScanPart(ctx, number, filter, f)
}

// hold keeps the last part open for reading until it is released, also if it is
// sealed meanwhile.
func (a *AuditDB) hold() *auditPart {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cur.holds++
	return a.cur
}

func (a *AuditDB) release(ctx context.Context, p *auditPart) {
	a.mu.Lock()
	p.holds--
	free := p.holds == 0
	a.mu.Unlock()
	if !free {
		return
	}
	_ = p.read.Close()
	_ = fold(context.WithoutCancel(ctx), p.path) // the next start folds what somebody reads now
}

// each calls f with the parts that have a file, the first or the last of them
// first, until f returns true or an error.
func (a *AuditDB) each(ctx context.Context, backwards bool, f func(*auditPart) (bool, error)) error {
	a.mu.Lock()
	numbers, cur := slices.Clone(a.sealed), a.cur
	cur.holds++
	a.mu.Unlock()
	defer a.release(ctx, cur)
	numbers = append(numbers, cur.number)
	if backwards {
		slices.Reverse(numbers)
	}
	for _, n := range numbers {
		if done, err := a.one(n, cur, f); done || err != nil {
			return err
		}
	}
	return nil
}

func (a *AuditDB) one(number int, cur *auditPart, f func(*auditPart) (bool, error)) (bool, error) {
	if number == cur.number {
		return f(cur)
	}
	p, err := openPartToRead(a.files.dir, number)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // it was removed meanwhile
	}
	if err != nil {
		return false, err
	}
	defer p.shut() //nolint:errcheck // nothing was written
	return f(p)
}
