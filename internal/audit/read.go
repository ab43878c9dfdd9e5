package audit

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// Filter chooses records; the zero value takes all, the oldest first. A record
// matches if all fields that are set are its own; the one that closes a call
// carries all that the open one does, but the input.
type Filter struct {
	Caller, Action, Verdict, Ending, Call, Sandbox string
	// Since is inclusive, Until is not.
	Since, Until time.Time
	// After is the sequence number to begin behind. Limit is the most records
	// to take (0: ListLimit for lists, all for an export).
	After int64
	Limit int
	// Newest takes the last Limit records instead of the first; the order
	// stays.
	Newest bool
}

// ListLimit is how many records a list has where no limit is given.
const ListLimit = 1000

// Stored is a record with its hash in the chain, as hex.
type Stored struct {
	Record
	Hash string `json:"hash"`
}

// settled waits for what is queued, so that a call that is over is seen to be.
// A log that cannot be written can be read all the same.
func (l *Log) settled(ctx context.Context) {
	_ = l.wait(ctx, &item{done: make(chan error, 1)})
}

// List reads records.
func (l *Log) List(ctx context.Context, f Filter) ([]Stored, error) {
	l.settled(ctx)
	if f.Limit <= 0 {
		f.Limit = ListLimit
	}
	all := []Stored{}
	err := l.store.Scan(ctx, store.AuditFilter(f), func(row store.AuditRow) error {
		r, err := decode(row.Record)
		if err != nil {
			r = Record{Seq: row.Seq, Error: "this record is damaged: verify the log"}
		}
		all = append(all, Stored{Record: r, Hash: hex.EncodeToString(row.Hash)})
		return nil
	})
	return all, err
}

// Export writes records as JSON lines: the bytes that the hash is made of,
// with the member "hash" added at the end. It holds one record at a time.
func (l *Log) Export(ctx context.Context, f Filter, w io.Writer) error {
	if f.Newest && f.Limit <= 0 {
		f.Newest = false // all of them
	}
	l.settled(ctx)
	var line bytes.Buffer
	return l.store.Scan(ctx, store.AuditFilter(f), func(row store.AuditRow) error {
		line.Reset()
		record := bytes.TrimSuffix(row.Record, []byte("}"))
		if len(record) == len(row.Record) || !json.Valid(row.Record) {
			damaged, err := encode(Record{Kind: KindEvent, Action: "audit.damaged", Error: "this record is damaged: verify the log"})
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
