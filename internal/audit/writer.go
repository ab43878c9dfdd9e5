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

// write is the goroutine that appends to the store: it takes all that waits,
// up to batchLength, in one transaction. Closings that nobody waits for stay
// for the next one, or for closeWithin.
func (l *Log) write() {
	defer close(l.stopped)
	defer close(l.heads)
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	tend := time.NewTicker(tendEvery)
	defer tend.Stop()
	ctx := context.Background() // a rotation that was begun is finished
	l.retain(ctx)
	for {
		var batch []*item
		select {
		case it := <-l.queue:
			batch = l.gather(it)
		case <-retry.C:
		case <-tend.C:
			l.tend(ctx)
			continue
		case <-l.stop:
			l.drain()
			return
		}
		if len(batch) > 0 && !urgent(batch) && len(l.kept)+len(batch) < batchLength {
			if len(l.kept) == 0 {
				retry.Reset(closeWithin)
			}
			l.kept = append(l.kept, batch...)
			continue
		}
		if err := l.try(batch); err != nil {
			retry.Reset(retryAfter)
		} else if l.rotateIfDue(ctx, l.part.written) {
			l.retain(ctx)
		}
	}
}

// drain writes what is queued when the log ends. Nothing is added any more.
func (l *Log) drain() {
	for {
		select {
		case it := <-l.queue:
			_ = l.try(l.gather(it)) // who waits is told, the rest is tried once more
		default:
			if len(l.kept) > 0 {
				l.failed = l.try(nil)
			}
			l.failed = errors.Join(l.failed, l.writeRefusals())
			return
		}
	}
}

// urgent says whether somebody waits for an item of the batch.
func urgent(batch []*item) bool {
	return slices.ContainsFunc(batch, func(it *item) bool { return it.done != nil })
}

func (l *Log) gather(first *item) []*item {
	batch := []*item{first}
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

// try writes a batch behind the closings that wait for another attempt, and
// tells who waits. Where it fails, the closings are kept: there is at most one
// for each call that was begun, and nothing is begun while writing fails.
func (l *Log) try(batch []*item) error {
	taken := l.kept
	for _, it := range batch {
		if it.state.CompareAndSwap(itemWaits, itemTaken) {
			taken = append(taken, it)
		}
	}
	err := l.append(taken)
	l.kept = nil
	for _, it := range taken {
		switch {
		case it.done != nil:
			if err != nil {
				l.refund(it)
			}
			it.done <- err
		case err != nil:
			l.kept = append(l.kept, it)
		}
	}
	if err != nil {
		l.log.Error("the audit log cannot be written", "error", err, "kept", len(l.kept))
	}
	return err
}

// append numbers, chains and stores items. Nothing is used up where it fails.
func (l *Log) append(items []*item) error {
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
		row.Call, row.Caller = found(row.Record)
		if it.spender != "" {
			row.Spender, row.Day, row.Spent = it.spender, it.day, it.cost()
		}
		last = head{Seq: row.Seq, Hash: row.Hash}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return nil
	}
	// What was asked for is finished: each caller's ctx counts until its item is taken.
	if err := l.store.Append(context.Background(), rows); err != nil {
		return err
	}
	l.part.written = at
	if l.part.began.IsZero() {
		l.part.began = at
	}
	l.mu.Lock()
	l.last = last
	l.mu.Unlock()
	l.announce(last)
	return nil
}

// stamp puts the number and the time in front of an encoded record.
func stamp(seq int64, now string, body []byte) []byte {
	b := make([]byte, 0, len(body)+len(seqPrefix)+len(now)+32)
	b = append(b, seqPrefix...)
	b = strconv.AppendInt(b, seq, 10)
	b = append(b, `,"time":"`...)
	b = append(b, now...)
	b = append(b, `",`...)
	return append(b, body[1:]...)
}

// found is what a record that stamp made is found by: call and caller follow its
// kind, if it has them.
func found(record []byte) (call, caller string) {
	_, rest, _ := bytes.Cut(record, []byte(`"kind":"`))
	_, rest, _ = bytes.Cut(rest, []byte(`"`))
	call, rest = member(rest, `,"call":"`)
	caller, _ = member(rest, `,"caller":"`)
	return call, caller
}

// member takes a member with a text off the front.
func member(b []byte, name string) (string, []byte) {
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

// announce leaves the newest head to the goroutine that writes the file. It
// is for the writer, and for Open before there is one.
func (l *Log) announce(h head) {
	select {
	case <-l.heads:
	default:
	}
	l.heads <- h
}

// headEvery bounds how often the head file is written. What a kill leaves
// without a head is at most that old.
const headEvery = 100 * time.Millisecond

// writeHeads writes the head file, off the way of the records: under load it
// skips to the newest.
func (l *Log) writeHeads() {
	defer close(l.headed)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for h := range l.heads {
		select {
		case <-pause.C:
		case <-l.stop:
		}
		if err := l.head.write(h); err != nil {
			l.log.Error("the head of the audit log cannot be written", "error", err)
		}
		pause.Reset(headEvery)
	}
}
