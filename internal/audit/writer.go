package audit

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// runWriter is the goroutine that appends to the store. It writes all queued items, up to
// batchLength, in one transaction. Closing records without a waiting caller stay for the next
// transaction, at most closeWithin. ctx must not be canceled: a rotation that has begun is
// completed, and a caller's context only counts until its item is taken.
func (l *Log) runWriter(ctx context.Context) {
	defer close(l.stopped)
	defer close(l.headUpdates)
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	maintenance := time.NewTicker(maintainInterval)
	defer maintenance.Stop()
	l.removeExpired(ctx)
	for {
		var batch []*queueItem
		select {
		case it := <-l.queue:
			batch = l.takeBatch(it)
		case <-retry.C:
		case <-maintenance.C:
			l.maintain(ctx)
			continue
		case <-l.stop:
			l.drain(ctx)
			return
		}
		if len(batch) > 0 && !hasWaiter(batch) && len(l.pendingCloses)+len(batch) < batchLength {
			if len(l.pendingCloses) == 0 {
				retry.Reset(closeWithin)
			}
			l.pendingCloses = append(l.pendingCloses, batch...)
			continue
		}
		if err := l.writeBatch(ctx, batch); err != nil {
			retry.Reset(retryAfter)
		} else if l.rotateIfDue(ctx, l.part.written) {
			l.removeExpired(ctx)
		}
	}
}

// drain writes what is queued when the log closes. Nothing more is added.
func (l *Log) drain(ctx context.Context) {
	for {
		select {
		case it := <-l.queue:
			_ = l.writeBatch(ctx, l.takeBatch(it)) // waiting callers get the error, the rest is retried once
		default:
			if len(l.pendingCloses) > 0 {
				l.failed = l.writeBatch(ctx, nil)
			}
			l.failed = errors.Join(l.failed, l.writeRefusals(ctx))
			return
		}
	}
}

// hasWaiter reports whether a caller waits for an item of the batch.
func hasWaiter(batch []*queueItem) bool {
	return slices.ContainsFunc(batch, func(it *queueItem) bool { return it.done != nil })
}

func (l *Log) takeBatch(first *queueItem) []*queueItem {
	batch := []*queueItem{first}
	for len(batch) < batchLength {
		select {
		case it := <-l.queue:
			batch = append(batch, it)
		default:
			return batch
		}
	}
	return batch
}

// writeBatch writes closing records that wait for a retry, then the batch, and wakes waiting
// callers. If it fails, the closing records are kept. There is at most one for each begun call, and
// no call begins while writing fails.
func (l *Log) writeBatch(ctx context.Context, batch []*queueItem) error {
	taken := l.pendingCloses
	for _, it := range batch {
		if it.state.CompareAndSwap(itemQueued, itemTaken) {
			taken = append(taken, it)
		}
	}
	err := l.append(ctx, taken)
	l.pendingCloses = nil
	for _, it := range taken {
		switch {
		case it.done != nil:
			if err != nil {
				l.refund(it)
			}
			it.done <- err
		case err != nil:
			l.pendingCloses = append(l.pendingCloses, it)
		}
	}
	if err != nil {
		l.log.Error("failed to write the audit log; will retry", "error", err, "kept", len(l.pendingCloses))
	}
	return err
}

// append numbers, chains and stores items. A failure uses up no sequence number.
func (l *Log) append(ctx context.Context, items []*queueItem) error {
	rows := make([]store.AuditRow, 0, len(items))
	last := l.written()
	at := l.now()
	now := at.UTC().Format(store.AuditTime)
	for _, it := range items {
		if it.body == nil {
			continue // a Flush
		}
		row := store.AuditRow{Seq: last.Seq + 1, Prev: last.Hash, Opens: it.opens, Closes: it.closes}
		row.Record = stamp(row.Seq, now, it.body)
		row.Hash = chain(l.mac, row.Prev, row.Record)
		row.Call, row.Caller = recordKeys(row.Record)
		if it.spender != "" {
			row.Spender, row.Day, row.Spent = it.spender, it.day, it.cost()
		}
		last = head{Seq: row.Seq, Hash: row.Hash}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return nil
	}
	began := time.Now()
	err := l.store.Append(ctx, rows)
	if l.onAppend != nil {
		l.onAppend(time.Since(began))
	}
	if err != nil {
		return err
	}
	l.part.written = at
	if l.part.began.IsZero() {
		l.part.began = at
	}
	l.mu.Lock()
	l.last = last
	if l.appended != nil {
		close(l.appended)
		l.appended = nil
	}
	l.mu.Unlock()
	l.publishHead(last)
	return nil
}

// stamp prepends the sequence number and the time to an encoded record.
func stamp(seq int64, now string, body []byte) []byte {
	b := make([]byte, 0, len(body)+len(seqPrefix)+len(now)+32)
	b = append(b, seqPrefix...)
	b = strconv.AppendInt(b, seq, 10)
	b = append(b, `,"time":"`...)
	b = append(b, now...)
	b = append(b, `",`...)
	return append(b, body[1:]...)
}

// recordKeys returns the call and caller of a stamped record, which is indexed by them. They follow
// its kind if present.
func recordKeys(record []byte) (call, caller string) {
	_, rest, _ := bytes.Cut(record, []byte(`"kind":"`))
	_, rest, _ = bytes.Cut(rest, []byte(`"`))
	call, rest = cutMember(rest, `,"call":"`)
	caller, _ = cutMember(rest, `,"caller":"`)
	return call, caller
}

// cutMember removes a member with a string value from the front.
func cutMember(b []byte, name string) (string, []byte) {
	value, ok := bytes.CutPrefix(b, []byte(name))
	if !ok {
		return "", b
	}
	for i := 0; i < len(value); i++ {
		switch value[i] {
		case '\\':
			i++
		case '"':
			return string(value[:i]), value[i+1:]
		}
	}
	return "", b
}

// publishHead passes the newest head to the goroutine that writes the file. Only the writer calls
// it, and Open before the writer starts.
func (l *Log) publishHead(h head) {
	select {
	case <-l.headUpdates:
	default:
	}
	l.headUpdates <- h
}

// headEvery is the minimum interval between writes of the head file. A kill loses at most that much
// of the head.
const headEvery = 100 * time.Millisecond

// writeHeads writes the head file without delaying records. Under load it skips to the newest head.
func (l *Log) writeHeads() {
	defer close(l.headsDone)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for h := range l.headUpdates {
		select {
		case <-pause.C:
		case <-l.stop:
		}
		l.writeHead(h)
		pause.Reset(headEvery)
	}
}

func (l *Log) writeHead(h head) {
	if err := l.head.write(h); err != nil {
		l.log.Error("failed to write the audit log's head file", "error", err)
	}
}
