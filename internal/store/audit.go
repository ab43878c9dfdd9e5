package store

import (
	"bytes"
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
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// AuditDB is the database of the audit log. It has its own files beside the state database, so that
// neither waits for the other. It stores ordered rows and does not interpret them.
//
// Only one goroutine at a time may call Append, Rotate and Remove. All other methods may be called
// concurrently, and reads do not block writes. Use OpenAudit.
type AuditDB struct {
	files AuditFiles

	mu     sync.Mutex
	cur    *auditPart    // the last part, written by Append
	sealed []int         // earlier parts that have a file, in order
	lasts  map[int]int64 // cached last row numbers of those parts
}

// OpenAudit opens or creates the audit database in dir, and completes rotations and removals that
// an earlier process began. The caller holds the directory's lock (see Lock).
func OpenAudit(ctx context.Context, dir string) (*AuditDB, error) {
	a := &AuditDB{files: AuditFiles{dir}, lasts: map[int]int64{}}
	parts, err := a.files.Parts(ctx)
	if err != nil {
		return nil, err
	}
	if err := removeIncompleteSeals(dir); err != nil {
		return nil, err
	}
	last := max(len(parts), 1)
	switch {
	case len(parts) == 0:
	case parts[last-1].Seal != nil:
		last++ // its successor is gone and is created again
	case last > 1 && parts[last-2].Seal == nil && a.files.IsEmpty(ctx, last):
		// It was created for a rotation that wrote no seal.
		if err := removePart(dir, last); err != nil {
			return nil, err
		}
		last--
	}
	for _, p := range parts[:min(last-1, len(parts))] {
		if p.Present {
			a.sealed = append(a.sealed, p.Number)
			// A part that cannot be folded can still be read.
			_ = foldLog(ctx, filepath.Join(dir, AuditPartFile(p.Number)))
		} else if err := removePart(dir, p.Number); err != nil { // files that SQLite left beside it
			return nil, err
		}
	}
	a.cur, err = openPart(ctx, dir, last)
	return a, err
}

// removeIncompleteSeals removes seal files that a killed process left incomplete.
func removeIncompleteSeals(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, "audit-*.seal.new"))
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	if err != nil {
		return fmt.Errorf("open the audit log: %w", err)
	}
	return nil
}

// Append writes rows in one transaction: all or none. They survive a crash of the process once it
// returns.
func (a *AuditDB) Append(ctx context.Context, rows []AuditRow) error {
	if err := a.cur.append(ctx, rows); err != nil {
		return fmt.Errorf("write the audit log: %w", classify(err))
	}
	return nil
}

// Size returns the size of the last part in bytes.
func (a *AuditDB) Size(ctx context.Context) (int64, error) {
	p := a.hold()
	defer a.release(ctx, p)
	n, err := p.size(ctx)
	return n, classify(err)
}

// Last returns the row with the highest sequence number in the last part that has rows, or the zero
// row.
func (a *AuditDB) Last(ctx context.Context) (row AuditRow, err error) {
	err = a.eachPart(ctx, true, func(p *auditPart) (bool, error) {
		row, err = p.last(ctx)
		return row.Seq != 0, err
	})
	if err != nil {
		return AuditRow{}, fmt.Errorf("read the end of the audit log: %w", classify(err))
	}
	return row, nil
}

// Running returns the rows that opened calls which no row closed, without their hashes.
func (a *AuditDB) Running(ctx context.Context) ([]AuditRow, error) {
	p := a.hold()
	defer a.release(ctx, p)
	rows, err := p.running(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the open audit records: %w", classify(err))
	}
	return rows, nil
}

// Spent returns the bytes of records charged to each caller on a day.
func (a *AuditDB) Spent(ctx context.Context, day string) (map[string]int64, error) {
	p := a.hold()
	defer a.release(ctx, p)
	_, spent, err := p.spentOn(ctx, day)
	if err != nil {
		return nil, fmt.Errorf("read the audit shares: %w", classify(err))
	}
	return spent, nil
}

// Parts lists all parts. The last one is being written.
func (a *AuditDB) Parts(ctx context.Context) ([]AuditPart, error) { return a.files.Parts(ctx) }

// IsEmpty reports whether a part has a file but no rows.
func (a *AuditDB) IsEmpty(ctx context.Context, number int) bool { return a.files.IsEmpty(ctx, number) }

// Close closes the database.
func (a *AuditDB) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cur.closeHandles()
}

// Rotate stores seal for the last part and starts the next part. If it returns an error, the last
// part stays in use.
func (a *AuditDB) Rotate(ctx context.Context, seal []byte) error {
	before := a.cur
	next, err := a.makePart(ctx, before)
	if err != nil {
		return fmt.Errorf("begin a part of the audit log: %w", classify(err))
	}
	failpoint.Hit("audit.rotate.made")
	// The seal must not reach the disk before the records that it covers.
	if _, err = before.write.ExecContext(ctx, "PRAGMA wal_checkpoint(PASSIVE)"); err == nil {
		err = writeSeal(a.files.dir, before.number, seal)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("seal a part of the audit log: %w", classify(err)), next.closeHandles(),
			removePart(a.files.dir, next.number))
	}
	failpoint.Hit("audit.rotate.sealed")
	a.mu.Lock()
	a.cur = next
	a.sealed = append(a.sealed, before.number)
	a.mu.Unlock()
	_ = before.write.Close() // everything was committed
	a.release(ctx, before)
	failpoint.Hit("audit.rotate.folded")
	return nil
}

// makePart creates the part after before, completely or not at all.
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
		return nil, errors.Join(err, next.closeHandles(), removePart(a.files.dir, next.number))
	}
	return next, nil
}

// writeSeal replaces the seal of a part. When it returns nil, the seal is in place.
func writeSeal(dir string, number int, seal []byte) error {
	path := filepath.Join(dir, AuditSealFile(number))
	err := hostfile.ReplaceSynced(path, seal, 0o600, func() { failpoint.Hit("audit.seal.written") })
	if got, readErr := os.ReadFile(path); err != nil && readErr == nil && bytes.Equal(got, seal) {
		return nil // the seal counts from its rename on; only the sync of the directory failed
	}
	return err
}

// Remove deletes the file of a sealed part and replaces its seal. The new seal must say that the
// part was removed: if a crash interrupts Remove, it is called again.
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

// removePart deletes the file of a part first, and then the files that SQLite keeps beside it.
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

// Scan calls f with the matching rows in sequence order. A row is valid only during the call. Scan
// stops at the first error of f and returns it unchanged. A read error is an *AuditReadError.
func (a *AuditDB) Scan(ctx context.Context, filter AuditFilter, f func(AuditRow) error) error {
	if filter.Newest && filter.Limit <= 0 {
		return fmt.Errorf("newest audit records: a limit is required: %w", errdefs.ErrInvalidArgument)
	}
	from, newest, err := a.begin(ctx, filter)
	if err != nil || filter.Newest && newest == 0 {
		return err
	}
	left := filter.Limit
	return a.eachPart(ctx, false, func(p *auditPart) (bool, error) {
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

// begin returns the part in which the newest rows of a filter start, and how many of them it has.
func (a *AuditDB) begin(ctx context.Context, filter AuditFilter) (number, rows int, err error) {
	if !filter.Newest {
		return 0, 0, nil
	}
	left := filter.Limit
	err = a.eachPart(ctx, true, func(p *auditPart) (bool, error) {
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

// ScanPart is Scan for one part. Without a file, the error is fs.ErrNotExist.
func (a *AuditDB) ScanPart(ctx context.Context, number int, filter AuditFilter, f func(AuditRow) error) error {
	p := a.hold()
	defer a.release(ctx, p)
	if p.number == number {
		return p.scan(ctx, filter, f)
	}
	return a.files.ScanPart(ctx, number, filter, f)
}

// hold keeps the last part open for reading until it is released, even if it is sealed in between.
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
	_ = foldLog(context.WithoutCancel(ctx), p.path) // if a reader blocks it, the next start folds the part
}

// eachPart calls f with the parts that have a file, in order or backwards, until f returns true or
// an error.
func (a *AuditDB) eachPart(ctx context.Context, backwards bool, f func(*auditPart) (bool, error)) error {
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
		return false, nil // removed in the meantime
	}
	if err != nil {
		return false, err
	}
	defer p.closeHandles() //nolint:errcheck // nothing was written
	return f(p)
}
