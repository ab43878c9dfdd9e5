package audit

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// Filter selects records. The zero value selects all, oldest first. A record must match every field
// that is set. The record that closes a call has all fields of its open record except the input.
type Filter struct {
	Caller, Action, Verdict, Ending, Call, Sandbox string
	// Since is inclusive, Until is exclusive.
	Since, Until time.Time
	// After selects records with a greater sequence number. Limit is the maximum number of records
	// (0: ListLimit for lists, all for an export).
	After int64
	Limit int
	// Newest selects the last Limit records instead of the first. The order stays ascending.
	Newest bool
}

// Bounds of a list.
const (
	// ListLimit is the default maximum number of records, and maxList is the largest that counts.
	ListLimit = 1000
	maxList   = 10_000
	// listBytes bounds the JSON of the records. A list has at least one record.
	listBytes = 1 << 20
)

// Stored is a record with its chain hash in hex.
type Stored struct {
	Record
	Hash string `json:"hash"`
}

// awaitQueue waits for queued records, so that a reader sees every finished call. It ignores write
// errors: a log that cannot be written can still be read.
func (l *Log) awaitQueue(ctx context.Context) {
	_ = l.wait(ctx, &queueItem{done: make(chan error, 1)})
}

// errFull ends a scan whose list is full.
var errFull = errors.New("the list is full")

// List returns the records that match f, up to maxList records and listBytes bytes. more reports
// whether these bounds cut the list: a list of the newest records then lacks the oldest, any other
// list lacks the last.
func (l *Log) List(ctx context.Context, f Filter) (all []Stored, more bool, err error) {
	l.awaitQueue(ctx)
	if f.Limit <= 0 {
		f.Limit = ListLimit
	}
	wanted := f.Limit
	f.Limit = min(wanted, maxList)
	all = []Stored{}
	sizes, size, first := []int{}, 0, 0
	err = l.store.Scan(ctx, store.AuditFilter(f), func(row store.AuditRow) error {
		size += len(row.Record)
		if len(all) > 0 && size > listBytes && !f.Newest {
			return errFull
		}
		sizes = append(sizes, len(row.Record))
		for ; size > listBytes && first < len(all); first++ {
			size -= sizes[first]
			all[first] = Stored{}
		}
		r, err := decode(row.Record)
		if err != nil {
			r = Record{Seq: row.Seq, Error: "this record is damaged: verify the log"}
		}
		all = append(all, Stored{Record: r, Hash: hex.EncodeToString(row.Hash)})
		return nil
	})
	more = errors.Is(err, errFull) || first > 0 || len(all) == maxList && wanted > maxList
	if errors.Is(err, errFull) {
		err = nil
	}
	return all[first:], more, err
}

// Export writes matching records as JSON lines: the bytes that were hashed, with a final member
// "hash". It holds one record in memory at a time.
func (l *Log) Export(ctx context.Context, f Filter, w io.Writer) error {
	if f.Newest && f.Limit <= 0 {
		f.Newest = false // an export has all records
	}
	l.awaitQueue(ctx)
	var line bytes.Buffer
	return l.store.Scan(ctx, store.AuditFilter(f), func(row store.AuditRow) error {
		line.Reset()
		record := bytes.TrimSuffix(row.Record, []byte("}"))
		if len(record) == len(row.Record) || !json.Valid(row.Record) {
			damaged, err := encode(Record{Kind: KindEvent, Action: "audit.damaged",
				Error: "this record is damaged: verify the log"})
			if err != nil {
				return err
			}
			record = bytes.TrimSuffix(stamp(row.Seq, "0001-01-01T00:00:00.000000Z", damaged), []byte("}"))
		}
		line.Write(record)
		fmt.Fprintf(&line, `,"hash":"%x"}`, row.Hash)
		line.WriteByte('\n')
		_, err := w.Write(line.Bytes())
		return err
	})
}
